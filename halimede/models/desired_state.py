"""The desired models of a running worker or server: a small JSON file in its folder, written by its supervisor.

The file is the whole desired state and is replaced atomically. The worker reads it, takes the step from its present
models to the desired ones, and reports its progress (``ModelInUse``). So the desired state survives both processes, and
needs no broker.
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
CHECK_PERIOD_S = 0.25
#: characters of a desired model's fingerprint
FINGERPRINT_DIGITS = 16
#: the URL of a desired model's spec: a spec must have one, and the file is local already
LOCAL_URL = "/"


class DesiredModel(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model that a process should use.

    Attributes:
        name: of the Model resource.
        path: of its file or unpacked folder on this node.
        version: as reported; empty: not given.
        digest: SHA-256 of its content in hexadecimal; empty: not known.
        spec: the Model's spec as plain JSON; empty: plain ONNX.
        canary_percent: the percentage of requests that go to this model, while the version before answers the others;
            100: all of them.
        tried: its trial in a child process has succeeded.
        calibration: the model's own calibration as JSON; empty: that of the service.
        audit_share: least fraction, 0..1, of the easy samples to audit while this model is desired.

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
    def fingerprint(self) -> str:
        """FINGERPRINT_DIGITS hexadecimal digits of the digest of all fields. Reports name the model by it."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:FINGERPRINT_DIGITS]

    def matches(self, other: DesiredModel) -> bool:
        """Whether both have the same content (by digest, else by path), the same spec and the same calibration."""
        is_same_content = self.digest == other.digest if self.digest and other.digest else self.path == other.path
        return is_same_content and (self.spec, self.calibration) == (other.spec, other.calibration)


def spec_of(desired: DesiredModel, field: str) -> ModelSpec:
    """Return the spec with which to open a desired model; plain ONNX if it has none. Raises InvalidFieldError.

    ``field``: how errors name the spec.
    """
    spec = convert({"format": "onnx", **desired.spec, "url": LOCAL_URL}, ModelSpec, field)
    check_model(spec)
    return spec


class Desired(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """All desired models of a process: the content of the file.

    Attributes:
        models: in any order, with different names.
        successor: when this process is stopped, another process of the same worker starts and continues its sessions
            with the broker.

    """

    models: list[DesiredModel] = []
    successor: bool = False

    @property
    def only(self) -> DesiredModel | None:
        """The desired model, if there is exactly one; otherwise None."""
        return self.models[0] if len(self.models) == 1 else None


def write(path: Path, desired: Desired) -> None:
    """Replace the file of the desired state atomically; make its folder if needed. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, msgspec.json.encode(desired), shared=True)


def read(path: Path, field: str) -> Desired | None:
    """Return the desired state; None if the file does not exist. Raises InvalidFieldError if it cannot be read.

    ``field``: how errors name the file: the option or variable in which the user gives it.
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
    """Yield the content of the file, and again whenever it is replaced, until cancelled; a missing file is awaited.

    Raises InvalidFieldError if the file is not valid. ``field``: how errors name the file.
    """
    last_version: tuple[int, int] | None = None
    while True:
        version = _file_version(path)
        if version is not None and version != last_version and (desired := read(path, field)) is not None:
            last_version = version
            yield desired
        await asyncio.sleep(CHECK_PERIOD_S)


def _file_version(path: Path) -> tuple[int, int] | None:
    """Return modification time and inode, which change with each replacement; None without a readable file."""
    try:
        file_status = path.stat()
    except OSError:  # missing, or not readable at this moment
        return None
    return file_status.st_mtime_ns, file_status.st_ino
