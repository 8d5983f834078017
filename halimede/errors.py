"""The few exceptions that callers tell apart. Everything else is a bug and may show its traceback."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Iterator

MAX_SHOWN = 160

#: values may be large, nested or hold themselves: show their beginning only
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 120


class HalimedeError(Exception):
    """Base of every error that a user or operator can act on."""


class InvalidFieldError(HalimedeError):
    """A value that a user gave is refused: names the field, the value and what to do.

    Attributes:
        field: dotted path of the field, such as ``spec.edgeWorker.model.name``.
        value: what was given, cut to a printable length.
        fix: what to write instead.

    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field = field
        self.value = _shown.repr(value)[:MAX_SHOWN]
        self.fix = fix
        super().__init__(f"{field}: {self.value} is not accepted: {fix}")


class DecodeError(HalimedeError):
    """Bytes that are no valid message of their topic. The text is safe to log: it holds no payload."""


class TooLargeError(HalimedeError):
    """A payload over the limit, refused before it is sent or decoded."""


class BusError(HalimedeError):
    """The bus could not do what was asked. Temporary unless a subclass says otherwise."""


class DisconnectedError(BusError):
    """The connection was lost before the broker answered: the message may or may not have arrived."""


class RefusedError(BusError):
    """The broker answered with a failure code (such as 0x87 not authorised): repeating does not help."""

    def __init__(self, topic: str, reason: int, text: str) -> None:
        self.reason = reason
        super().__init__(f"the broker refused {topic}: {text} (0x{reason:02x})")


class NoSubscriberError(BusError):
    """The broker took the message but nobody listens (MQTT reason code 0x10)."""


@contextlib.contextmanager
def first_error() -> Iterator[None]:
    """Raise the first HalimedeError of a task group by itself, when the group holds nothing worse.

    Not written with ``except*``: what is raised inside that is wrapped in a group again by some Python 3.11 releases.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split(HalimedeError)
        if ours is None or others is not None:
            raise
        error: BaseException = ours
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
