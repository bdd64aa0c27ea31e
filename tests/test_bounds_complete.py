"""Figure 11 leaves no function out that takes bytes or words of a peer."""

import re

from torture.bounds.harnesses import ELSEWHERE, HARNESSES
from torture.figure import CORE

HEADERS = (
    "layout/accept.h", "layout/page.h", "layout/step.h", "layout/crc.h",
    "layout/draft.h", "proxy/exchange.h", "ring/ring.h", "ring/proxy.h", "ring/wait.h",
    "ring/note.h", "ring/slots.h", "ring/words.h",
)  # fmt: skip
# Bytes of a frame, a request or a header; ids and q; the words of an entry or record.
TAKEN = re.compile(
    r"const uint8_t|const void \*data|\bint32_t id\[|const int32_t \*from|"
    r"const float q\[|struct pp3_shape \*"
)
READERS = {
    f"pp3_{verb}"
    for verb in [
        "read",
        "look",
        "next",
        "take",
        "page",
        "request",
        "publish",
        "give_back",
        "sweep",
        "release",
        "note_read",
        "slot_read",
        "take_step",
        "answer",
        "answer_failed",
    ]
}
# Of the engine's own process, whose arguments are its own: no peer's.
OWN = {"pp3_ring_create", "pp3_record_fill"}
DECLARED = re.compile(
    r"^(?:static inline )?[a-z][\w ]*?[ *](pp3_\w+)\(([^;{]*?)\)\s*[;{]", re.MULTILINE
)


def declared():
    """Name -> parameters, of every function of the headers."""
    found = {}
    for header in HEADERS:
        text = (CORE / header).read_text(encoding="utf-8")
        for name, parameters in DECLARED.findall(text):
            found[name] = " ".join(parameters.split())
    return found


def test_every_function_that_takes_a_peers_bytes_is_proved_or_named():
    """A new decoder comes with a harness, or with the reason why it has none."""
    found = declared()
    proved = {name for harness in HARNESSES for name in harness.proves}
    taking = {name for name, told in found.items() if TAKEN.search(told)}
    assert len(taking) > 15
    assert taking >= {"pp3_accept", "pp3_step_check", "pp3_reply_round", "pp3_sum_q"}
    assert found.keys() >= READERS
    assert (taking | READERS) - proved - ELSEWHERE.keys() - OWN == set()


def test_what_is_proved_or_named_is_there():
    """A harness of a function that is gone proves nothing."""
    named = {name for harness in HARNESSES for name in harness.proves}
    gone = (named | ELSEWHERE.keys()) - declared().keys()
    assert gone <= {"pp3_fail", "pp3_resolve", "pp3_expire"}  # of watch.h and ring.h
