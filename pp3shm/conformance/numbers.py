"""Known answers about numbers: draws, proposals, verification.

Each check runs one case against every implementation the library has of it, and raises
:class:`pp3shm.errors.Mismatch` at the first that answers otherwise.
"""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from pp3shm.errors import Mismatch, ProposalError
from pp3shm.oracle import (
    Conditional,
    Conditionals,
    Law,
    completed_law,
    emitted_law,
    target_law,
)
from pp3shm.proposal import reference
from pp3shm.proposal.proposal import propose_draw24
from pp3shm.rng import (
    Purpose,
    draw24,
    philox4x32_10,
    philox4x32_10_array,
    philox4x32_10_c,
    request_key,
    words,
)
from pp3shm.verify.batch import Request
from pp3shm.verify.keys import VerifyKeys
from pp3shm.verify.reference import RowResult, verify_row
from pp3shm.verify.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

Case = dict[str, Any]


def check_philox(case: Case, _context: object) -> None:
    """Counter and key words to output words: Python, NumPy and C."""
    c0, c1, c2, c3 = case["counter"]
    k0, k1 = case["key"]
    counter, key = (c0, c1, c2, c3), (k0, k1)
    _expect("words", case["words"], list(philox4x32_10(counter, key)))
    _expect("words (C)", case["words"], list(philox4x32_10_c(counter, key)))
    block = philox4x32_10_array(np.array([counter], "u4"), np.array(key, "u4"))
    _expect("words (NumPy)", [case["words"]], block.tolist())


def check_draws(case: Case, _context: object) -> None:
    """Request keys of the three purposes, and the words drawn under them."""
    salt = bytes.fromhex(case["session"])
    who = (case["slot"], case["generation"], case["user_seed"])
    for purpose in Purpose:
        name = purpose.name.lower()
        key = request_key(purpose, salt, *who)
        _expect(f"{name}.key", case[name]["key"], list(key))
        block = words(key, case["round"], case["position"])
        _expect(f"{name}.words", case[name]["words"], list(block))
    key = request_key(Purpose.PROPOSAL, salt, *who)
    _expect("draw24", case["draw24"], draw24(key, case["round"], case["position"]))


def check_proposals(case: Case, _context: object) -> None:
    """Logits to ids, counts and the token drawn: NumPy reference and C."""
    logits = _floats(case["logits"])
    _expect("vocab", case["vocab"], logits.size)
    shown, at = reference.propose(logits, case["draw24"], rule=case["rule"])
    _expect("ids", case["ids"], shown.ids.tolist())
    _expect("counts", case["counts"], shown.counts.tolist())
    _expect("token", case["token"], int(shown.ids[at]))
    drawn = propose_draw24(logits, case["draw24"], rule=case["rule"])
    _expect("ids (C)", case["ids"], drawn.ids.tolist())
    _expect("counts (C)", case["counts"], (drawn.q * reference.MASS).tolist())
    _expect("token (C)", case["token"], drawn.token)


def check_proposals_refused(case: Case, _context: object) -> None:
    """Logits that both must refuse, at the same place."""
    logits = _floats(case["logits"])
    places = []
    for propose in (reference.propose, propose_draw24):
        try:
            propose(logits, 0)
        except ProposalError as error:
            places.append(error.place)
        else:
            raise Mismatch(propose.__name__, f"refused: {case['why']}", "a proposal")
    _expect("place (C)", places[0], places[1])


def check_verify_draws(case: Case, _context: object) -> None:
    """Target rows, drafts, q and keys to the tokens emitted; alone and in a batch."""
    rows = np.stack([_floats(row) for row in case["target_probs"]])
    _expect("vocab", case["vocab"], rows.shape[1])
    ids = np.array(case["ids"], np.int32)
    q = np.array(case["counts"], np.float32) / np.float32(reference.MASS)
    keys = VerifyKeys.derive(
        bytes.fromhex(case["epoch"]),
        case["slot"],
        case["generation"],
        case["user_seed"],
    )
    alone: RowResult = verify_row(
        rows,
        case["drafts"],
        ids,
        q,
        accept_key=keys.accept,
        residual_key=keys.residual,
        round=case["round"],
        position=case["position"],
        sampled=case["temperature_positive"],
        failed=case["failed"],
    )
    _expect("emitted", case["emitted"], alone.tokens)
    page = _page(case, ids, q)
    request = Request(
        case["slot"], case["position"], keys, float(case["temperature_positive"])
    )
    many = verify(page, [rows], [request], round=case["round"], vocab=case["vocab"])
    if many.errors[0] is not None:
        raise many.errors[0]
    emitted = many.tokens[0, : many.count[0]].tolist()
    _expect("emitted (batch)", case["emitted"], emitted)


def check_verify_exact(case: Case, _context: object) -> None:
    """The law of the emitted tokens, and that nothing of the target's is lost."""
    depth = case["depth"]
    models = conditionals_of(case)
    law = emitted_law(models, depth)
    expected: Law = {
        _prefix(tokens): Fraction(*chance) for tokens, chance in case["emitted"].items()
    }
    for tokens in sorted(expected.keys() | law.keys()):
        _expect(f"emitted{list(tokens)}", expected.get(tokens, 0), law.get(tokens, 0))
    _expect(
        f"the law of {depth + 1} tokens",
        target_law(models, depth + 1),
        completed_law(law, models, depth + 1),
    )


def conditionals_of(case: Case) -> Conditionals:
    """The models of a case of ``verify_exact``, by prefix."""
    whole = case["denominator"]

    def row(numerators: list[int] | None) -> list[Fraction] | None:
        return None if numerators is None else [Fraction(n, whole) for n in numerators]

    return {
        _prefix(prefix): Conditional(row(models["p"]) or [], row(models["q"]))
        for prefix, models in case["conditionals"].items()
    }


FORMATS: dict[str, Callable[[Case, Any], None]] = {
    "draws": check_draws,
    "philox": check_philox,
    "proposals": check_proposals,
    "proposals_refused": check_proposals_refused,
    "verify_draws": check_verify_draws,
    "verify_exact": check_verify_exact,
}
"""The check of each file, by its stem."""


def _page(case: Case, ids: NDArray[np.int32], q: NDArray[np.float32]) -> Any:
    """A page's arrays with the case's row in its slot, and only there."""
    slots, slot = max(4, case["slot"] + 1), case["slot"]
    page = SimpleNamespace(
        round=np.uint64(case["round"]),
        status=np.ones(slots, np.int32),
        tokens=np.full((slots, ids.shape[0]), -1, np.int32),
        mask=np.zeros(slots, np.int32),
        ids=np.zeros((slots, *ids.shape), np.int32),
        q=np.zeros((slots, *q.shape), np.float32),
    )
    if not case["failed"]:
        page.status[slot] = 0
        page.tokens[slot] = case["drafts"]
        page.mask[slot] = case["temperature_positive"]
        page.ids[slot], page.q[slot] = ids, q
    return page


def _expect(place: str, expected: object, found: object) -> None:
    if expected != found:
        raise Mismatch(place, expected, found)


def _floats(text: str) -> NDArray[np.float32]:
    return np.frombuffer(bytes.fromhex(text), "<f4").astype(np.float32)


def _prefix(digits: str) -> tuple[int, ...]:
    return tuple(int(digit) for digit in digits)
