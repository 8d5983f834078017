"""halimede: edge-cloud collaborative inference on an MQTT v5 bus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halimede.joint_model import JointModel as JointModel

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import ``JointModel`` on first access: all other modules work without the packages that models need.

    Raises ModuleNotFoundError if one of these packages is missing, AttributeError for another name.
    """
    if name == "JointModel":
        from importlib import import_module  # noqa: PLC0415

        try:
            return import_module("halimede.joint_model").JointModel
        except ModuleNotFoundError as error:
            text = f"JointModel needs the package {error.name}: install halimede[worker]"
            raise ModuleNotFoundError(text, name=error.name) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
