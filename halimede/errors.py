"""The exceptions that callers distinguish, and functions for their texts.

Each says what a user or operator can do. Any other exception is a bug and may show its traceback.
"""

from __future__ import annotations

import contextlib
import re
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

#: most characters of a value, and of a field's name, in a message
MAX_SHOWN_CHARACTERS = 160
#: most characters of a value that are searched for secrets: an address is shorter
MAX_SEARCHED_CHARACTERS = 4200
#: most characters of an error in a log line
MAX_LOGGED_CHARACTERS = 256

#: causes of errors without a text, the more special ones first
CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "it took too long"),
    (ConnectionError, "the connection was lost"),
    (EOFError, "the data ended early"),
    (MemoryError, "there is not enough memory"),
    (RecursionError, "it is nested too deeply"),
)

#: an address: user and password, what is shown, query and fragment
_address = re.compile(r"://(?P<user>[^\s'\"]*@)?(?P<shown>[^\s'\"?#]*)(?P<query>[?#][^\s'\"]*)?")


def hide_secrets(text: str) -> str:
    """Return a text with ``***`` for possible secrets in its addresses: rather too many than too few."""
    return _address.sub(
        lambda match: f"://{'***@' if match['user'] else ''}{match['shown']}{'?***' if match['query'] else ''}", text
    )


class _ShortRepr(reprlib.Repr):
    """Shows the beginning of a value, without secrets: a value may be large or contain itself."""

    def repr_str(self, x: str, level: int) -> str:
        """Hide secrets before cutting: a cut address would not be recognised."""
        return super().repr_str(hide_secrets(x[:MAX_SEARCHED_CHARACTERS]), level)

    def repr_instance(self, x: object, level: int) -> str:
        """Hide secrets in values other than plain data as well."""
        with contextlib.suppress(Exception):  # a foreign __repr__ may raise any error
            x = _Verbatim(hide_secrets(repr(x)[:MAX_SEARCHED_CHARACTERS]))
        return super().repr_instance(x, level)


class _Verbatim:
    """An object with a given repr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_short = _ShortRepr()
_short.maxstring = _short.maxother = 120


def shorten_middle(text: str, limit: int = MAX_LOGGED_CHARACTERS) -> str:
    """Return a text of at most ``limit`` characters; in a longer one, secrets are hidden before its middle is cut out.

    A text begins with its subject and ends with the cause and the correction: what is between them is left out.
    """
    if len(text) <= limit:
        return text
    if len(text) > 2 * MAX_SEARCHED_CHARACTERS:
        text = f"{text[:MAX_SEARCHED_CHARACTERS]}…{text[-MAX_SEARCHED_CHARACTERS:]}"
    shown = hide_secrets(text)  # before cutting: a cut address would not be recognised
    if len(shown) <= limit:
        return shown
    begin = limit // 2
    return f"{shown[:begin]}…{shown[len(shown) - (limit - begin - 1) :]}"


def one_line(text: str) -> str:
    """Return text as one line of at most ``MAX_SHOWN_CHARACTERS``: a field's name may be any key of a user."""
    return shorten_middle(text if text.isprintable() else repr(text)[1:-1], MAX_SHOWN_CHARACTERS)


def cause_of(error: BaseException) -> str:
    """Return the cause of an error of the system or of a library in words, without the name of its class."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split())
    return text or next((cause for kind, cause in CAUSES if isinstance(error, kind)), "no cause is reported")


def describe_exception(error: BaseException) -> str:
    """Return an exception of a user's Python code as Python shows it: there, the class is a part of the cause."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


class HalimedeError(Exception):
    """Base of every error that a user or operator can act on; its text is for them.

    ``further_errors``: the other errors of the same input, if its check continued after the first one.
    """

    further_errors: tuple[Self, ...] = ()


class InvalidFieldError(HalimedeError):
    """Refuses a value of a user: names the field, the value and the correction.

    Attributes:
        field: dotted path of the field, such as ``spec.edgeWorker.model.name``.
        value: the refused value as text, cut to a printable length and without secrets.
        fix: the correction, such as ``write a number from 0 to 1``.

    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        self.field = field
        self.value = _short.repr(value)[:MAX_SHOWN_CHARACTERS]
        self.fix = fix
        super().__init__(f"{one_line(field)}: {self.value} is not accepted: {fix}")

    def replace_prefix(self, prefix: str, replacement: str) -> InvalidFieldError:
        """Replace the beginning of the field's path, also in further errors: one check serves several fields.

        Returns the error itself.
        """
        if self.field.startswith(prefix):
            self.field = replacement + self.field.removeprefix(prefix)
            self.args = (f"{one_line(self.field)}: {self.value} is not accepted: {self.fix}",)
        for error in self.further_errors:
            error.replace_prefix(prefix, replacement)
        return self


E = TypeVar("E", bound=HalimedeError)


def combine(errors: Sequence[E]) -> E:
    """Return the first of several errors (at least one), with all others as its ``further_errors``."""
    first, *further = [single for error in errors for single in (error, *error.further_errors)]
    first.further_errors = tuple(further)
    return first


def refuse(errors: Sequence[HalimedeError]) -> None:
    """Raise the first of several errors, with all others as its ``further_errors``; do nothing without any."""
    if errors:
        raise combine(errors)


def check_all(*checks: Callable[[], object]) -> None:
    """Run all checks, which raise InvalidFieldError. Raises one InvalidFieldError with the errors of all of them."""
    errors: list[InvalidFieldError] = []
    for check in checks:
        try:
            check()
        except InvalidFieldError as error:
            errors.append(error)
    refuse(errors)


class DecodeError(HalimedeError):
    """Bytes that are not a valid message of their topic, or file.

    The text is safe to log: of the payload it quotes at most a text that is no valid choice. ``cause`` is the text
    without ``fix``, which says what the sender has to do: a reader of files has another correction.
    """

    def __init__(self, cause: str, *, fix: str = "") -> None:
        self.cause = cause
        self.fix = fix
        super().__init__(f"{cause}: {fix}" if fix else cause)


class TooLargeError(HalimedeError):
    """A payload over a limit, refused before it is sent or decoded."""


class BusError(HalimedeError):
    """A failed operation of the bus. It is temporary, except for some subclasses: a caller may try again."""


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
    """The broker answered with a failure code (such as 0x87 not authorised): repeating does not help.

    ``reason``: the code.
    """

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
        expected, foreign = group.split(HalimedeError)
        if expected is None or foreign is not None:
            raise
        error: BaseException = expected
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
