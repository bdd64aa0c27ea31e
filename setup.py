"""Build hook: everything else stands in pyproject.toml."""

import sys
import sysconfig

from setuptools import setup

# The core uses the stable ABI only: one wheel serves CPython 3.11 and newer. For a
# free-threaded interpreter cffi builds without one, and the wheel is for that version.
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
if FREE_THREADED and sys.version_info < (3, 14):
    raise SystemExit(
        "pp3shm: expected free-threaded CPython 3.14 or newer (cffi needs it), found "
        f"{sys.version.split()[0]}"
    )

setup(
    cffi_modules=["pp3shm/_core_build.py:ffi"],
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
