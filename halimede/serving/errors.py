"""Errors for clients: an HTTP status, its gRPC counterpart, and what to do."""

from __future__ import annotations

from halimede.errors import HalimedeError


class ServeError(HalimedeError):
    """A request that is not answered. ``status`` is HTTP's word for whose turn it is to change something."""

    status = 400


class UnauthorizedError(ServeError):
    """The client has not shown the server's token."""

    status = 401


class ModelNotFoundError(ServeError):
    """There is no such model, or not in that version."""

    status = 404


class SlowRequestError(ServeError):
    """A request that has not arrived in time."""

    status = 408


class TooMuchError(ServeError):
    """A request over a limit of size."""

    status = 413


class ModelFailedError(ServeError):
    """The model failed on a request that fits it."""

    status = 500


class ModelUnavailableError(ServeError):
    """Not here, not now: not ready yet, too many requests, about to leave. The same may succeed later, or elsewhere."""

    status = 503


class OverloadedError(ModelUnavailableError):
    """Too many requests at a time. The same may succeed in a moment."""


class ExpiredError(ServeError):
    """The time that the client gave is over."""

    status = 504
