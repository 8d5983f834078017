"""Refusals as the API server words them: objects of kind Status, with code, reason, details and causes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
        meta = {"continue": self.token} if self.token else {}
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": meta, "status": "Failure"}
        status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        return {**status, "code": self.code}


@dataclass(frozen=True)
class Cause:
    """What is wrong with one field, as `field.Error` of the real server."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(field: str, detail: str = "") -> Cause:
    return Cause("FieldValueRequired", field, f"Required value{f': {detail}' if detail else ''}")


def invalid(field: str, value: object, detail: str) -> Cause:
    """Say that the field's value is wrong."""
    return Cause("FieldValueInvalid", field, f"Invalid value: {shown(value)}: {detail}")


def forbidden(field: str, detail: str) -> Cause:
    """Say that the field must not be set or changed."""
    return Cause("FieldValueForbidden", field, f"Forbidden: {detail}")


def unsupported(field: str, value: object, values: list[Any]) -> Cause:
    supported = ", ".join(shown(each) for each in values)
    return Cause("FieldValueNotSupported", field, f"Unsupported value: {shown(value)}: supported values: {supported}")


def shown(value: object) -> str:
    """Return a value as messages quote it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "null" if value is None else str(value)


def details_of(name: str, group: str, kind: str) -> dict[str, Any]:
    """Return what a Status says of its object."""
    return {key: value for key, value in (("name", name), ("group", group), ("kind", kind)) if value}


def duplicate(field: str, name: str) -> Cause:
    """Say that an item before has the name."""
    return Cause("FieldValueDuplicate", field, f'Duplicate value: "{name}"')


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def not_found(kind: Any, name: str) -> ApiError:
    details = details_of(name, kind.group, kind.plural)
    return ApiError(404, "NotFound", f'{kind.resource} "{name}" not found', details=details)


def no_such_page() -> ApiError:
    """404 for a path that means nothing."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(kind: Any, name: str) -> ApiError:
    details = details_of(name, kind.group, kind.plural)
    return ApiError(409, "AlreadyExists", f'{kind.resource} "{name}" already exists', details=details)


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(kind: Any, name: str, why: str = MODIFIED) -> ApiError:
    """409 for an object that is not what the caller believes."""
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=details_of(name, kind.group, kind.plural))


def invalid_object(kind: Any, name: str, causes: list[Cause]) -> ApiError:
    """422 with what is wrong, field by field."""
    said = str(causes[0]) if len(causes) == 1 else "[" + ", ".join(map(str, causes)) + "]"
    full = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    details = details_of(name, kind.group, kind.kind) | {"causes": [asdict(cause) for cause in causes]}
    return ApiError(422, "Invalid", f'{full} "{name}" is invalid: {said}', details=details)


def no_version(text: str) -> ApiError:
    """500 (as the real server answers) for a resourceVersion that is no number."""
    said = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    return ApiError(500, "", said)


def expired(message: str, *, token: str | None = None) -> ApiError:
    """410: older than what is kept."""
    return ApiError(410, "Expired", message, token=token)
