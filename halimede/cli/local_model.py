"""The files that a resource names on the machine of ``halimede apply``: their digests, and why they cannot be used."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halimede.api import Resource, parse, placements
from halimede.api.base import NEPTUNE
from halimede.api.code_files import code_files
from halimede.api.model import PLURAL as MODELS
from halimede.api.model import ModelSpec, in_force
from halimede.api.model_formats import ONNX, format_of
from halimede.api.neptune import to_sedna
from halimede.api.placement import SERVICES
from halimede.errors import HalimedeError

#: bytes of a Python file; a larger one is no script
MAX_CODE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LocalModel:
    """The digest of a local model with its external data; empty if it has none or cannot be used (``problem``)."""

    digest: str = ""
    problem: str = ""


def read_local(resource: Resource[Any]) -> LocalModel:
    """Read the file that a Model names, if it is on this machine. Blocks: it reads the whole file."""
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
    """Return the digests of the Python files that a service names and that this machine can read, by path."""
    if resource.kind.plural not in SERVICES:
        return {}
    if resource.kind.api_version == NEPTUNE:
        resource = parse(to_sedna(resource))
    named = {file for placement in placements(resource.spec) for file in code_files(resource.spec, placement)}
    digests = {file: _code_digest(Path(file)) for file in sorted(named)}
    return {file: digest for file, digest in digests.items() if digest}


def _code_digest(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > MAX_CODE_BYTES:
            return ""
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _read(path: Path, spec: ModelSpec) -> LocalModel:
    from halimede.models.archive import kind_of
    from halimede.models.external_data import advice, data_files, digest_of

    locations = data_files(path) if format_of(spec.format) is ONNX else []
    try:
        digest = digest_of(path)
    except FileNotFoundError as error:
        text = f"{path} has its weights in {error.filename}, which does not exist: {advice(locations)}"
        return LocalModel(problem=text)
    if locations and spec.sha256:
        text = f"spec.sha256 covers only the model file, and not its weights beside it: {advice(locations)}"
        return LocalModel(problem=text)
    if spec.sha256 not in {"", digest}:
        return LocalModel(digest, f"spec.sha256 is {spec.sha256[:12]}.., and {path} has {digest[:12]}..")
    if format_of(spec.format) is ONNX and path.stat().st_size and not kind_of(path):
        _check(path)
    return LocalModel(digest)


def _check(path: Path) -> None:
    """Check that a file is an ONNX model. Raises HalimedeError."""
    try:
        from halimede.inference.file_checks import check_model
    except ModuleNotFoundError:  # only the extras of workers read models; nodes report what is wrong
        return
    check_model(path)
