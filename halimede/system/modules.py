"""Imports all modules of a package, each of which registers what it defines, such as an algorithm or a frame source."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def import_siblings(module: str) -> None:
    """Import every module in the package of ``module`` (its dotted name) once. Raises what a module raises."""
    package = importlib.import_module(module.rpartition(".")[0])
    for sibling in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(sibling.name)
