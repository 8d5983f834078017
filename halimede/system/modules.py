"""Imports packages whose modules register what they define: algorithms, sources of frames.

A module of its own, because packages of several layers have such a registry.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def import_siblings(module: str) -> None:
    """Import every module of a module's package once."""
    package = importlib.import_module(module.rpartition(".")[0])
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
