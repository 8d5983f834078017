"""Makes stand-ins for names of Sedna that have no implementation, and defines their error (``NotThereError``).

The modules with Sedna's paths use both. A script may import the names; they raise the error when used.
"""

from __future__ import annotations

from typing import Any, NoReturn

from halimede.errors import HalimedeError

#: the alternative to Sedna's multi-edge inference
MULTI_EDGE = (
    "multi-edge inference is a MultiEdgeInferenceService here, whose cameras, re-identification and peers need no "
    "script (docs/multi-edge.md): make one"
)


class NotThereError(HalimedeError):
    """A part of Sedna that halimede does not have. The text names the alternative."""


def unsupported_class(name: str, instead: str) -> type[Any]:
    """Return a class that can be imported and subclassed, and raises NotThereError when instantiated.

    ``instead``: the alternative.
    """

    def refuse(_: object, *__: object, **___: object) -> NoReturn:
        raise NotThereError(f"{name}: {instead}")

    return type(name, (), {"__init__": refuse, "__doc__": f"Not there: {instead}.", "__module__": __name__})
