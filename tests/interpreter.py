"""What the interpreter that runs the tests is, for those that differ by it."""

import sys
import sysconfig

import pytest

from pp3shm.stats import _histogram_type

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""Built so; its lock may be on all the same."""

_stages = _histogram_type()
needs_stages = pytest.mark.skipif(
    isinstance(_stages, str), reason=f"needs hdrhistogram: {_stages}"
)
"""Without the lock, hdrhistogram is used only where the user wants it so."""


def without_lock() -> bool:
    """True while Python's threads run at the same time."""
    return not getattr(sys, "_is_gil_enabled", lambda: True)()
