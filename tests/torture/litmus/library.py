"""Reads the two files of shapes: the literature's and those of the ring's edges."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torture.litmus.shape import Shape

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Known:
    """A shape of the literature with orders, and its answer.

    Attributes:
        shape: It.
        allowed: Whether RC11 allows what is bad.
    """

    shape: Shape
    allowed: bool


@dataclass(frozen=True)
class Edge:
    """A shape of the ring's text.

    Attributes:
        shape: It; what is bad must be forbidden.
        faults: The same with a fault of faults.txt in it, by the fault's name; what is
            bad must be allowed.
    """

    shape: Shape
    faults: dict[str, Shape]


def _blocks(file: str) -> list[tuple[str, str, list[str]]]:
    found: list[tuple[str, str, list[str]]] = []
    for line in (HERE / file).read_text().splitlines():
        if line.startswith("= "):
            name, _, about = line[2:].partition(": ")
            found.append((name, about, []))
        elif found and line.strip():
            found[-1][2].append(line)
    return found


@cache
def literature() -> list[Known]:
    """Every shape of literature.txt with every line of orders it has."""
    known = []
    for name, about, lines in _blocks("literature.txt"):
        answers = [
            line for line in lines if line.split()[0] in {"allowed", "forbidden"}
        ]
        body = [line for line in lines if line not in answers]
        for answer in answers:
            verdict, *pairs = answer.split()
            letters = dict(pair.split("=") for pair in pairs)
            text = "\n".join(
                " ".join(
                    [line[: len(line) - len(line.lstrip())] + line.split()[0]]
                    + [letters.get(word, word) for word in line.split()[1:]]
                )
                for line in body
            )
            shape = Shape(" ".join([name, *pairs]), about, text)
            known.append(Known(shape, verdict == "allowed"))
    return known


@cache
def edges() -> list[Edge]:
    """Every shape of edges.txt with its faults."""
    found = []
    for name, about, lines in _blocks("edges.txt"):
        cut = next(
            (i for i, x in enumerate(lines) if x.startswith("fault ")), len(lines)
        )
        shape = Shape(name, about, "\n".join([*lines[:cut], ""]))
        faults: dict[str, list[tuple[list[str], list[str]]]] = {}
        for line in lines[cut:]:
            mark, rest = line[:1], line[1:]
            if line.startswith("fault "):
                edits = faults[line.removeprefix("fault ")] = []
            elif mark == "-":
                if not edits or edits[-1][1]:
                    edits.append(([], []))
                edits[-1][0].append(rest)
            else:
                edits[-1][1].append(rest)
        changed = {
            fault: shape.changed(
                f"{name}: {fault}",
                *(
                    ("\n".join(old) + "\n", "".join(x + "\n" for x in new))
                    for old, new in own
                ),
            )
            for fault, own in faults.items()
        }
        found.append(Edge(shape, changed))
    return found


# Faults of faults.txt that no shape has, and why.
BEYOND = {
    "cancel waits for ranks that were told nothing": (
        "a claim that is refused for ever: no execution of it ends badly"
    ),
    "a claim tried again disposes of the page again": (
        "the engine's private lists, and one thread: no two threads take part"
    ),
}


@cache
def bodies() -> list[Shape]:
    """Each shape once: the edges', then the literature's with their first orders."""
    first: dict[str, Shape] = {}
    for known in literature():
        first.setdefault(known.shape.about, known.shape)
    return [*(edge.shape for edge in edges()), *first.values()]
