"""The resources in manifests, for rooms below the command line: YAML 1.2, relative urls relative to their manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from halimede import api
from halimede.api import Resource
from halimede.api.model import PLURAL as MODELS
from halimede.errors import InvalidFieldError

FIELD = "--service"
SUFFIXES = frozenset({".yaml", ".yml", ".json"})
#: bytes of one manifest (what GM takes), and of such files in a folder
MAX_MANIFEST = 1024 * 1024
MAX_FILES = 1000

_scheme = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def read_resources(paths: Sequence[Path]) -> Iterator[Resource[Any]]:
    """Yield what is in files, and in those below folders. Raises InvalidFieldError (field ``--service``)."""
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
            if len(files) > MAX_FILES:
                raise InvalidFieldError(FIELD, str(path), f"it holds {len(files)} manifests: name the service's file")
        else:
            files = [path]
        for file in files:
            yield from _read(file)


def models_beside(folder: Path) -> Iterator[Resource[Any]]:
    """Yield the Models of a folder, as far as its files are manifests that can be read."""
    for file in sorted(folder.iterdir())[:MAX_FILES]:
        if file.suffix in SUFFIXES and file.is_file():
            try:
                yield from [each for each in _read(file) if each.kind.plural == MODELS]
            except InvalidFieldError:
                continue  # it was not given, and may be anything


def _read(path: Path) -> Iterator[Resource[Any]]:
    from ruamel.yaml import YAML  # noqa: PLC0415  # of the cli extra alone
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST + 1)
        if len(data) > MAX_MANIFEST:
            raise InvalidFieldError(FIELD, str(path), f"it is larger than {MAX_MANIFEST >> 20} MiB: is it a manifest?")
        documents = list(YAML(typ="safe", pure=True).load_all(data.decode("utf-8-sig")))
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidFieldError(FIELD, str(path), f"write YAML: {said}") from error
    except OSError as error:
        raise InvalidFieldError(FIELD, str(path), f"it cannot be read: {error.strerror}") from error
    for body in documents:
        if isinstance(body, dict):
            listed = body.get("items") if body.get("kind") == "List" else None
            for item in listed if isinstance(listed, list) else [body]:
                yield _parse(item, path)


def _parse(body: Any, path: Path) -> Resource[Any]:
    spec = body.get("spec") if isinstance(body, dict) else None
    if isinstance(spec, dict) and isinstance(spec.get("url"), str) and spec["url"] and body.get("kind") == "Model":
        plain = spec["url"].removeprefix("file:")
        if not plain.startswith("/") and not _scheme.match(plain):
            spec["url"] = (path.resolve().parent / plain).as_uri()
    try:
        return api.parse(body)
    except InvalidFieldError as error:
        raise InvalidFieldError(f"{path}: {error.field}", error.value, error.fix) from error
