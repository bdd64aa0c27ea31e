"""The ring's text with a switch at every memory order and at every planted fault.

The copy compiles once. With all switches off it is the text; a run turns one on, by its
number.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RING = ROOT / "pp3shm" / "ring"
FAULTS = Path(__file__).resolve().parent / "faults.txt"
ATOMICS = RING / "atomics.h"
PROTOCOL = ("words.h", "ring.h", "engine.h", "proxy.h", "wait.h", "watch.h")
TEXT = (*PROTOCOL, "slots.c", "note.c")

# The arguments of each macro that are orders, and what each is weakened to.
ORDERS = {"LOAD": (1,), "STORE": (2,), "CAS": (3, 4), "ADD": (2,), "FENCE": (0,)}
CALL = re.compile(r"\bPP3_(LOAD|STORE|CAS|ADD|FENCE)\(")
ORDER = re.compile(r"\w+")
WEAKER = {
    ("LOAD", "acquire"): ("relaxed",),
    ("STORE", "release"): ("relaxed",),
    ("ADD", "release"): ("relaxed",),
    ("CAS", "acquire"): ("relaxed",),
    ("CAS", "release"): ("relaxed",),
    ("CAS", "acq_rel"): ("acquire", "release"),
    ("FENCE", "seq_cst"): ("acq_rel",),
    ("FENCE", "acquire"): ("relaxed",),
    ("FENCE", "release"): ("relaxed",),
}


@dataclass(frozen=True)
class Site:
    """One memory order of the text.

    Attributes:
        number: Its switch.
        place: Function, operation and word, as `pp3_claim: STORE state`.
        start: Where the order's word begins in the file.
        macro: The operation.
        order: The order as written.
    """

    number: int
    file: str
    place: str
    start: int
    macro: str
    order: str


@dataclass(frozen=True)
class Mutant:
    """What one run plants.

    Attributes:
        name: What is wrong then.
        switch: The program's arguments that plant it.
    """

    name: str
    switch: tuple[str, ...]


@dataclass
class Edit:
    """In `file`, `old` becomes `new`; `PLANTED` in it is the switch."""

    file: str
    old: str = ""
    new: str = ""


@dataclass
class Fault:
    """A fault of the text's logic."""

    name: str
    edits: list[Edit]


def faults() -> list[Fault]:
    """The faults of faults.txt, numbered from 0."""
    found: list[Fault] = []
    for line in FAULTS.read_text().splitlines():
        mark, rest = line[:1], line[2:]
        if mark == "=":
            found.append(Fault(rest, []))
        elif mark == "@":
            found[-1].edits.append(Edit(rest))
        elif mark == "-":
            found[-1].edits[-1].old += f"\n{rest}" if found[-1].edits[-1].old else rest
        elif mark == "+":
            found[-1].edits[-1].new += f"\n{rest}" if found[-1].edits[-1].new else rest
    return found


# Faults of the callers, which the scenes play; machine.h has their numbers.
CALLERS = (
    ("a fenced proxy gives back before its last write", 100),
    ("a rank releases before it reads", 101),
    ("an owner is declared dead that is not", 102),
)


# Weakened orders that change nothing, and why. The scenes do not refute them.
EQUIVALENT = {
    "pp3_woke: ADD seq release -> relaxed": (
        "the seq_cst fence before it releases as well"
    ),
    "pp3_fail: CAS state acq_rel -> acquire": (
        "a failer has written nothing that anybody reads; what claim wrote is released "
        "by claim's store, whose release sequence the swap continues"
    ),
    "pp3_fail: CAS state acq_rel -> release": (
        "the load before, or the swap lost before, has acquired a word of this ticket "
        "and with it what claim wrote; take's swap in between releases nothing"
    ),
    "pp3_ranks_here: LOAD life acquire -> relaxed": (
        "only the pidfd is read behind it, after pp3_rank_gone's own acquire load of "
        "the same word, which can see nothing older"
    ),
    "pp3_reclaim: ADD held release -> relaxed": (
        "before it stand acquire loads, which nothing overtakes, and what is private "
        "to the engine"
    ),
    "pp3_named: LOAD held acquire -> relaxed": (
        "it would acquire from pp3_reclaim's subtraction, which releases nothing; that "
        "the addition is not missed is the acquire of the state words before it"
    ),
    "pp3_submit: ADD work_seq release -> relaxed": (
        "nobody reads work_seq: proxies sleep on the eventfd"
    ),
    "pp3_next: LOAD state acquire -> relaxed": (
        "the bell, stored after the state, is acquired before anything is used, and "
        "the swap acquires the word again"
    ),
    "pp3_take: CAS state acquire -> relaxed": (
        "pp3_next has acquired this very word and its bell"
    ),
    "pp3_owner_add: CAS life acq_rel -> acquire": (
        "whoever sees an owner living reads nothing that was written before; its proxy "
        "is told by a message"
    ),
    "pp3_owner_add: CAS life acq_rel -> release": (
        "the load before has acquired the value that the swap replaces"
    ),
    "pp3_owner_gone: CAS life acq_rel -> release": (
        "the caller saw the owner dead before, which is behind all that it did"
    ),
    "pp3_owner_gone: LOAD state acquire -> relaxed": (
        "it only chooses; pp3_fail loads the word again, with acquire"
    ),
}


def _arguments(text: str, start: int) -> Iterator[tuple[int, int]]:
    """The spans of a call's arguments; `start` is behind its parenthesis."""
    depth, begin, i = 0, start, start
    while True:
        if text.startswith("/*", i):
            i = text.index("*/", i) + 2
            continue
        character = text[i]
        if depth == 0 and character in ",)":
            yield begin, i
            begin = i + 1
            if character == ")":
                return
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        i += 1


def _word(pointer: str) -> str:
    """The last name of `&r->entries[e].state`: state."""
    bare = re.sub(r"\[[^]]*\]|\([^()]*\)", "", pointer)
    return re.findall(r"\w+", bare)[-1]


def _function(text: str, at: int) -> str:
    """The name of the function around a place: the last one that began at a margin."""
    heads = re.findall(r"^\w[^;\n]*?(\w+)\(", text[:at], re.MULTILINE)
    return heads[-1] if heads else "?"


@dataclass(frozen=True)
class Access:
    """One atomic access of the text.

    Attributes:
        file: Its name in pp3shm/ring.
        place: Function, operation and word, as `pp3_claim: STORE state`; a second one
            of the same kind in a function ends with 2.
        macro: The operation.
        orders: As written; two for a swap, of its success and of its loss.
        starts: Where the orders' words begin in the file.
    """

    file: str
    place: str
    macro: str
    orders: tuple[str, ...]
    starts: tuple[int, ...]


def accesses(files: Iterable[str] = TEXT) -> list[Access]:
    """Every atomic access.

    Args:
        files: Of pp3shm/ring.

    Returns:
        The accesses, in the order of the text.
    """
    found: list[Access] = []
    seen: dict[str, int] = {}
    for name in files:
        text = (RING / name).read_text()
        for call in CALL.finditer(text):
            macro = call[1]
            spans = list(_arguments(text, call.end()))
            word = "" if macro == "FENCE" else f" {_word(text[slice(*spans[0])])}"
            place = f"{_function(text, call.start())}: {macro}{word}"
            seen[place] = seen.get(place, 0) + 1
            if seen[place] > 1:
                place += f" {seen[place]}"
            tokens = [
                ORDER.search(text, *spans[index]) or call for index in ORDERS[macro]
            ]
            found.append(
                Access(
                    name,
                    place,
                    macro,
                    tuple(token[0] for token in tokens),
                    tuple(token.start() for token in tokens),
                )
            )
    return found


def sites() -> list[Site]:
    """Every memory order of the text that can be weakened.

    Returns:
        The sites, numbered from 1 in the order of the files.
    """
    found: list[Site] = []
    for access in accesses():
        for index, order in enumerate(access.orders):
            if (access.macro, order) not in WEAKER:
                continue
            place = access.place + (" lost" if index else "")
            found.append(
                Site(
                    len(found) + 1,
                    access.file,
                    place,
                    access.starts[index],
                    access.macro,
                    order,
                )
            )
    return found


def mutants() -> list[Mutant]:
    """Every order weakened by one step, then every fault.

    Returns:
        All of them, in the order of the text.
    """
    orders = [
        Mutant(
            f"{site.place} {site.order} -> {weaker}",
            ("order", str(site.number), weaker),
        )
        for site in sites()
        for weaker in WEAKER[site.macro, site.order]
    ]
    logic = [(fault.name, i) for i, fault in enumerate(faults())]
    return orders + [
        Mutant(name, ("fault", str(number))) for name, number in (*logic, *CALLERS)
    ]


def write_switched(target: Path) -> None:
    """Writes the text with its switches.

    Args:
        target: A directory; `ring/` and `orders.h` are made in it.

    Raises:
        ValueError: A fault's text is not in the file exactly once.
    """
    ring = target / "ring"
    ring.mkdir(parents=True, exist_ok=True)
    (ring / "atomics.h").write_text(ATOMICS.read_text())
    for name in ("slots.h", "note.h"):
        (ring / name).write_text((RING / name).read_text())
    every = sites()
    for name in TEXT:
        text = (RING / name).read_text()
        for site in reversed([s for s in every if s.file == name]):
            end = site.start + len(site.order)
            text = f"{text[:end]}_{site.number}{text[end:]}"
        for number, fault in enumerate(faults()):
            for edit in fault.edits:
                if edit.file == name:
                    text = _planted(text, edit, number)
        (ring / name).write_text(text)
    defines = [
        f"#define MO_{s.order}_{s.number} machine::order({s.number}, MO_{s.order})\n"
        for s in every
    ]
    (target / "orders.h").write_text("".join(defines))


def _planted(text: str, edit: Edit, number: int) -> str:
    if text.count(edit.old) != 1:
        message = f"{text.count(edit.old)} places in {edit.file} for: {edit.old}"
        raise ValueError(message)
    new = edit.new.replace("PLANTED", f"machine::planted({number})")
    return text.replace(edit.old, new)
