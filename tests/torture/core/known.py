"""Turns the vectors of tests/vectors into C tables: the program runs without Python.

`c/known.h` says what the tables hold; this writes `known.c` beside the built program.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from torture.figure import ROOT

from pp3shm.verify import VerifyKeys

VECTORS = ROOT / "tests" / "vectors"
REASONS = (
    "frame", "crc", "header", "echo", "trailer", "mask", "token", "support",
    "probability", "mass",
)  # fmt: skip
RULES = ("floor-first", "largest-remainder")
FIELDS = ("status", "tokens", "confidence", "mask", "ids", "q", "end")
Case = Mapping[str, Any]


def _cases(name: str) -> list[dict[str, Any]]:
    text = (VECTORS / f"{name}.json").read_text(encoding="utf-8")
    cases: list[dict[str, Any]] = json.loads(text)["cases"]
    return cases


def _bytes(digits: str) -> str:
    data = bytes.fromhex(digits)
    body = "".join(f"\\{byte:03o}" for byte in data)
    return f'(const uint8_t *)"{body}", {len(data)}'


def _words(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(f"{number}u" for number in numbers) + "}"


def _ints(numbers: Iterable[int]) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"


def _frame(case: Case, page: Case) -> str:
    layout = _words(
        (
            case["vocab"],
            case["depth"],
            page["max_slots"],
            1 << 20,
            int(case["sampled"]),
            0,
        )
    )
    counts = f"{case['round']}u, {case['step_sequence']}u, {case['reply_sequence']}u"
    parts = ", ".join(
        _bytes(digits) for digits in (case["step"], case["reply"], page["page"])
    )
    session = _bytes(case["session"])
    return f'{{"{case["name"]}", {layout}, {case["n"]}u, {session}, {counts}, {parts}}}'


def _bad(case: Case, names: list[str]) -> str:
    reason = REASONS.index(case["reason"]) + 1
    base = names.index(case["base"])
    return f'{{"{case["why"]}", {base}, {reason}, {_bytes(case["reply"])}}}'


def _blocks() -> Iterable[str]:
    for case in _cases("philox"):
        yield f"{{{', '.join(_words(case[part]) for part in BLOCK)}}}"
    for case in _cases("draws"):
        where = (case["round"], case["position"])
        counter = [word >> shift & 0xFFFFFFFF for word in where for shift in (0, 32)]
        for domain in ("proposal", "accept", "residual"):
            key, words = case[domain]["key"], case[domain]["words"]
            yield f"{{{_words(counter)}, {_words(key)}, {_words(words)}}}"


BLOCK = ("counter", "key", "words")


def _proposal(case: Case) -> str:
    rule = RULES.index(case["rule"])
    answer = f"{_ints(case['ids'])}, {_ints(case['counts'])}"
    draw = f"{case['draw24']}u, {case['token']}"
    return f"{{{case['vocab']}u, {rule}, {_bytes(case['logits'])}, {answer}, {draw}}}"


def _layout(case: Case) -> str:
    offsets = case["offsets"]
    # What a greedy layout lacks stands, empty, at the end.
    at = _ints(offsets.get(field, offsets["end"]) for field in FIELDS)
    return f"{{{case['max_slots']}u, {case['depth']}u, {int(case['sampled'])}u, {at}}}"


def _mode(case: Case) -> str:
    if case["failed"]:
        return "TARGET" if case["temperature_positive"] else "TARGET_GREEDY"
    return "SAMPLED" if case["temperature_positive"] else "GREEDY"


def _flat(rows: Iterable[Iterable[int]]) -> str:
    """All numbers of some rows, as an array without a name."""
    return f"(const int32_t[]){_ints(number for row in rows for number in row)}"


def _draw(case: Case) -> str:
    keys = VerifyKeys.derive(
        bytes.fromhex(case["epoch"]),
        case["slot"],
        case["generation"],
        case["user_seed"],
    )
    sizes = (case["vocab"], case["depth"], len(case["ids"][0]))
    parts = [
        *(f"{size}u" for size in sizes),
        f"PP3_MODE_{_mode(case)}",
        f"{case['round']}u, {case['position']}u",
        *map(_words, keys),
        _bytes("".join(case["target_probs"])),
        *(_flat(rows) for rows in ([case["drafts"]], case["ids"], case["counts"])),
        f"{len(case['emitted'])}u",
        _flat([case["emitted"]]),
    ]
    return f"{{{', '.join(parts)}}}"


def _prefixes(vocab: int, depth: int) -> Iterable[str]:
    for length in range(depth + 1):
        for tokens in product(range(vocab), repeat=length):
            yield "".join(map(str, tokens))


def _law(case: Case) -> str:
    vocab, models = case["vocab"], case["conditionals"]
    none = {"p": None, "q": None}
    rows = [models.get(at, none) for at in _prefixes(vocab, case["depth"])]
    numbers = [
        [number for row in rows for number in row[part] or [0] * vocab]
        for part in ("p", "q")
    ]
    emitted = (
        f"{{{len(tokens)}u, {_ints(map(int, tokens))}, {above}.0 / {below}}}"
        for tokens, (above, below) in case["emitted"].items()
    )
    head = f"{vocab}u, {case['depth']}u, {case['denominator']}u"
    arrays = ", ".join(f"(const uint32_t[]){_words(row)}" for row in numbers)
    law = f"(const struct known_emission[]){{{', '.join(emitted)}}}"
    return f"{{{head}, {arrays}, {len(case['emitted'])}u, {law}}}"


def _table(kind: str, name: str, rows: Iterable[str]) -> str:
    lines = list(rows)
    body = ",\n".join(lines)
    head = f"const struct {kind} {name}[] = {{\n{body}\n}};\n"
    return f"{head}const unsigned n_{name} = {len(lines)};\n"


def write(target: Path) -> Path:
    """Writes the tables.

    Args:
        target: The C file to be made.

    Returns:
        The file.
    """
    frames, pages = _cases("frames"), _cases("pages")
    of_base = {page["base"]: page for page in pages}
    names = [frame["name"] for frame in frames]
    refused = (
        f'{{"{case["why"]}", {_bytes(case["logits"])}}}'
        for case in _cases("proposals_refused")
    )
    whole = (_frame(frame, of_base[frame["name"]]) for frame in frames)
    bad = (_bad(case, names) for case in _cases("bad_replies"))
    proposals = map(_proposal, _cases("proposals"))
    text = ['#include "known.h"\n\n#include "verify/sparse.h"\n']
    text += [
        _table("known_frame", "known_frames", whole),
        _table("known_bad", "known_bads", bad),
        _table("known_block", "known_blocks", _blocks()),
        _table("known_proposal", "known_proposals", proposals),
        _table("known_refused", "known_refusals", refused),
        _table("known_draw", "known_draws", map(_draw, _cases("verify_draws"))),
        _table("known_law", "known_laws", map(_law, _cases("verify_exact"))),
        _table("known_layout", "known_layouts", map(_layout, _cases("layouts"))),
    ]  # fmt: skip
    target.write_text("\n".join(text), encoding="ascii")
    return target
