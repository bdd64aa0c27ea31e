"""The language of the shapes: a few threads of a few lines.

    start state=1           what is not 0 before the threads begin
    proxy:                  a thread
      put page 7            bytes, whose races are found
      swap w state 1 3 @ pp3_publish: CAS state
    rank:
      load s state @ pp3_spin: LOAD state
      if s == 3
        get p page
    bad s == 3 and p != 7   what no execution may end with

`load R X`, `store X V`, `add R X N`, `swap R X SEEN NEW` and `fence` end with their
order (a swap with two: winning, losing) or with the place in the text that has it. A
register is assigned in one line and is 0 where that line was not reached; `final X` is
what X holds in the end.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from random import Random

from torture.litmus import places

# How many orders a line has, by its verb; the macro that a place of it is.
ORDERS = {"load": 1, "store": 1, "add": 1, "swap": 2, "fence": 1, "get": 0, "put": 0}
MACROS = {
    "load": "LOAD",
    "store": "STORE",
    "add": "ADD",
    "swap": "CAS",
    "fence": "FENCE",
}
STRONG = ("relaxed", "acquire", "release", "acq_rel")

Orders = tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """One operation.

    Attributes:
        verb: Of ORDERS.
        register: What it assigns, or nothing.
        word: What it touches; nothing for a fence.
        values: Expressions: the value stored or added; of a swap seen and new.
        site: Where its orders begin among the shape's.
        conditions: Of the ifs around it.
    """

    verb: str
    register: str
    word: str
    values: tuple[ast.expr, ...]
    site: int
    conditions: tuple[ast.expr, ...]


@dataclass
class Shape:
    """A program, what is forbidden, and where its orders come from.

    Attributes:
        name: Of the shape.
        about: What it is, in a few words.
        text: In the language above.
    """

    name: str
    about: str
    text: str
    start: dict[str, int] = field(default_factory=dict)
    threads: dict[str, list[Line]] = field(default_factory=dict)
    bad: ast.expr = field(default_factory=lambda: ast.Constant(value=False))
    orders: Orders = ()
    places: dict[int, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        thread = ""
        conditions: list[tuple[int, ast.expr]] = []
        for raw in self.text.splitlines():
            line, indent = raw.strip(), len(raw) - len(raw.lstrip())
            if not line:
                continue
            while conditions and indent <= conditions[-1][0]:
                conditions.pop()
            verb, _, rest = line.partition(" ")
            if verb == "start":
                pairs = (pair.split("=") for pair in rest.split())
                self.start.update({word: int(value) for word, value in pairs})
            elif verb == "bad":
                self.bad = expression(rest)
            elif verb == "if":
                conditions.append((indent, expression(rest)))
            elif line.endswith(":"):
                thread = line[:-1]
                self.threads[thread] = []
            else:
                tests = tuple(test for _, test in conditions)
                self.threads[thread].append(self._line(verb, rest, tests))

    def _line(self, verb: str, rest: str, conditions: tuple[ast.expr, ...]) -> Line:
        body, at, place = rest.partition("@")
        words, site = body.split(), len(self.orders)
        if at:
            found = places.places().get(place.strip())
            if found is None:
                raise KeyError(f"{self.name}: no place {place.strip()} in the text")
            if found.macro != MACROS[verb]:
                raise ValueError(f"{self.name}: {verb} is no {found.macro}")
            self.orders += found.orders
            for index in range(len(found.orders)):
                self.places[site + index] = (found.name, index)
        elif ORDERS[verb]:
            self.orders += tuple(words[-ORDERS[verb] :])
            words = words[: -ORDERS[verb]]
        register = words.pop(0) if verb in {"load", "add", "swap", "get"} else ""
        word = words.pop(0) if verb != "fence" else ""
        values = tuple(map(expression, words))
        return Line(verb, register, word, values, site, conditions)

    @cached_property
    def choices(self) -> dict[tuple[str, int], tuple[str, ...]]:
        """The orders that may be chosen.

        Any for what stands for a place of the text, the same for all lines of one
        place; where there are no places, any for all. seq_cst only where it is written.
        """
        found = {}
        for _, line in self.lines:
            for index in range(ORDERS[line.verb]):
                site = line.site + index
                if self.places and site not in self.places:
                    continue
                written = self.orders[site]
                found[self._owner(site)] = _choices(line.verb, index, written)
        return found

    def _owner(self, site: int) -> tuple[str, int]:
        return self.places.get(site, (f"line {site}", 0))

    def assignments(self, most: int) -> list[Orders]:
        """Every way to choose, or so many of them, drawn by the shape's name."""
        ways = list(self.choices.values())
        count = prod(map(len, ways))
        numbers: Iterable[int] = range(count)
        if count > most:
            numbers = sorted(Random(self.name).sample(range(count), most))
        return [self._assignment(number) for number in numbers]

    def _assignment(self, number: int) -> Orders:
        chosen = {}
        for owner, ways in self.choices.items():
            number, which = divmod(number, len(ways))
            chosen[owner] = ways[which]
        return tuple(
            chosen.get(self._owner(site), own) for site, own in enumerate(self.orders)
        )

    @cached_property
    def lines(self) -> list[tuple[str, Line]]:
        """Every operation with its thread."""
        return [(name, line) for name, own in self.threads.items() for line in own]

    @cached_property
    def words(self) -> dict[str, bool]:
        """Every word, and whether it is bytes."""
        return {
            line.word: line.verb in {"get", "put"}
            for _, line in self.lines
            if line.word
        }

    def with_order(self, place: str, index: int, order: str) -> Orders:
        """Its orders with that of a place changed, wherever it stands for the place."""
        return tuple(
            order if self.places.get(site) == (place, index) else own
            for site, own in enumerate(self.orders)
        )

    def changed(self, name: str, *edits: tuple[str, str]) -> "Shape":
        """The shape with lines replaced.

        Raises:
            ValueError: A line is not there exactly once.
        """
        text = self.text
        for old, new in edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {text.count(old)} times: {old}")
            text = text.replace(old, new)
        return Shape(name, self.about, text)


def _choices(verb: str, index: int, written: str) -> tuple[str, ...]:
    if verb == "load" or (verb, index) == ("swap", 1):
        return ("relaxed", "acquire")
    if verb == "store":
        return ("relaxed", "release")
    return (*STRONG[:4], *(("seq_cst",) if written == "seq_cst" else ()))


def expression(text: str) -> ast.expr:
    """Parses `s == 3 and p != 7`; `final x` is a name with a blank."""
    return ast.parse(re.sub(r"\bfinal (\w+)", r"final__\1", text), mode="eval").body
