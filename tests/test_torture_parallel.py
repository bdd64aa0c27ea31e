"""Steps and planted faults run beside each other, and no wider than the machine."""

import threading

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
    running.put("wrong", wrong)
    for number in range(5):
        running.put(number, lambda number=number: Batch(number, 0))
    assert [running.result(n).tried for n in (4, 0, 3, 1, 2)] == [4, 0, 3, 1, 2]
    with pytest.raises(RuntimeError, match="no compiler"):
        running.result("wrong")
    running.close()
