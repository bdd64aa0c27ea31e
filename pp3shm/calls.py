"""The calls of a round, in C: what asks, what hears, what was heard.

``pp3shm._calls`` stands in the library of ``pp3shm._core``, whose state it shares.
"""

import importlib.machinery
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from pp3shm import _core
from pp3shm._core import ffi

_NAME = "pp3shm._calls"


def _load() -> Any:
    path = _core.__file__
    loader = importlib.machinery.ExtensionFileLoader(_NAME, path)
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    if spec is None:
        raise ImportError(f"{_NAME}: expected it in {path}")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[_NAME] = module
    return module


if TYPE_CHECKING:
    from pp3shm._calls import Asker, Heard, Hearer
else:
    _calls = _load()
    Asker, Heard, Hearer = _calls.Asker, _calls.Heard, _calls.Hearer

__all__ = ["Asker", "Heard", "Hearer", "address"]


def address(pointer: Any) -> int:
    """Of what a pointer of the core points to."""
    return int(ffi.cast("uintptr_t", pointer))
