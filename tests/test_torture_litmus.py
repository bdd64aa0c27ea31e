"""The shapes of the second opinion stand for the ring's text, and for all of it."""

import re
from itertools import pairwise

import pytest
from relacy import mutate
from torture.litmus import library, places
from torture.litmus.shape import Shape

EDGES = library.edges()
SHAPES = [edge.shape for edge in EDGES]


def _lines_of_functions(shape):
    """The lines of each thread with where they stand in the text, by function."""
    for own in shape.threads.values():
        by_function = {}
        for line in own:
            if line.site in shape.places and line.verb != "get":
                place = places.places()[shape.places[line.site][0]]
                function = place.name.split(":")[0]
                by_function.setdefault(function, []).append(place)
        yield from by_function.items()


def test_every_order_of_the_text_stands_in_a_shape():
    """A new operation with an order asks for a shape."""
    named = {owner for shape in SHAPES for owner in shape.places.values()}
    missing = [
        mutant
        for mutant, (place, index, _) in places.weakened().items()
        if (place, index) not in named
    ]
    assert missing == []


def test_every_fault_has_a_shape_or_a_reason_why_not():
    """The faults are those that the scenes plant."""
    known = {fault.name for fault in mutate.faults()} | {n for n, _ in mutate.CALLERS}
    shown = {fault for edge in EDGES for fault in edge.faults}
    assert shown <= known
    assert known - shown == set(library.BEYOND)


def test_every_edge_of_the_table_has_a_shape():
    """ring.h names them."""
    table = (mutate.RING / "ring.h").read_text().partition("#ifndef")[0]
    named = set(re.findall(r"^ \* (E\d) ", table, re.MULTILINE))
    assert {shape.name.split()[0] for shape in SHAPES} >= named
    assert len(named) == 8


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_lines_of_one_function_stand_in_the_order_of_the_text(shape):
    """Where the text turns two operations round, the shape has to follow."""
    for function, found in _lines_of_functions(shape):
        starts = [place.starts[0] for place in found]
        if len(set(starts)) < len(starts):
            continue  # a loop, or the function called twice
        names = [place.name for place in found]
        assert all(a < b for a, b in pairwise(starts)), f"{function}: {names}"


def test_every_shape_can_go_wrong():
    """A shape that no weakened order and no fault can make bad would show nothing."""
    refutable = {
        (place, index)
        for mutant, (place, index, _) in (
            places.weakened() | places.weakened_beside()
        ).items()
        if mutant not in mutate.EQUIVALENT
    }
    for edge in EDGES:
        assert edge.faults or refutable & set(edge.shape.places.values())


def test_a_place_that_is_gone_is_an_error():
    """A shape may not outlive what it stands for."""
    with pytest.raises(KeyError, match="pp3_gone: LOAD state"):
        Shape("", "", "a:\n  load x state @ pp3_gone: LOAD state\nbad x == 1")
    with pytest.raises(ValueError, match="load is no STORE"):
        Shape("", "", "a:\n  load x state @ pp3_claim: STORE state\nbad x == 1")


def test_a_changed_order_of_the_text_changes_the_shape(tmp_path, monkeypatch):
    """The orders are read, not written down again."""
    for path in mutate.RING.glob("*.[ch]"):
        text = path.read_text()
        if path.name == "proxy.h":
            old = "pp3_ticket(mine), release /* E5 */)"
            assert text.count(old) == 1
            text = text.replace(old, "pp3_ticket(mine), relaxed)")
        (tmp_path / path.name).write_text(text)
    body = next(s.text for s in SHAPES if s.name == "E5 sweep")
    before = Shape("", "", body).orders
    monkeypatch.setattr(mutate, "RING", tmp_path)
    places.places.cache_clear()
    try:
        after = Shape("", "", body).orders
    finally:
        monkeypatch.undo()
        places.places.cache_clear()
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 1
