"""Finds a mining algorithm by the name in a service's spec, and parses its parameters, which are all text.

A new algorithm is one new file in this package, or an entry point of the group ``halimede.mining`` in any installed
distribution: a dataclass under ``@register("Name")`` that is callable with a prediction. Its fields are its parameters;
their types define the allowed values. Those of this package inherit them from ``halimede.api.mining``. Names are
case-insensitive, and listed as registered. A service may also name a user's class itself, without any registration:
``module:Class`` or ``file.py:Class``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar, cast

from halimede.api.mining import FIELD, GROUP, instead, own_rule, read_parameters, rule_file
from halimede.errors import HalimedeError, InvalidFieldError, describe_exception
from halimede.mining.miner import Miner
from halimede.mining.pre_inference import check_mode
from halimede.system.modules import import_siblings

M = TypeVar("M", bound=type[Miner])

_algorithms: dict[str, tuple[str, type[Miner]]] = {}


def register(name: str) -> Callable[[M], M]:
    """Register a dataclass as the algorithm ``name``. Raises ValueError if the name is taken, in any case."""

    def add(algorithm: M) -> M:
        taken = _algorithms.get(name.lower())
        if taken:
            raise ValueError(f"mining algorithm {name} is registered twice: {taken[1].__qualname__} holds the name")
        if not is_dataclass(algorithm):
            raise ValueError(f"mining algorithm {name} is no dataclass: its fields are what a spec may set")
        _algorithms[name.lower()] = (name, algorithm)
        return algorithm

    return add


def names() -> tuple[str, ...]:
    """Return the names of all algorithms, plug-ins included, in alphabetical order."""
    import_siblings(__name__)
    for point in entry_points(group=GROUP):
        _load(point)
    return tuple(sorted(name for name, _ in _algorithms.values()))


def canonical(name: str) -> str:
    """Return the name of an algorithm as it was registered; of a user's class with the whole path of its file."""
    if file := rule_file(name):
        return f"{Path(file).resolve()}{name.removeprefix(file)}"
    return next((known for known in names() if known.lower() == name.lower()), name)


def create(name: str, parameters: Mapping[str, str], calibration: Path | None = None, mode: str | None = None) -> Miner:
    """Make the algorithm that a service's spec names.

    ``calibration`` is the file of `halimede calibrate`: an algorithm with a parameter of that name gets it, unless the
    spec sets another one. ``mode`` is checked if it is given.

    Raises InvalidFieldError with the field below ``spec.edgeWorker.hardExampleMining``, its value and the allowed
    values: for an unknown name, an unknown or missing parameter, a value of the wrong type or out of range, one that
    the algorithm itself refuses, and an unsupported mode.
    """
    algorithm = _find(name)
    values = read_parameters(algorithm, parameters, str(calibration) if calibration else "")
    try:
        miner = algorithm(**values)
    except HalimedeError:
        raise
    except Exception as error:  # from a plug-in's own check
        fix = f"{name} refuses its parameters: {describe_exception(error)}"
        raise InvalidFieldError(f"{FIELD}.parameters", dict(parameters), fix) from error
    if mode is not None:
        check_mode(miner, mode)
    return miner


def parameters_at(miner: Miner, cut: float) -> dict[str, str]:
    """Return the parameters for a cut, or for the nearest possible one, in the form of a spec.

    Raises InvalidFieldError for an algorithm that compares no numbers, or has no parameter for its cut.
    """
    given = getattr(miner, "parameters_at", None)
    if given is None and is_dataclass(miner) and any(each.name == "cut" and each.init for each in fields(miner)):
        return {"cut": repr(float(cut))}
    if given is None:
        fix = "use an algorithm whose threshold can be moved, such as Margin, Entropy or Threshold"
        raise InvalidFieldError(f"{FIELD}.name", type(miner).__name__, fix)
    found: dict[str, str] = given(cut)
    return found


def _find(name: str) -> type[Miner]:
    if ":" in name:
        return _own(name)
    import_siblings(__name__)
    failures = []
    if name.lower() not in _algorithms:
        # load plug-ins only now: they cost import time, and a broken one must not stop a service that does not use it
        failures = [text for point in entry_points(group=GROUP) if (text := _load(point))]
    found = _algorithms.get(name.lower())
    if found is None:
        fix = instead(name, [known for known, _ in _algorithms.values()])
        raise InvalidFieldError(f"{FIELD}.name", name, "; ".join([fix, *failures]))
    return found[1]


def _own(name: str) -> type[Miner]:
    """Return the class of a user that a service names by its module or file. Raises InvalidFieldError."""
    where, wanted = own_rule(name)
    try:
        algorithm = getattr(_module(where), wanted, None)
    except FileNotFoundError as error:
        fix = f"there is no file {where} where the worker runs: copy it there, or put its folder on PYTHONPATH"
        raise InvalidFieldError(f"{FIELD}.name", name, fix) from error
    except Exception as error:
        fix = f"{where} cannot be imported: {describe_exception(error)}: correct it, or put its folder on PYTHONPATH"
        raise InvalidFieldError(f"{FIELD}.name", name, fix) from error
    if not isinstance(algorithm, type) or not is_dataclass(algorithm):
        fix = f"{where} has no dataclass {wanted}: write @dataclass above the class; its fields are the parameters"
        raise InvalidFieldError(f"{FIELD}.name", name, fix)
    if not any("__call__" in vars(each) for each in algorithm.__mro__):
        fix = f"{wanted} decides nothing: derive it from halimede.mining.ByHardness, or define __call__(prediction)"
        raise InvalidFieldError(f"{FIELD}.name", name, fix)
    return cast("type[Miner]", algorithm)


@cache
def _module(where: str) -> ModuleType:
    """Import a module, or a Python file as one of a name that no other has."""
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).resolve(strict=True)
    name = f"mining_rule_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@cache
def _load(point: EntryPoint) -> str:
    """Load a plug-in once; return its error, empty if there is none."""
    try:
        loaded = point.load()
        if isinstance(loaded, type) and not any(loaded is algorithm for _, algorithm in _algorithms.values()):
            register(point.name)(loaded)
    except Exception as error:  # noqa: BLE001 (a plug-in's code may raise any error)
        return f"plug-in {point.name} ({point.value}) cannot be loaded: {describe_exception(error)}"
    return ""
