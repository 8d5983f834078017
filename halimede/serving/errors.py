"""Errors for clients: an HTTP status, its gRPC counterpart, and what to do."""

from __future__ import annotations

from halimede.errors import HalimedeError


class ServeError(HalimedeError):
    """A request without an answer. ``status`` is the HTTP status: it says whether a retry can help."""

    status = 400


class UnauthorizedError(ServeError):
    """The client has not sent the server's token."""

    status = 401


class ModelNotFoundError(ServeError):
    """The model does not exist, or not in that version."""

    status = 404


class SlowRequestError(ServeError):
    """A request that did not arrive in time."""

    status = 408


class UnreadableBodyError(ServeError):
    """A body that is not in the encoding that its header names: where the next request begins is unknown."""


class TooMuchError(ServeError):
    """A request above a size limit."""

    status = 413


class ModelFailedError(ServeError):
    """The model failed on a valid request."""

    status = 500


class ModelUnavailableError(ServeError):
    """Temporarily unavailable: not ready yet, overloaded, or stopping. A retry here or elsewhere may succeed."""

    status = 503


class OverloadedError(ModelUnavailableError):
    """Too many concurrent requests. A retry soon may succeed."""


class ExpiredError(ServeError):
    """The client's timeout is over."""

    status = 504
