"""Reads files that a resource names, if they are on the machine of ``halimede apply``: for their digests and problems.

The nodes that use the files check them again; here, a user learns of a mistake before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halimede.api import Resource, parse, placements
from halimede.api.base import NEPTUNE
from halimede.api.file_references import code_files
from halimede.api.model import PLURAL as MODELS
from halimede.api.model import ModelSpec, in_force
from halimede.api.model_formats import ONNX, format_of
from halimede.api.neptune import to_sedna
from halimede.api.placement import SERVICES
from halimede.errors import HalimedeError

#: most bytes of a Python file; a larger one is no script
MAX_CODE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file on this machine.

    ``digest``: SHA-256 of the model with its external data; empty: there is no file here, or it has a ``problem``
    other than a wrong ``spec.sha256``. ``problem``: why the Model cannot be used; empty: it can, as far as this machine
    knows.
    """

    digest: str = ""
    problem: str = ""


def read_local(resource: Resource[Any]) -> LocalModel:
    """Return digest and problem of the file that a Model names, if it is on this machine. Reads the whole file.

    Both are empty without such a file, and for kinds other than Model.
    """
    from halimede.models import local_path

    if resource.kind.plural != MODELS:
        return LocalModel()
    spec = in_force(resource.spec)
    try:
        path = local_path(spec.url)
        if path is None or not path.is_file():
            return LocalModel()
        return _read(path, spec)
    except HalimedeError as error:
        return LocalModel(problem=str(error))
    except OSError as error:
        return LocalModel(problem=f"{error.filename or path} cannot be read here: {error.strerror}")


def local_code(resource: Resource[Any]) -> dict[str, str]:
    """Return the SHA-256 of each Python file that a service names and this machine can read, by path.

    Nothing for kinds without workers.
    """
    if resource.kind.plural not in SERVICES:
        return {}
    if resource.kind.api_version == NEPTUNE:
        resource = parse(to_sedna(resource))
    named = {file for placement in placements(resource.spec) for file in code_files(resource.spec, placement)}
    digests = {file: _code_digest(Path(file)) for file in sorted(named)}
    return {file: digest for file, digest in digests.items() if digest}


def _code_digest(path: Path) -> str:
    """Return the SHA-256 of a Python file; empty: it cannot be read, or is too large."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_CODE_BYTES:
            return ""
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _read(path: Path, spec: ModelSpec) -> LocalModel:
    """Return digest and problem of a model's file. Raises HalimedeError and OSError."""
    from halimede.models.archive import kind_of
    from halimede.models.external_data import data_files, digest_of, packing_advice

    locations = data_files(path) if format_of(spec.format) is ONNX else []
    try:
        digest = digest_of(path)
    except FileNotFoundError as error:
        text = f"{path} has its weights in {error.filename}, which does not exist: {packing_advice(locations)}"
        return LocalModel(problem=text)
    if locations and spec.sha256:
        text = f"spec.sha256 covers only the model file, and not its weights beside it: {packing_advice(locations)}"
        return LocalModel(problem=text)
    if spec.sha256 not in {"", digest}:
        return LocalModel(digest, f"spec.sha256 is {spec.sha256[:12]}.., and {path} has {digest[:12]}..")
    if format_of(spec.format) is ONNX and path.stat().st_size and not kind_of(path):
        _check(path)
    return LocalModel(digest)


def _check(path: Path) -> None:
    """Raise HalimedeError for a file that is no ONNX model; without a worker's packages nothing is checked."""
    try:
        from halimede.inference.file_checks import check_model
    except ModuleNotFoundError:  # only the extras of workers read models; nodes report what is wrong
        return
    check_model(path)
