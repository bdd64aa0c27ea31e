"""Faults for a storm to find: put into its proxy process, and nowhere else.

``plant`` has the engine start its proxies by this file, which spoils the product's
modules in that process and then does what ``python -m pp3shm.proxy`` does. Each fault
hides from the product's own checks as well as it can: it is the storm that must see it.
"""

import random
import sys
from pathlib import Path

from pp3shm._core import ffi, lib
from pp3shm.layout.core import crc32
from pp3shm.layout.frames import HEADER_BYTES, Status
from pp3shm.link.lane import Lane
from pp3shm.link.staging import Arrival, Slots, SlotState
from pp3shm.proxy import __main__ as proxy_main
from pp3shm.proxy import proxy
from pp3shm.proxy.arrivals import Arrivals
from pp3shm.proxy.hands import Hands, Taken


def plant(name):
    """Proxies that are started from now on have the fault."""
    proxy.COMMAND = (sys.executable, "-P", str(Path(__file__).resolve()), name)


def no_quarantine():
    """A slot is free at its round's deadline; the late write lands in another's."""

    def fence(self, open_rounds):
        for slot, state in enumerate(self._state):
            if state is SlotState.POSTED and self._round[slot] not in open_rounds:
                self._state[slot] = SlotState.FREE
                self._free.appendleft(slot)
        return 0

    Slots.fence = fence


def stale_accepted():
    """As above, and a reply is taken for that of whichever round has its slot now."""
    no_quarantine()
    arrived, take = Slots.arrived, Arrivals._take_reply

    def lenient(self, immediate, size):
        if self._state[immediate] is SlotState.FREE:
            return Arrival(immediate, -1, size, False)
        return arrived(self, immediate, size)

    def forge(self, arrival):
        stage = self._stage
        if arrival.round < 0:  # whose round got another's reply: nobody waits for it
            stage.c.received += 1
            return None
        frame = stage.lane.address(arrival.slot)
        body = bytearray(stage.lane.read(arrival.slot, arrival.size)[HEADER_BYTES:-4])
        body[:8] = arrival.round.to_bytes(8, "little")
        whole = bytes(body) + crc32(bytes(body)).to_bytes(4, "little")
        ffi.memmove(ffi.cast("uint8_t *", frame + HEADER_BYTES), whole, len(whole))
        return take(self, arrival)

    Slots.arrived, Arrivals._take_reply = lenient, forge


def failed_as_answered():
    """Rounds of a session that is lost are given out as if they had been answered."""
    fail_all = Hands.fail_all

    def ok(self, status):
        return fail_all(self, Status.OK if status is Status.PEER_DIED else status)

    Hands.fail_all = ok


def _after_answers(act):
    """``act(arrivals, taken's state word)`` after each reply that was published."""
    take = Arrivals._take_reply

    def spoiled(self, arrival):
        hand = self._stage.hands.c
        taken = lib.pp3_hand_find(hand, arrival.round)
        mine = 0 if taken == ffi.NULL else int(Taken(taken).c.mine)
        why = take(self, arrival)
        if mine:
            act(self, mine)
        return why

    Arrivals._take_reply = spoiled


def _older(act):
    """``act(end, state word)`` of one in twenty answered rounds, two answers later."""
    before = []

    def later(arrivals, mine):
        before.append(mine)
        if len(before) > 2:
            old = before.pop(0)
            if random.random() < 0.05:
                act(arrivals._stage.hands.end, old)

    _after_answers(later)


def resolved_twice():
    """A round that was answered is failed afterwards."""

    def fail(end, mine):
        at = lib.pp3_state_offset(end.handle, mine >> 24)
        base = int(ffi.cast("uintptr_t", end.region.addresses["control"]))
        word = ffi.cast("uint64_t *", base + at)
        if word[0] >> 24 == mine >> 24:
            word[0] = (word[0] & ~(15 << 20)) | (7 + Status.TIMEOUT) << 20

    _older(fail)


def page_changed():
    """A page changes by a bit after another round was answered."""

    def flip(end, mine):
        end.page(mine)[2000] ^= 1

    _older(flip)


def slot_leaked():
    """A slot whose late write has come is given to nobody any more."""
    done = Slots.done

    def leak(self, slot):
        late = self._state[slot] is SlotState.QUARANTINED
        done(self, slot)
        if late:
            self._free.remove(slot)

    Slots.done = leak


def regions_leaked():
    """A lost session's queue pair and memory stay, and are not counted."""
    kept = []

    def close(self):
        kept.append(self._end)
        self._end = None

    regions = Lane.regions.fget
    Lane.close = close
    Lane.regions = property(lambda self: regions(self) if self._end else 0)


FAULTS = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        no_quarantine,
        stale_accepted,
        failed_as_answered,
        resolved_twice,
        page_changed,
        slot_leaked,
        regions_leaked,
    )
}
"""By name; what each is says its docstring."""


if __name__ == "__main__":
    FAULTS[sys.argv[1]]()
    sys.exit(proxy_main.main())
