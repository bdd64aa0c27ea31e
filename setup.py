"""Build hook: everything else stands in pyproject.toml."""

from setuptools import setup

setup(
    cffi_modules=["pp3shm/_core_build.py:ffi"],
    # The core uses the stable ABI only: one wheel serves CPython 3.11 and newer.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
