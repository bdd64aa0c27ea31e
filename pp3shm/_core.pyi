"""The compiled core (see ``_core_build.py``); cffi gives it no types."""

from typing import Any

ffi: Any
lib: Any
