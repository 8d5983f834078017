"""The exceptions that callers distinguish. Any other exception is a bug and may show its traceback."""

from __future__ import annotations

import contextlib
import re
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

MAX_SHOWN = 160
#: most characters of a value that are searched: an address is shorter
MAX_LOOKED_AT = 4200

#: causes of errors without a text, the more special ones first
CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "it took too long"),
    (ConnectionError, "the connection was lost"),
    (EOFError, "the data ended early"),
    (MemoryError, "there is not enough memory"),
    (RecursionError, "it is nested too deeply"),
)

#: an address: user and password, the part to show, query and fragment
_address = re.compile(r"://(?P<user>[^\s'\"]*@)?(?P<plain>[^\s'\"?#]*)(?P<rest>[?#][^\s'\"]*)?")


def hide_secrets(text: str) -> str:
    """Return a text with ``***`` for possible secrets in its addresses: rather too many than too few."""
    return _address.sub(
        lambda at: f"://{'***@' if at['user'] else ''}{at['plain']}{'?***' if at['rest'] else ''}", text
    )


class _Shown(reprlib.Repr):
    """Shows the begin of values, without secrets: they may be large or contain themselves."""

    def repr_str(self, x: str, level: int) -> str:
        """Hide secrets before cutting: a cut address would not be recognised."""
        return super().repr_str(hide_secrets(x[:MAX_LOOKED_AT]), level)

    def repr_instance(self, x: object, level: int) -> str:
        """The same for values other than plain data."""
        with contextlib.suppress(Exception):  # a foreign __repr__ may raise any error
            x = _Verbatim(hide_secrets(repr(x)[:MAX_LOOKED_AT]))
        return super().repr_instance(x, level)


class _Verbatim:
    """An object with a given repr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_shown = _Shown()
_shown.maxstring = _shown.maxother = 120


def shorten_middle(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters, without secrets if it is cut.

    A text begins with its subject and ends with the cause and the correction: what is between them is left out.
    """
    if len(text) <= limit:
        return text
    if len(text) > 2 * MAX_LOOKED_AT:
        text = f"{text[:MAX_LOOKED_AT]}…{text[-MAX_LOOKED_AT:]}"
    shown = hide_secrets(text)  # before cutting: a cut address would not be recognised
    if len(shown) <= limit:
        return shown
    begin = limit // 2
    return f"{shown[:begin]}…{shown[len(shown) - (limit - begin - 1) :]}"


def one_line(text: str) -> str:
    """Return text as one short line: a field's name may be any key of a user."""
    return shorten_middle(text if text.isprintable() else repr(text)[1:-1], MAX_SHOWN)


def cause_of(error: BaseException) -> str:
    """Return the cause of an error of the system or of a library in words, without the name of its class."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split())
    return text or next((cause for kind, cause in CAUSES if isinstance(error, kind)), "no cause is reported")


def describe_exception(error: BaseException) -> str:
    """Return an exception of a user's Python code as Python shows it: there, the class is a part of the cause."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


class HalimedeError(Exception):
    """Base of every error that a user or operator can act on.

    ``others`` are further errors of the same input, where all of them are looked for.
    """

    others: tuple[Self, ...] = ()


class InvalidFieldError(HalimedeError):
    """Refuses a value of a user: names the field, the value and the correction.

    Attributes:
        field: dotted path of the field, such as ``spec.edgeWorker.model.name``.
        value: the refused value, cut to a printable length.
        fix: the correction.

    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field = field
        self.value = _shown.repr(value)[:MAX_SHOWN]
        self.fix = fix
        super().__init__(f"{one_line(field)}: {self.value} is not accepted: {fix}")

    def moved(self, before: str, after: str) -> InvalidFieldError:
        """Return it with the path ``before`` of its field replaced by ``after``: the same check, made elsewhere."""
        if self.field.startswith(before):
            self.field = after + self.field.removeprefix(before)
            self.args = (f"{one_line(self.field)}: {self.value} is not accepted: {self.fix}",)
        for each in self.others:
            each.moved(before, after)
        return self


E = TypeVar("E", bound=HalimedeError)


def together(errors: Sequence[E]) -> E:
    """Return the first of several errors (at least one), with the rest as its ``others``."""
    first, *rest = [each for error in errors for each in (error, *error.others)]
    first.others = tuple(rest)
    return first


def refuse(errors: Sequence[HalimedeError]) -> None:
    """Raise the first of several errors, with the rest as its ``others``; nothing if there are none."""
    if errors:
        raise together(errors)


def check_all(*checks: Callable[[], object]) -> None:
    """Run all checks. Raises one InvalidFieldError with the errors of all."""
    found: list[InvalidFieldError] = []
    for check in checks:
        try:
            check()
        except InvalidFieldError as error:
            found.append(error)
    refuse(found)


class DecodeError(HalimedeError):
    """Bytes that are not a valid message of their topic. The text is safe to log: it contains no payload.

    ``cause`` is the text without ``fix``, what its sender has to do: a reader of files has another correction.
    """

    def __init__(self, cause: str, *, fix: str = "") -> None:
        self.cause = cause
        self.fix = fix
        super().__init__(f"{cause}: {fix}" if fix else cause)


class TooLargeError(HalimedeError):
    """A payload over the limit, refused before it is sent or decoded."""


class BusError(HalimedeError):
    """A failed operation of the bus. Temporary, except for some subclasses."""


class DisconnectedError(BusError):
    """The connection was lost before the broker answered: the message may or may not have arrived."""


class NotAllowedError(DisconnectedError):
    """The broker refuses this client, or the client does not trust the broker: a retry alone does not help."""


class BrokerNameError(NotAllowedError):
    """The broker's certificate does not have the name or address that this client connects to."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the broker's certificate does not have the name {host}: connect to a name that it has, or add this one "
            f"(halimede certs add --broker {host} SITE) and give the broker its new certificate"
        )


class RefusedError(BusError):
    """The broker answered with a failure code (such as 0x87 not authorised): repeating does not help."""

    def __init__(self, topic: str, reason: int, text: str) -> None:
        self.reason = reason
        super().__init__(f"the broker refused {topic}: {text} (0x{reason:02x})")


class NoSubscriberError(BusError):
    """The broker accepted the message, but it has no subscriber (MQTT reason code 0x10)."""


@contextlib.contextmanager
def first_error() -> Iterator[None]:
    """Raise the first HalimedeError of a task group by itself, if the group has no other errors.

    Without ``except*``: some Python 3.11 releases wrap an error that is raised inside it in a group again.
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
