"""The exceptions that callers distinguish. Any other exception is a bug and may show its traceback."""

from __future__ import annotations

import contextlib
import re
import reprlib
from collections.abc import Iterator

MAX_SHOWN = 160
#: characters of a value that are looked at: an address is shorter
MAX_LOOKED_AT = 4200

#: an address: user and password, what may be shown, query and fragment
_address = re.compile(r"://(?P<user>[^\s'\"]*@)?(?P<plain>[^\s'\"?#]*)(?P<rest>[?#][^\s'\"]*)?")


def hide_secrets(text: str) -> str:
    """Return a text with ``***`` for what may be secret in the addresses in it. Rather too much than too little."""
    return _address.sub(
        lambda at: f"://{'***@' if at['user'] else ''}{at['plain']}{'?***' if at['rest'] else ''}", text
    )


class _Shown(reprlib.Repr):
    """Values may be large or hold themselves, and addresses hold secrets: show their beginning, without these."""

    def repr_str(self, x: str, level: int) -> str:
        """Hide before anything is cut: what is left of an address would not look like one."""
        return super().repr_str(hide_secrets(x[:MAX_LOOKED_AT]), level)

    def repr_instance(self, x: object, level: int) -> str:
        """Likewise for all that is no plain data."""
        with contextlib.suppress(Exception):  # somebody else's __repr__
            x = _Verbatim(hide_secrets(repr(x)[:MAX_LOOKED_AT]))
        return super().repr_instance(x, level)


class _Verbatim:
    """Something whose repr is given."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_shown = _Shown()
_shown.maxstring = _shown.maxother = 120


def one_line(text: str) -> str:
    """Return text as one short line to show: a field's name may be a key that somebody made up."""
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"


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
        super().__init__(f"{one_line(field)}: {self.value} is not accepted: {fix}")


class DecodeError(HalimedeError):
    """Bytes that are no valid message of their topic. The text is safe to log: it holds no payload."""


class TooLargeError(HalimedeError):
    """A payload over the limit, refused before it is sent or decoded."""


class BusError(HalimedeError):
    """A failed operation of the bus. Temporary, except for some subclasses."""


class DisconnectedError(BusError):
    """The connection was lost before the broker answered: the message may or may not have arrived."""


class NotAllowedError(DisconnectedError):
    """The broker does not let this client in, or the client does not trust the broker: waiting alone does not help."""


class RefusedError(BusError):
    """The broker answered with a failure code (such as 0x87 not authorised): repeating does not help."""

    def __init__(self, topic: str, reason: int, text: str) -> None:
        self.reason = reason
        super().__init__(f"the broker refused {topic}: {text} (0x{reason:02x})")


class NoSubscriberError(BusError):
    """The broker accepted the message, but it has no subscriber (MQTT reason code 0x10)."""


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
