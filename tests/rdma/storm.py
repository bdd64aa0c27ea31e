"""Kills, stops and cut links at random moments, over real queue pairs, in the lab.

    python tests/rdma/storm.py --count 1000 --minutes 8 --directory DIR [--seed N]
    python tests/rdma/storm.py --planted NAME|all --minutes 3 --directory DIR

One engine with a proxy process, one worker process, two to four rounds in flight all
the while. Something happens to one of them at a random moment; what every round then
says is held against what was asked: it is answered whole and right, or failed with a
reason, once, and no reply is refused. Pages that are not released yet are compared with
copies of theirs. Now and then it is quiet: then every staging slot can be had, and the
kernel counts the objects of one session on each device, not one more.

At each quiet a line is added to DIR/storm.jsonl, of what came since the last; a run
ends after its minutes or when all lines together have the count. --summary prints what
they add up to. With --planted a fault is put into the proxy (storm_planted.py), and the
run fails unless it is found.
"""

import argparse
import collections
import json
import random
import socket
import sys
import time
from pathlib import Path

import storm_planted
import storm_rounds
from storm_events import Events, Nursery, cable, know_addresses
from storm_rounds import PROFILE, ROUNDS, TABLE, Storm, verbs

from pp3shm import Engine
from pp3shm.errors import Pp3Error
from pp3shm.link import rdma

KEY = bytes(range(32))
FAULTS = (AssertionError, Pp3Error)


def one_run(seed, seconds, enough, tell=lambda _account: None):
    """A worker, an engine, and a storm of so many seconds.

    Args:
        seed: of everything random.
        seconds: how long; quiet at its end comes on top.
        enough: called with the events so far; true ends it sooner.
        tell: called with the account after each quiet in which all was well.

    Raises:
        AssertionError: a round, a page or a count that cannot be.
    """
    rng = random.Random(seed)
    before = verbs()
    know_addresses()
    with socket.create_server(("10.98.0.2", 0)) as free:
        port = free.getsockname()[1]
    nursery = Nursery(port, (TABLE, PROFILE, KEY))
    nursery.start()
    try:
        with Engine.create(
            PROFILE,
            worker=f"rdma://10.98.0.2:{port}/rxe0",
            proxy="process",
            rounds=ROUNDS,
            psk=KEY,
            connect_timeout_s=120,
        ) as engine:
            storm = Storm(engine, rng, before)
            events = storm.events = Events(rng, nursery, engine, storm.mark)
            storm.finish()  # so that what is there from the start is known
            events.start()
            try:
                storm.run(
                    time.monotonic() + seconds,
                    lambda: enough(events.total),
                    lambda: tell(storm.account()),
                )
            finally:
                events.ending.set()
                events.join(30)
                cable(up=True)
                know_addresses()
            storm.finish()
            tell(storm.account())
    finally:
        nursery.close()


def run(args):
    """A run that adds its lines to the journal."""
    log = args.directory / "storm.jsonl"
    already = sum(sum(line.get("events", {}).values()) for line in lines(log))
    seed = args.seed if args.seed is not None else 1000 + already
    print(f"storm: seed {seed}, {already} events so far", flush=True)
    before = {"seconds": time.monotonic()}

    def tell(account):
        nonlocal before
        now = {**account, "seconds": time.monotonic()}
        said = {"seed": seed, **difference(now, before)}
        with log.open("a") as out:
            out.write(json.dumps(said) + "\n")
        print(json.dumps(said), flush=True)
        before = now

    one_run(seed, args.minutes * 60, lambda n: already + n >= args.count, tell)
    return 0


def difference(now, before):
    """What has come to numbers, and to numbers by name."""
    found = {}
    for name, value in now.items():
        if isinstance(value, dict):
            found[name] = difference(value, before.get(name, {}))
        else:
            found[name] = round(value - before.get(name, 0), 1)
    return {name: value for name, value in found.items() if value}


def planted(args):
    """Each fault must be found; how many were not."""
    names = list(storm_planted.FAULTS) if args.planted == "all" else [args.planted]
    storm_rounds.QUIET_S = 30.0  # what is leaked does not come back, however long
    missed = 0
    for name in names:
        storm_planted.plant(name)
        began, seen = time.monotonic(), [0]

        def enough(events, seen=seen):
            seen[0] = events
            return False

        try:
            one_run(args.seed or 7, args.minutes * 60, enough)
        except FAULTS as error:
            found = (str(error).splitlines() or [type(error).__name__])[0][:200]
        else:
            found, missed = "", missed + 1
        said = {
            "planted": name,
            "found": found,
            "seconds": round(time.monotonic() - began),
            "events": seen[0],
        }
        print(json.dumps(said), flush=True)
        with (args.directory / "planted.jsonl").open("a") as out:
            out.write(json.dumps(said) + "\n")
    return missed


def end_with_the_kernel():
    """A guest whose kernel hangs ends at once, and not at the lab's time-out.

    Under a storm a process can spin in Linux 6.1 for ever (a soft lockup), and then no
    other is left to say so.
    """
    Path("/proc/sys/kernel/watchdog_thresh").write_text("15", encoding="ascii")
    Path("/proc/sys/kernel/softlockup_panic").write_text("1", encoding="ascii")


def lines(log):
    """Those of the journal."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text().splitlines()]


def summary(args):
    """What all runs add up to."""
    total = collections.Counter()
    for line in lines(args.directory / "storm.jsonl"):
        for name, value in line.items():
            if isinstance(value, dict):
                total.update({f"{name}: {key}": n for key, n in value.items()})
                total[name] += sum(value.values())
            elif name != "seed":
                total[name] += value
        total["lines"] += 1
    for name, value in sorted(total.items()):
        print(f"{name:<50}{value:g}")
    return 0


def main():
    """The command line; 0, or 1 where something was found, or a fault was not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--directory", type=Path, default=Path())
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--planted", choices=["all", *storm_planted.FAULTS])
    args = parser.parse_args()
    if args.summary:
        return summary(args)
    rdma.require("storm")
    end_with_the_kernel()
    return min(1, planted(args)) if args.planted else run(args)


if __name__ == "__main__":
    sys.exit(main())
