"""Refusals as the API server words them: objects of kind Status, with code, reason, details and causes."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A request that is answered with a Status."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.headers = headers or {}
        self.token = token

    def status(self) -> dict[str, Any]:
        """Return the body of the answer."""
        meta = {"continue": self.token} if self.token else {}
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": meta, "status": "Failure"}
        status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        return {**status, "code": self.code}


class Cause:
    """What is wrong with one field, as `field.Error` of the real server."""

    __slots__ = ("field", "message", "reason")

    def __init__(self, reason: str, field: str, message: str) -> None:
        self.reason = reason
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(field: str, detail: str = "") -> Cause:
    """Say that the field is missing."""
    return Cause("FieldValueRequired", field, f"Required value{f': {detail}' if detail else ''}")


def invalid(field: str, value: object, detail: str) -> Cause:
    """Say that the field's value is wrong."""
    return Cause("FieldValueInvalid", field, f"Invalid value: {shown(value)}: {detail}")


def forbidden(field: str, detail: str) -> Cause:
    """Say that the field must not be set or changed."""
    return Cause("FieldValueForbidden", field, f"Forbidden: {detail}")


def unsupported(field: str, value: object, values: list[Any]) -> Cause:
    """Say that the value is none of the possible ones."""
    supported = ", ".join(shown(each) for each in values)
    return Cause("FieldValueNotSupported", field, f"Unsupported value: {shown(value)}: supported values: {supported}")


def shown(value: object) -> str:
    """Return a value as messages quote it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "null" if value is None else str(value)


def _details(kind: Any, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if kind.group:
        details["group"] = kind.group
    return {**details, "kind": kind.plural}


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def not_found(kind: Any, name: str) -> ApiError:
    """404 for an object."""
    return ApiError(404, "NotFound", f'{kind.resource} "{name}" not found', details=_details(kind, name))


def no_such_page() -> ApiError:
    """404 for a path that means nothing."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(kind: Any, name: str) -> ApiError:
    """409 for a second object of one name."""
    return ApiError(409, "AlreadyExists", f'{kind.resource} "{name}" already exists', details=_details(kind, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(kind: Any, name: str, why: str = MODIFIED) -> ApiError:
    """409 for an object that is not what the caller believes."""
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=_details(kind, name))


def invalid_object(kind: Any, name: str, causes: list[Cause]) -> ApiError:
    """422 with what is wrong, field by field."""
    said = str(causes[0]) if len(causes) == 1 else "[" + ", ".join(map(str, causes)) + "]"
    full = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details: dict[str, Any] = {"name": name, "group": kind.group, "kind": kind.kind}
    details = {key: value for key, value in details.items() if value}
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    return ApiError(422, "Invalid", f'{full} "{name}" is invalid: {said}', details=details)


def no_version(text: str) -> ApiError:
    """500 (as the real server answers) for a resourceVersion that is no number."""
    said = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    return ApiError(500, "", said)


def expired(message: str, *, token: str | None = None) -> ApiError:
    """410: older than what is kept."""
    return ApiError(410, "Expired", message, token=token)
