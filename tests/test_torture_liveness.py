"""The model that Spin searches does what the ring's text does, touch by touch."""

import re

import pytest
from torture.figure import CORE
from torture.litmus import places
from torture.liveness import figures, spin

MODEL = spin.MODEL.read_text()
PROTOCOL = {"ring.h", "engine.h", "proxy.h", "wait.h", "watch.h"}
# Touches of the protocol's text that the model leaves out, and why.
LEFT_OUT = {
    "pp3_bad: STORE bad_word": "the error's text",
    "pp3_ranks_here: LOAD life": "all ranks are attached before the model begins",
    "pp3_claim: FENCE": "E8: that it is slept over no deadline; Relacy and a shape",
    "pp3_claim: LOAD wake_at_ns": "the same",
    "pp3_watch_look: STORE wake_at_ns": "the same; here the watchdog never sleeps",
    "pp3_watch_look: FENCE": "the same",
    "pp3_watch_sleeps: STORE wake_at_ns": "the same",
    "pp3_note_late: LOAD seq": "a statistic",
    "pp3_wait: LOAD deadline_ns": "how long it spins before it sleeps",
    "pp3_release: LOAD ack": "a rank releases once here",
    "pp3_release: LOAD state": "a check of the argument",
    "pp3_named: LOAD state": "no owner's id is given again here",
    "pp3_named: LOAD held": "the same",
    "pp3_owner_add: ADD last_owner": "the same",
    "pp3_owner_add: LOAD life": "the same",
    "pp3_owner_add: CAS life": "the same",
}


def _in_text():
    found = places.places().values()
    return [place for place in found if place.file in PROTOCOL]


def _in_model():
    comments = re.findall(r"/\*(.*?)\*/", MODEL, re.DOTALL)
    pattern = r"\bpp3_\w+: (?:LOAD|STORE|CAS|ADD|FENCE)(?: \w+)?(?: \d)?"
    return [name for text in comments for name in re.findall(pattern, text)]


def test_every_touch_of_the_text_stands_in_the_model():
    """A new operation on a shared word asks for a step here, or a reason."""
    missing = {place.name for place in _in_text()} - set(_in_model())
    assert missing == set(LEFT_OUT)


def test_every_touch_of_the_model_stands_in_the_text():
    """What the text has lost may not live on in the model."""
    names = {place.name for place in _in_text()}
    assert [name for name in _in_model() if name not in names] == []


@pytest.mark.parametrize(
    "function", ["pp3_sleep", "pp3_woke", "pp3_fail", "pp3_submit"]
)
def test_touches_of_a_function_stand_in_the_order_of_the_text(function):
    """Where their order is what the argument is about."""
    text = [p.name for p in _in_text() if p.name.startswith(f"{function}:")]
    order = []
    for name in _in_model():
        if name.startswith(f"{function}:") and name not in order:
            order.append(name)
    assert order == [name for name in text if name in order]


def test_the_table_of_ring_h_is_read_whole():
    """Every line of it gives its transitions."""
    rows = figures.rows()
    assert rows == [
        ("FREE", "CLAIMED", "claim"),
        ("CLAIMED", "WRITING", "take"),
        ("CLAIMED", "FAILED+2", "resolve"),
        ("CLAIMED", "FAILED+8", "cancel"),
        ("WRITING", "PUBLISHED", "publish"),
        ("WRITING", "FAILED+2", "resolve"),
        ("WRITING", "FAILED+7", "resolve"),
        ("WRITING", "FAILED+8", "cancel"),
        ("WRITING", "FAILED+8", "resolve"),
        ("PUBLISHED", "CLAIMED", "claim"),
        ("FAILED+2", "CLAIMED", "claim"),
        ("FAILED+7", "CLAIMED", "claim"),
        ("FAILED+8", "CLAIMED", "claim"),
    ]


def test_another_table_makes_another_model():
    """The transitions are not written down a second time."""
    text = (CORE / "ring" / "ring.h").read_text()
    old = " * WRITING    its owner            PUBLISHED  publish"
    assert text.count(old) == 1
    changed = spin.table(text.replace(old, old.replace("PUBLISHED", "CLAIMED  ")))
    assert ("WRITING", "CLAIMED", "publish") in changed
    assert spin.promela(changed) != spin.promela(figures.rows())


def test_an_unfinished_search_proves_nothing():
    """Neither one that ran out of depth or memory, nor one that says nothing."""
    whole = "depth reached 5, errors: 0\n     7 states, stored\n"
    assert spin._said(whole).wrong == ""
    assert (
        "too small" in spin._said(f"error: max search depth too small\n{whole}").wrong
    )
    assert "not comp" in spin._said(f"Warning: Search not completed\n{whole}").wrong
    assert spin._said("").wrong
    assert spin._said(whole.replace("errors: 0", "errors: 1")).wrong
