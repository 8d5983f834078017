"""The API server's error responses as exceptions that callers distinguish.

``UnavailableError`` is temporary: the same call may succeed later. The others are not, unless something else changes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Self

import msgspec
import structlog

from halimede.errors import HalimedeError, hide_secrets
from services.gm.cluster.port import ConflictError, NotAcceptedError

log = structlog.get_logger()

#: characters of the server's own words that are shown: they name the field
MAX_MESSAGE = 1000
#: seconds; a server that asks for more is asked again nevertheless
MAX_RETRY_AFTER = 30.0
#: how the server begins to say that what a patch makes of an object is none: with all of the object, then why
_PATCHED = re.compile(r'\A[^{]* is invalid: patch: Invalid value: "(?:[^"\\]|\\.)*": (?=\S)', re.DOTALL)


class KubernetesApiError(HalimedeError):
    """The API server refused. ``status`` is HTTP's."""

    def __init__(self, what: str, status: int, message: str) -> None:
        self.status = status
        text = hide_secrets(message[: 2 * MAX_MESSAGE])
        shown = text if text.isprintable() else " ".join(text.split())
        #: the server's own words
        self.message = shown[:MAX_MESSAGE]
        super().__init__(f"{what}: {self.message} ({status})" if status else f"{what}: {self.message}")

    def about(self, what: str) -> Self:
        """Return the same for users: about that thing, without how it was called and answered."""
        told = type(self)(what, 0, self.message)
        told.status = self.status
        return told


class NotFoundError(KubernetesApiError):
    """There is no such object, or no such kind."""


class AlreadyExistsError(KubernetesApiError):
    """There is an object of that name."""


class StaleError(KubernetesApiError, ConflictError):
    """The object is not any more what the call was meant for: other version, other uid."""


class GoneError(KubernetesApiError):
    """The version to watch from, or the list to go on with, is too old: list again."""


class ForbiddenError(KubernetesApiError, NotAcceptedError):
    """GM's role does not allow this, or the server does not know GM."""


class RefusedObjectError(KubernetesApiError, NotAcceptedError):
    """The object is not acceptable: its message names the field."""


class UnavailableError(KubernetesApiError):
    """The server is not there, too slow, too busy or broken. ``retry_after_s``: what it asked for, else 0."""

    def __init__(self, what: str, status: int, message: str, retry_after_s: float = 0.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(what, status, message)


@contextlib.contextmanager
def worded(about: object) -> Iterator[None]:
    """Have what is not accepted said for users, about what they know. The log has the call and the answer's code."""
    try:
        yield
    except (ForbiddenError, RefusedObjectError) as error:
        log.info("not accepted", object=str(about), error=str(error))
        raise error.about(str(about)) from error


_by_status: dict[int, type[KubernetesApiError]] = {
    400: RefusedObjectError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: StaleError,
    410: GoneError,
    413: RefusedObjectError,
    415: RefusedObjectError,
    422: RefusedObjectError,
}


class _Details(msgspec.Struct, kw_only=True):
    retryAfterSeconds: float = 0.0  # noqa: N815


class _Status(msgspec.Struct, kw_only=True):
    """The Status object of an error response."""

    message: str = ""
    reason: str = ""
    details: _Details | None = None


def error_of(what: str, status: int, body: bytes, headers: Mapping[str, str]) -> KubernetesApiError:
    """Return the error for an answer that is none of success."""
    told = _Status()
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):  # a proxy in between answers in plain text
        told = msgspec.json.decode(body, type=_Status)
    message = (
        _PATCHED.sub("", told.message, count=1) or body[:MAX_MESSAGE].decode(errors="replace") or "no reason given"
    )
    if status == 409 and told.reason == "AlreadyExists":
        return AlreadyExistsError(what, status, message)
    if status in _by_status:
        return _by_status[status](what, status, message)
    after = told.details.retryAfterSeconds if told.details else 0.0
    with contextlib.suppress(ValueError):  # it may be a date: then our own back-off has to do
        after = max(after, float(headers.get("Retry-After", "")))
    return UnavailableError(what, status, message, min(max(after, 0.0), MAX_RETRY_AFTER))
