"""The exact law of what verification emits, by enumeration in rational numbers.

For small vocabularies: every drafted path is walked and every chance is a fraction.
Two questions are answered. What law does ``standard-v1`` have (:func:`emitted_law`),
and is it the target's (:func:`completed_law` against :func:`target_law`)? What law does
a *program* have whose uniforms are integers (:func:`implementation_law`)?

Source: Leviathan et al., "Fast inference from transformers via speculative decoding"
(arXiv:2211.17192), Algorithm 1 and appendix A.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from pp3shm.errors import ConfigError
from pp3shm.rng import ACCEPT_BITS, RESIDUAL_BITS

Prefix = tuple[int, ...]
Law = dict[Prefix, Fraction]
"""Emitted tokens to their chance; only chances above 0 are listed."""


class Conditional(NamedTuple):
    """Both models' next-token distributions after a prefix.

    Attributes:
        p: the target's, one fraction per token.
        q: the drafter's; None where nothing is drafted any more.
    """

    p: Sequence[Fraction]
    q: Sequence[Fraction] | None


Conditionals = Mapping[Prefix, Conditional]
"""By prefix, of every length from 0 to ``depth``."""

Decide = Callable[[Prefix, Sequence[int], Sequence[int]], Sequence[int]]
"""A verifier under test: drafts (n), acceptance integers of 29 bits (n), residual
integers of 53 bits (n + 1), to the tokens it emits."""


def emitted_law(conditionals: Conditionals, depth: int) -> Law:
    """The law of the tokens that ``standard-v1`` emits in one round.

    Args:
        conditionals: both models, by drafted prefix.
        depth: drafts of a round.

    Returns:
        The law over tuples of 1 to depth + 1 tokens.

    Raises:
        ConfigError: a prefix is missing, or is no distribution.
    """
    law: defaultdict[Prefix, Fraction] = defaultdict(Fraction)

    def walk(prefix: Prefix, chance: Fraction) -> None:
        p, q = _looked_up(conditionals, prefix, drafted=len(prefix) < depth)
        if len(prefix) == depth:
            for token, share in enumerate(p):
                law[*prefix, token] += chance * share
            return
        rejected = Fraction(0)
        for draft, share in enumerate(q):
            if share:
                accept = min(Fraction(1), p[draft] / share)
                rejected += share * (1 - accept)
                if accept:
                    walk((*prefix, draft), chance * share * accept)
        residual = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
        if rejected:  # then the residual has mass: exactly `rejected`
            mass = sum(residual)
            for token, weight in enumerate(residual):
                law[*prefix, token] += chance * rejected * weight / mass

    walk((), Fraction(1))
    return _listed(law)


def target_law(conditionals: Conditionals, length: int) -> Law:
    """The target's own law of ``length`` tokens.

    Args:
        conditionals: the models, by prefix; q is not looked at.
        length: tokens, at most depth + 1.

    Raises:
        ConfigError: a prefix is missing, or is no distribution.
    """
    return completed_law({(): Fraction(1)}, conditionals, length)


def completed_law(emitted: Law, conditionals: Conditionals, length: int) -> Law:
    """A law of emitted tokens, continued by the target up to ``length`` tokens.

    Verification loses nothing exactly if this equals :func:`target_law` of the same
    length: what later rounds emit is the target's given what this one emitted.

    Args:
        emitted: law over tuples of at most ``length`` tokens.
        conditionals: the models, by prefix.
        length: tokens, at most depth + 1.

    Raises:
        ConfigError: a prefix is missing, or is no distribution.
    """
    law: defaultdict[Prefix, Fraction] = defaultdict(Fraction)

    def walk(prefix: Prefix, chance: Fraction) -> None:
        if len(prefix) == length:
            law[prefix] += chance
            return
        p, _ = _looked_up(conditionals, prefix, drafted=False)
        for token, share in enumerate(p):
            if share:
                walk((*prefix, token), chance * share)

    for prefix, chance in emitted.items():
        walk(prefix, chance)
    return _listed(law)


def drafted_law(conditionals: Conditionals, depth: int) -> Law:
    """The drafter's law of ``depth`` tokens.

    Args:
        conditionals: the models, by prefix.
        depth: drafts of a round.

    Raises:
        ConfigError: a prefix is missing, or is no distribution.
    """
    vocab = len(_looked_up(conditionals, (), drafted=True)[1])
    law: Law = {}
    for path in product(range(vocab), repeat=depth):
        chance = Fraction(1)
        for i, token in enumerate(path):
            chance *= _looked_up(conditionals, path[:i], drafted=True)[1][token]
            if not chance:
                break
        else:
            law[path] = chance
    return law


def accepted_mass(conditional: Conditional) -> Fraction:
    """The chance that a draft is accepted: the sum of ``min(p, q)``."""
    p, q = conditional
    return sum((min(a, b) for a, b in zip(p, q or (), strict=True)), Fraction(0))


def implementation_law(decide: Decide, conditionals: Conditionals, depth: int) -> Law:
    """The exact law of a program that decides by integer uniforms.

    Along every drafted path the program is asked at the places where its answer
    changes, found by bisection: acceptance must be monotone in its integer (the lower
    the more willing) and the emitted token monotone in its own, as inverse CDFs are.
    The lengths of the intervals are the chances.

    Args:
        decide: the program.
        conditionals: both models, by drafted prefix; p as the program sees it.
        depth: drafts of a round.

    Returns:
        The law over the tokens it emits.

    Raises:
        ConfigError: a prefix is missing, or is no distribution.
    """
    law: defaultdict[Prefix, Fraction] = defaultdict(Fraction)
    never = 2**ACCEPT_BITS - 1  # the integer least likely to accept

    def walk(path: Prefix, chance: Fraction) -> None:
        if len(path) == depth:
            _spread(law, decide, (path, [0] * depth), depth, chance)
            return
        _, q = _looked_up(conditionals, path, drafted=True)
        for draft, share in enumerate(q):
            drafts = (*path, draft)
            if not share:
                continue
            taken = Fraction(_accepting(decide, drafts), 2**ACCEPT_BITS)
            if taken:
                walk(drafts, chance * share * taken)
            if taken < 1:
                accept = [0] * len(path) + [never]
                left = chance * share * (1 - taken)
                _spread(law, decide, (drafts, accept), len(path), left)

    walk((), Fraction(1))
    return _listed(law)


def _accepting(decide: Decide, drafts: Prefix) -> int:
    """How many integers accept the last draft, those of earlier drafts being 0."""
    low, high = 0, 2**ACCEPT_BITS
    residual = [0] * (len(drafts) + 1)
    while low < high:  # low integers accept, high and above do not
        middle = (low + high) // 2
        accept = [0] * (len(drafts) - 1) + [middle]
        if len(decide(drafts, accept, residual)) > len(drafts):
            low = middle + 1
        else:
            high = middle
    return low


def _spread(
    law: dict[Prefix, Fraction],
    decide: Decide,
    given: tuple[Prefix, list[int]],
    at: int,
    chance: Fraction,
) -> None:
    """Adds what is emitted when the residual integer of place ``at`` decides."""
    drafts, accept = given

    def emitted(bits: int) -> Prefix:
        residual = [0] * (len(drafts) + 1)
        residual[at] = bits
        return tuple(decide(drafts, accept, residual))

    def split(low: int, high: int, first: Prefix, last: Prefix) -> None:
        if first == last:
            law[first] += chance * Fraction(high - low + 1, 2**RESIDUAL_BITS)
            return
        middle = (low + high) // 2
        left, right = emitted(middle), emitted(middle + 1)
        split(low, middle, first, left)
        split(middle + 1, high, right, last)

    top = 2**RESIDUAL_BITS - 1
    split(0, top, emitted(0), emitted(top))


def _looked_up(
    conditionals: Conditionals, prefix: Prefix, *, drafted: bool
) -> tuple[Sequence[Fraction], Sequence[Fraction]]:
    found = conditionals.get(prefix)
    place = f"conditionals[{','.join(map(str, prefix))}]"
    if found is None or (drafted and found.q is None):
        raise ConfigError(place, "p and q" if drafted else "p", found)
    for name, row in zip(("p", "q"), found, strict=True):
        if row is not None and (sum(row) != 1 or min(row) < 0):
            raise ConfigError(f"{place}.{name}", "a distribution", row)
    return found.p, found.q or ()


def _listed(law: Mapping[Prefix, Fraction]) -> Law:
    return {tokens: chance for tokens, chance in sorted(law.items()) if chance}
