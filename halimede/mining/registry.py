"""Finds a mining algorithm by the name in a service's spec, and creates it with the parameters there, which are text.

An algorithm is a dataclass that is callable with a prediction. Its fields are its parameters; their types define the
allowed values (the algorithms of this package inherit them from ``halimede.api.mining``). A new algorithm is a file of
this package with ``@register("Name")``, or an entry point of the group ``halimede.mining`` in any installed
distribution (a plug-in). Names are case-insensitive. A service may also name a class of its user's, without any
registration: ``module:Class`` or ``file.py:Class``.
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

from halimede.api.mining import FIELD, GROUP, name_fix, parse_own_rule, read_parameters, rule_file
from halimede.errors import HalimedeError, InvalidFieldError, describe_exception
from halimede.mining.miner import Miner
from halimede.mining.pre_inference import check_mode
from halimede.system.modules import import_siblings

#: the class of an algorithm
M = TypeVar("M", bound=type[Miner])

#: the name as it was registered, and the class, by the name in lower case
_algorithms: dict[str, tuple[str, type[Miner]]] = {}


def register(name: str) -> Callable[[M], M]:
    """Register a dataclass as the algorithm ``name``: a decorator of its class.

    Raises ValueError if the name is taken, in upper or lower case, and if the class is no dataclass.
    """

    def add(algorithm: M) -> M:
        holder = _algorithms.get(name.lower())
        if holder:
            raise ValueError(f"mining algorithm {name} is registered twice: {holder[1].__qualname__} holds the name")
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
    """Return the name of an algorithm as it was registered, whatever the case of ``name``; an unknown name as it is.

    In the name of a user's class, ``file.py:Class``, the file gets its absolute path.
    """
    if file := rule_file(name):
        return f"{Path(file).resolve()}{name.removeprefix(file)}"
    return next((registered for registered in names() if registered.lower() == name.lower()), name)


def create(name: str, parameters: Mapping[str, str], calibration: Path | None = None, mode: str | None = None) -> Miner:
    """Return the algorithm that a service's spec names, with its parameters.

    ``calibration`` is the path of a file of `halimede calibrate`: an algorithm with a parameter of that name gets it,
    unless the spec sets another one. ``mode`` None: any mode.

    Raises InvalidFieldError, with the field below ``spec.edgeWorker.hardExampleMining`` and what is allowed, for an
    unknown name, an unknown or missing parameter, an invalid value, and a mode that the algorithm does not support.
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
    """Return the parameters in a spec with which a miner has a cut, or the nearest possible cut.

    Raises InvalidFieldError for a miner that compares no numbers, or has no parameter for its cut.
    """
    method = getattr(miner, "parameters_at", None)
    if method is None and is_dataclass(miner) and any(field.name == "cut" and field.init for field in fields(miner)):
        return {"cut": repr(float(cut))}
    if method is None:
        fix = "use an algorithm whose threshold can be moved, such as Margin, Entropy or Threshold"
        raise InvalidFieldError(f"{FIELD}.name", type(miner).__name__, fix)
    parameters: dict[str, str] = method(cut)
    return parameters


def _find(name: str) -> type[Miner]:
    """Return the class of an algorithm, built-in, plug-in or a user's. Raises InvalidFieldError."""
    if ":" in name:
        return _import_rule(name)
    import_siblings(__name__)
    failures = []
    if name.lower() not in _algorithms:
        # load plug-ins only now: they cost import time, and a broken one must not stop a service that does not use it
        failures = [text for point in entry_points(group=GROUP) if (text := _load(point))]
    entry = _algorithms.get(name.lower())
    if entry is None:
        fix = name_fix(name, [registered for registered, _ in _algorithms.values()])
        raise InvalidFieldError(f"{FIELD}.name", name, "; ".join([fix, *failures]))
    return entry[1]


def _import_rule(name: str) -> type[Miner]:
    """Return a user's class that is named ``module:Class`` or ``file.py:Class``. Raises InvalidFieldError."""
    source, class_name = parse_own_rule(name)
    try:
        algorithm = getattr(_import_module(source), class_name, None)
    except FileNotFoundError as error:
        fix = f"there is no file {source} where the worker runs: copy it there, or put its folder on PYTHONPATH"
        raise InvalidFieldError(f"{FIELD}.name", name, fix) from error
    except Exception as error:
        fix = f"{source} cannot be imported: {describe_exception(error)}: correct it, or put its folder on PYTHONPATH"
        raise InvalidFieldError(f"{FIELD}.name", name, fix) from error
    if not isinstance(algorithm, type) or not is_dataclass(algorithm):
        fix = f"{source} has no dataclass {class_name}: write @dataclass above the class; its fields are the parameters"
        raise InvalidFieldError(f"{FIELD}.name", name, fix)
    if not any("__call__" in vars(base) for base in algorithm.__mro__):
        fix = f"{class_name} decides nothing: derive it from halimede.mining.ByHardness, or define __call__(prediction)"
        raise InvalidFieldError(f"{FIELD}.name", name, fix)
    return cast("type[Miner]", algorithm)


@cache
def _import_module(source: str) -> ModuleType:
    """Return a module by its name, or the module of a Python file, under a name of its own. Raises any error of it."""
    if not source.endswith(".py"):
        return importlib.import_module(source)
    path = Path(source).resolve(strict=True)
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
