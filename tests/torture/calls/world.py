"""What survives a victim of kills.py, and what has to be so at the end."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from pp3shm.errors import Pp3Error, RegionError
from pp3shm.ring import segments
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import EngineEnd, ProxyEnd

SHAPE = Shape(
    rounds=2,
    page_bytes=64,
    request_bytes=64,
    failed_bytes=16,
    head_bytes=16,
    slots=1,
    max_positions=4,
    ranks=2,
)
patience_s = [60.0]
"""What is not so by then never will be; far above what a loaded machine takes."""


class WrongError(Exception):
    """What no try may show."""


def expect(what: str, *, holds: bool) -> None:
    """Raises WrongError unless it holds."""
    if not holds:
        raise WrongError(what)


def names_begin_with_the_process() -> None:
    """From now on the names of regions made here tell by whom."""

    def token(size: int) -> str:
        return f"{os.getpid():08x}" + os.urandom(size - 4).hex()

    segments.secrets.token_hex = token


def make_engine(kind: str) -> EngineEnd:
    """A region and its engine's end."""
    names_begin_with_the_process()
    region = Region.create(SHAPE, layout_id=bytes(32), kind=kind)
    return EngineEnd(region, bytes(48))


def names_of(pid: int) -> list[str]:
    """The names in /dev/shm that a process made by ``make_engine``."""
    begin = f"pp3shm-{pid:08x}"
    return sorted(e.name for e in os.scandir("/dev/shm") if e.name.startswith(begin))


def descriptors() -> list[str]:
    """What is open here, by what it is."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except FileNotFoundError:
            continue  # that of the listing itself
    return sorted(found)


def mapped() -> int:
    """How many mappings of regions there are here."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sum("pp3shm-" in line for line in lines)


def until(what: str, holds: Callable[[], bool]) -> None:
    """Waits for something that another thread does."""
    last = time.monotonic() + patience_s[0]
    while not holds():
        expect(f"stuck: {what}", holds=time.monotonic() < last)
        time.sleep(0.001)


def rounds(engine: EngineEnd, n: int, release: Callable[[int], None] = int) -> None:
    """Rounds from claim to release, each byte looked at.

    Args:
        engine: The engine's end.
        n: How many.
        release: What other living ranks do with a ticket; nothing by default.
    """
    proxy = ProxyEnd.thread(engine)
    try:
        for _ in range(n):
            ticket = engine.step(bytes(8), time.monotonic_ns() + 10**11)
            word = proxy.take()
            expect(f"round {ticket} is taken", holds=word is not None)
            page = ticket.to_bytes(8, "little") * 8
            proxy.page(word or 0)[:] = page
            expect(f"round {ticket} is published", holds=proxy.publish(word or 0))
            outcome = engine.wait(ticket)
            whole = outcome.status == 0 and bytes(outcome.view) == page
            expect(f"round {ticket} is whole", holds=whole)
            engine.release(ticket)
            release(ticket)
    finally:
        engine.owner_dead(proxy.owner)
        proxy.close()


def next_create_sweeps(pid: int) -> None:
    """A region made now takes the names of a dead creator away, and leaves none."""
    make_engine("posix").close()
    expect(f"names left: {names_of(pid)}", holds=not names_of(pid))
    expect(f"names left: {names_of(os.getpid())}", holds=not names_of(os.getpid()))


def attached_or_refused(attach: Callable[[], object]) -> object | None:
    """A survivor's attach: whole, or an error that says why; never another one."""
    try:
        return attach()
    except RegionError:
        return None
    except (Pp3Error, OSError) as error:
        raise WrongError(f"an attach failed with {error!r}") from error
