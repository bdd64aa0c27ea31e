"""What tests share: a wait for a condition, and addresses to listen at."""

import importlib.util
import os
import re
import secrets
import socket
import time
from pathlib import Path

import pytest

# Processes that tests start import the installed package too, never the source tree
# that they happen to be started in.
os.environ["PYTHONSAFEPATH"] = "1"

# Without a CUDA device, Triton's kernels are run by its interpreter. It is chosen when
# triton is first imported, and another test than those of the kernels may be first.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


# Packages that not every interpreter has: tests of what needs one are skipped there.
LACKING = re.compile(
    "No module named '(matplotlib|mypy|scipy|tokenizers|torch|transformers|triton)"
    "|expected (torch|triton), found none"
)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    lacking = LACKING.search(str(report.longrepr)) if report.failed else None
    name = next(filter(None, lacking.groups())) if lacking else None
    if name is not None and importlib.util.find_spec(name) is None:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: needs {name}, not here")
    return report


@pytest.fixture
def eventually():
    """Wait until a condition holds; the time is a watchdog, not a promise."""

    def wait(condition, what="the condition", limit_s=30.0):
        limit = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < limit, f"{what} did not come in {limit_s} s"
            time.sleep(0.002)

    return wait


@pytest.fixture(params=["tcp", "tcp6", "unix", "abstract"])
def address(request, tmp_path):
    """Something to listen at, of each family."""
    if request.param == "tcp6":
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 loopback here")
    return {
        "tcp": "tcp://127.0.0.1:0",
        "tcp6": "tcp://[::1]:0",
        "unix": f"unix://{tmp_path}/socket",
        "abstract": f"unix://@pp3shm-test-{secrets.token_hex(8)}",
    }[request.param]
