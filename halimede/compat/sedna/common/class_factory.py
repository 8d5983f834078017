"""Sedna's registry of classes by kind and alias: a script registers its own rules and functions here.

An alias is unique in its kind; registering the same class again is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isclass, isfunction
from types import ModuleType
from typing import Any, ClassVar, TypeVar, cast

from halimede.errors import InvalidFieldError

__all__ = ("ClassFactory", "ClassType")

C = TypeVar("C", bound=Callable[..., Any])


class ClassType:
    """The kinds of registered classes and functions, by Sedna's names."""

    GENERAL = "general"
    #: hard example mining: called with the small model's answer
    HEM = "hard_example_mining"
    FL_AGG = "aggregation"
    MTL = "multi_task_learning"
    UTD = "unseen_task_detect"
    ALGORITHM = "algorithm"
    DATASET = "data_process"
    CALLBACK = "post_process_callback"


class ClassFactory:
    """Classes and functions by kind (``type_name``) and alias."""

    __registry__: ClassVar[dict[str, dict[str, Any]]] = {}

    @classmethod
    def register(cls, type_name: str = ClassType.GENERAL, alias: str | None = None) -> Callable[[C], C]:
        """Decorate a class or function to register it as ``alias``, or by its own name.

        Raises ValueError as ``register_cls``.
        """
        return lambda t_cls: cls.register_cls(t_cls, type_name, alias)

    @classmethod
    def register_cls(cls, t_cls: C, type_name: str = ClassType.GENERAL, alias: str | None = None) -> C:
        """Register a class or function and return it. Raises ValueError if another one of the kind has the name."""
        name = alias if alias is not None else t_cls.__name__
        kind = cls.__registry__.setdefault(type_name, {})
        entry = kind.get(name)
        if entry is not None and _origin(entry) != _origin(t_cls):
            raise ValueError(f"{type_name} {name} is registered twice: {_origin(entry)} holds the name, choose another")
        kind[name] = t_cls
        return t_cls

    @classmethod
    def register_from_package(cls, package: ModuleType, type_name: str = ClassType.GENERAL) -> None:
        """Register every public class and function of a module by its own name.

        Raises ValueError as ``register_cls``.
        """
        for name, member in vars(package).items():
            if not name.startswith("_") and (isclass(member) or isfunction(member)):
                cls.register_cls(member, type_name)

    @classmethod
    def is_exists(cls, type_name: str, cls_name: str | None = None) -> bool:
        """Whether anything is registered for a kind, or (with ``cls_name``) this name in the kind."""
        kind = cls.__registry__.get(type_name)
        return kind is not None and (cls_name is None or cls_name in kind)

    @classmethod
    def get_cls(cls, type_name: str, t_cls_name: str | None = None) -> Any:
        """Return what is registered under a name. Raises InvalidFieldError (also a ValueError) if nothing is."""
        if t_cls_name is None or not cls.is_exists(type_name, t_cls_name):
            raise UnknownNameError(type_name, t_cls_name, sorted(cls.__registry__.get(type_name, ())))
        return cls.__registry__[type_name][t_cls_name]


class UnknownNameError(InvalidFieldError, ValueError):
    """Nothing is registered under that name."""

    def __init__(self, kind: str, name: str | None, names: list[str]) -> None:
        listed = f"use one of {', '.join(names)}, or " if names else ""
        super().__init__(kind, name, f"{listed}register it with ClassFactory before it is used")


def post_processing(function: Any) -> Callable[[Any], Any] | None:
    """Return the callable for ``post_process`` of a call: itself, or what is registered as this alias; None for None.

    Raises InvalidFieldError for an unknown alias.
    """
    if function is None or callable(function):
        return function  # type: ignore[no-any-return]  # callable, or none
    registered = ClassFactory.get_cls(ClassType.CALLBACK, function)
    process: Any = registered() if isinstance(registered, type) else registered
    return cast("Callable[[Any], Any]", process)


def post_process_value(value: Any, function: Any) -> Any:
    """Return what ``function``, a callable or a registered alias, makes of a value; None: the value itself.

    Raises InvalidFieldError for an unknown alias, and the errors of the function.
    """
    process = post_processing(function)
    return process(value) if process else value


def _origin(thing: Any) -> str:
    """Return the name and file of a class or function, which are equal if a script is run and imported as well."""
    code = getattr(thing, "__init__", None) if isclass(thing) else thing
    file = getattr(getattr(code, "__code__", None), "co_filename", "") or getattr(thing, "__module__", "")
    return f"{getattr(thing, '__qualname__', thing)} of {file}"
