"""One scene, killed at each system call: `python kills.py SCENE KIND FIRST STRIDE`.

Prints what it found as one line of JSON. A process of its own, for ptrace and fork want
one without threads of others.
"""

import gc
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from torture.calls import faults, world
from torture.calls.scene import Scene
from torture.calls.scenes import SCENES
from torture.calls.trace import Victim
from torture.calls.world import WrongError, descriptors, expect, mapped

from pp3shm.errors import Pp3Error


@dataclass
class Found:
    """What all points of a scene came to."""

    tried: int
    bad: int
    stops: int
    outcomes: dict[str, int]
    first: str = ""


def _judge(scene: Scene, victim: Victim, point: int | None) -> tuple[bool, str]:
    ended = victim.walk(point)
    expect("stuck: the victim", holds=not victim.hung)
    expect(
        "the victim came to an end of its own",
        holds=ended or victim.stops == (point or 0),
    )
    if not ended and scene.stopped():
        expect("the victim goes on to its end", holds=victim.finish())
        scene.resumed()
    expect("its pidfd tells of the death", holds=victim.kill())
    return ended, scene.settle()


def kill_at(
    make: Callable[[str], Scene], kind: str, point: int | None, found: Found
) -> bool:
    """One try.

    Args:
        make: The scene.
        kind: Of the region.
        point: After how many stops; None: at the end.
        found: Where it is noted.

    Returns:
        Whether the victim came to its end.
    """
    gc.collect()
    before, maps = descriptors(), mapped()
    scene = make(kind)
    victim = scene.child = Victim(scene.victim)
    ended = False
    try:
        scene.begin()
        expect("the victim begins", holds=victim.prepare())
        scene.meanwhile()
        ended, outcome = _judge(scene, victim, point)
        found.outcomes[outcome] = found.outcomes.get(outcome, 0) + 1
        fault = ""
    except (WrongError, Pp3Error, OSError) as error:
        fault = f"{type(error).__name__}: {error}"
        victim.kill()
    try:
        scene.end()
    except WrongError as error:
        fault = fault or str(error)
    victim.close()
    del scene
    gc.collect()
    if not fault and (descriptors() != before or mapped() != maps):
        more = [name for name in descriptors() if name not in before]
        fault = f"descriptors left {more}, {mapped() - maps} mappings left"
    found.tried += 1
    found.stops = max(found.stops, victim.stops)
    found.bad += bool(fault)
    found.first = found.first or (fault and f"killed at stop {victim.stops}: {fault}")
    return ended


def main() -> None:
    """Prints what was found."""
    name, kind, first, stride = sys.argv[1:5]
    plant = sys.argv[5] if len(sys.argv) > 5 else ""
    if plant:
        faults.FAULTS[plant].plant()
        world.patience_s[0] = 3.0
    found = Found(0, 0, 0, {})
    kill_at(SCENES[name], kind, None, found)
    point = int(first)
    # to the end, wherever it is: threads make the number of calls differ a little
    while not (found.bad > 5 or (plant and found.bad)):
        if kill_at(SCENES[name], kind, point, found):
            break
        point += int(stride)
    print(json.dumps(vars(found)))


if __name__ == "__main__":
    main()
