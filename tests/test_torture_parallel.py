"""Steps and planted faults run beside each other, and no wider than the machine."""

import threading
import time

import pytest
from torture.figure import Batch
from torture.parallel import Ahead, Cores


def test_never_more_cores_are_taken_than_there_are():
    """And who wants all of them gets them while others keep coming."""
    cores = Cores(2)
    lock = threading.Lock()
    busy, most = 0, 0

    def work(wanted):
        nonlocal busy, most
        for _ in range(200):
            with cores.taken(wanted):
                with lock:
                    busy += wanted
                    most = max(most, busy)
                with lock:
                    busy -= wanted

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 1, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert most <= 2


def test_more_than_there_are_means_all():
    """A figure for two cores runs on a machine of one."""
    with Cores(1).taken(2):
        pass


def test_results_and_what_was_raised_come_to_who_asks():
    """Whatever the order."""

    def wrong():
        raise RuntimeError("no compiler")

    running = Ahead(Cores())
    running.put({"wrong": wrong, "behind it": lambda: Batch(7, 0)})
    for number in range(5):
        running.put({number: lambda number=number: Batch(number, 0)})
    assert [running.result(n).tried for n in (4, 0, 3, 1, 2)] == [4, 0, 3, 1, 2]
    assert running.result("behind it").tried == 7
    with pytest.raises(RuntimeError, match="no compiler"):
        running.result("wrong")
    running.close()


def test_the_jobs_of_a_chain_never_overlap():
    """They build in one directory."""
    running, inside, overlaps = Ahead(Cores()), [], []

    def job():
        inside.append(1)
        time.sleep(0.001)
        overlaps.append(len(inside))
        inside.pop()
        return Batch(1, 0)

    running.put(dict.fromkeys(range(20), job))
    assert sum(running.result(number).tried for number in range(20)) == 20
    assert set(overlaps) == {1}
    running.close()


def test_what_has_not_begun_is_not_begun_once_it_is_closed():
    """A test run that is stopped does not go on for minutes."""
    running, begun = Ahead(Cores()), []
    first = threading.Event()

    def job():
        begun.append(1)
        first.wait(60)
        return Batch(1, 0)

    running.put(dict.fromkeys(range(50), job))
    while not begun:
        time.sleep(0.001)
    closing = threading.Thread(target=running.close)
    closing.start()
    while not running.closed:
        time.sleep(0.001)
    first.set()
    closing.join(60)
    assert not closing.is_alive()
    assert len(begun) == 1
