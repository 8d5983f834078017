"""The desired model of a running worker or server: a small file in its folder, written by its supervisor.

The file is the whole desired state and is replaced atomically. Its reader takes the step from the present state to the
desired one, and reports its progress (``ModelInUse``). So the desired state survives both processes, and needs no
broker.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from halimede.api.base import convert
from halimede.api.model import ModelSpec
from halimede.api.model import check as check_model
from halimede.errors import InvalidFieldError
from halimede.system.files import write_atomic

#: seconds between two reads of the file
LOOK_S = 0.25
#: characters of a desired state's mark
MARK_DIGITS = 16
#: the URL of the spec, which must have one: the file is local, or an estimator needs none
LOCAL_URL = "/"


class DesiredModel(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The desired model: its name, version, file, digest, and the Model's spec in JSON form.

    ``canary_percent``: the share of requests that go to it while the version before answers the others; 100: all.
    ``tried``: its trial in a child process has succeeded already. ``calibration``: its own calibration as JSON; empty:
    the service's. ``audit_share``: least share of the easy samples to audit, for as long as this is desired.
    """

    name: str
    path: str
    version: str = ""
    digest: str = ""
    spec: dict[str, Any] = {}
    canary_percent: Annotated[int, Meta(ge=0, le=100)] = 100
    tried: bool = False
    calibration: str = ""
    audit_share: Annotated[float, Meta(ge=0, le=1)] = 0.0

    @property
    def mark(self) -> str:
        """A short digest of the desired state, by which reports refer to it."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:MARK_DIGITS]

    def same(self, other: DesiredModel) -> bool:
        """Whether both have the same content, the same spec and the same calibration."""
        content = self.digest == other.digest if self.digest and other.digest else self.path == other.path
        return content and (self.spec, self.calibration) == (other.spec, other.calibration)


def spec_of(desired: DesiredModel, field: str) -> ModelSpec:
    """Return the spec to open a desired model with, plain ONNX if it has none. Raises InvalidFieldError.

    ``field``: the name of the spec in the error.
    """
    spec = convert({"format": "onnx", **desired.spec, "url": LOCAL_URL}, ModelSpec, field)
    check_model(spec)
    return spec


class Desired(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """All desired models of a process.

    ``successor``: when the process is stopped, another one of the same worker starts and continues its sessions.
    """

    models: list[DesiredModel] = []
    successor: bool = False

    @property
    def only(self) -> DesiredModel | None:
        """The desired model, if there is exactly one."""
        return self.models[0] if len(self.models) == 1 else None


def write(path: Path, desired: Desired) -> None:
    """Replace the desired state. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(desired), shared=True)


def read(path: Path, field: str) -> Desired | None:
    """Return the desired state, None if the file does not exist. Raises InvalidFieldError if it cannot be read.

    ``field``: the name of the file in errors, as users write it.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Desired)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidFieldError(field, str(path), f"give a readable file: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise InvalidFieldError(field, str(path), f"write its models as JSON: {error}") from error


async def changes(path: Path, field: str) -> AsyncIterator[Desired]:
    """Yield the desired state and each replacement of it, until cancelled. Raises InvalidFieldError: see ``read``."""
    last: tuple[int, int] | None = None
    while True:
        current = _stat(path)
        if current is not None and current != last and (desired := read(path, field)) is not None:
            last = current
            yield desired
        await asyncio.sleep(LOOK_S)


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:  # missing, or not readable at this moment
        return None
    return facts.st_mtime_ns, facts.st_ino
