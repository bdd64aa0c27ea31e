"""docs/protocol.md says of every atomic access of the ring what the text says."""

import re
from pathlib import Path

from relacy import mutate

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
FILES = (*mutate.TEXT, "ring.c", "watchdog.c", "trace.h", "recorder.c")
ROW = re.compile(r"^\| `(\w+: [A-Z]+[^`]*)` \| ([\w, ]+) \| (.+) \|$", re.MULTILINE)


def _of_the_page() -> list[tuple[str, str]]:
    return [(row[1], row[2]) for row in ROW.finditer(PAGE.read_text())]


def test_every_access_stands_on_the_page_with_its_order():
    """In the order of the text, each once, and none that is no more."""
    found = [(a.place, ", ".join(a.orders)) for a in mutate.accesses(FILES)]
    assert _of_the_page() == found


def test_every_file_with_atomic_accesses_is_on_the_page():
    """Whoever adds a file of them has to describe it; a benchmark's is no protocol."""
    core = mutate.RING.parent
    others = {
        path.relative_to(core).as_posix()
        for path in [*core.rglob("*.h"), *core.rglob("*.c")]
        if path.name not in {*FILES, "atomics.h", "_core.c"}
        and path.parent != core / "bench"
        and mutate.CALL.search(path.read_text())
    }
    assert others == set()


def test_every_reason_is_given():
    """A word or two at least."""
    reasons = [row[3].strip() for row in ROW.finditer(PAGE.read_text())]
    assert min(map(len, reasons)) > 8


def test_every_crash_point_is_named_in_the_table_of_deaths():
    """Or is one of those that leave nothing behind."""
    points = re.findall(r"PP3_AT_(\w+)", (mutate.RING / "words.h").read_text())
    quiet = {"DISPOSED", "FILLED", "GIVEN", "FAILING"}
    deaths = PAGE.read_text().split("## 5.")[1].split("## 6.")[0]
    named = {point for point in points if f"`{point}`" in deaths}
    assert named | quiet == set(points)
    assert not named & quiet
