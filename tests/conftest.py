"""What all tests share: a wait for a condition."""

import os
import time

import pytest

# Processes that tests start import the installed package too, never the source tree
# that they happen to be started in.
os.environ["PYTHONSAFEPATH"] = "1"


@pytest.fixture
def eventually():
    """Wait until a condition holds; the time is a watchdog, not a promise."""

    def wait(condition, what="the condition", limit_s=30.0):
        limit = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < limit, f"{what} did not come in {limit_s} s"
            time.sleep(0.002)

    return wait
