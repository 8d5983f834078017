"""Errors for clients of a server, each with its HTTP status; ``grpc_handlers.CODES`` has those of gRPC."""

from __future__ import annotations

from halimede.errors import HalimedeError


class ServeError(HalimedeError):
    """A request that gets no answer, because of a mistake in it if no subclass says otherwise.

    ``status``: the HTTP status.
    """

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
    """A body that is not in the encoding that its header names. Its connection is closed."""


class TooMuchError(ServeError):
    """A request or an answer above a limit of size."""

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
    """The client's timeout was over before the model could answer."""

    status = 504
