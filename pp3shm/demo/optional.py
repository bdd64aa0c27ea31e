"""Packages that only an extra brings: imported when needed, refused by name."""

import importlib
from types import ModuleType

from pp3shm.errors import ConfigError


def require(module: str, extra: str) -> ModuleType:
    """Import a package of an extra.

    Args:
        module: dotted name of the module, e.g. ``tokenizers``.
        extra: the extra of this package that brings it, e.g. ``demo``.

    Returns:
        The imported module.

    Raises:
        ConfigError: it is not installed; the error names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # The last line alone: the message of a broken build can be a page long.
        found = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ConfigError(
            f"package {module}", f"installed (pip install 'pp3shm[{extra}]')", found[0]
        ) from error
