"""Build hook: everything else stands in pyproject.toml."""

from setuptools import setup

setup(cffi_modules=["pp3shm/_core_build.py:ffi"])
