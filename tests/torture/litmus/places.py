"""Every atomic operation of the ring's text, with the orders written there.

A shape says which places it stands for and has their orders from here, so that a change
of an order in the text changes the shape.
"""

import re
from dataclasses import dataclass
from functools import cache

from relacy import mutate

# ring.c is no protocol text, but E7 begins in it.
TEXT = (*mutate.TEXT, "ring.c")


@dataclass(frozen=True)
class Place:
    """One operation.

    Attributes:
        name: Function, operation and word: `pp3_claim: STORE state`; a second one of
            the same ends with 2.
        file: Where.
        macro: LOAD, STORE, CAS, ADD or FENCE.
        starts: Where each of its orders begins in the file.
        orders: As written: one, or two of a CAS: winning, losing.
    """

    name: str
    file: str
    macro: str
    starts: tuple[int, ...]
    orders: tuple[str, ...]


def _place(file: str, text: str, call: re.Match[str]) -> Place:
    macro = call[1]
    spans = list(mutate._arguments(text, call.end()))
    word = "" if macro == "FENCE" else f" {mutate._word(text[slice(*spans[0])])}"
    name = f"{mutate._function(text, call.start())}: {macro}{word}"
    starts, orders = [], []
    for index in mutate.ORDERS[macro]:
        begin, end = spans[index]
        token = re.match(r"\s*(\w+)", text[begin:end])
        if token is None:
            raise ValueError(f"{file}: no order in {name}")
        starts.append(begin + token.start(1))
        orders.append(token[1])
    return Place(name, file, macro, tuple(starts), tuple(orders))


@cache
def places() -> dict[str, Place]:
    """All of them, by name, in the order of the text."""
    found: dict[str, Place] = {}
    for file in TEXT:
        text = (mutate.RING / file).read_text()
        for call in re.finditer(r"\bPP3_(LOAD|STORE|CAS|ADD|FENCE)\(", text):
            place = _place(file, text, call)
            name, number = place.name, 1
            while name in found:
                number += 1
                name = f"{place.name} {number}"
            found[name] = Place(name, file, place.macro, place.starts, place.orders)
    return found


@cache
def weakened() -> dict[str, tuple[str, int, str]]:
    """The mutants of mutate.py that weaken an order.

    Returns:
        For each mutant's name the place, which of its orders, and the weaker order.
    """
    by_start = {
        (place.file, start): (place.name, index)
        for place in places().values()
        for index, start in enumerate(place.starts)
    }
    return {
        f"{site.place} {site.order} -> {weaker}": (
            *by_start[site.file, site.start],
            weaker,
        )
        for site in mutate.sites()
        for weaker in mutate.WEAKER[site.macro, site.order]
    }


@cache
def weakened_beside() -> dict[str, tuple[str, int, str]]:
    """As `weakened`, for what stands outside the protocol's text."""
    return {
        f"{place.name} {order} -> {weaker}": (place.name, index, weaker)
        for place in places().values()
        if place.file not in mutate.TEXT
        for index, order in enumerate(place.orders)
        for weaker in mutate.WEAKER.get((place.macro, order), ())
    }
