"""Reads manifests (YAML or JSON files, folders, standard input) into checked resources.

A manifest has one or more documents, each a resource or a List of resources. YAML is read as 1.2, as the API server
reads it. ``load`` checks all documents, and its errors name file, line and document.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from halimede import api
from halimede.api.file_references import resolve
from halimede.cli.output import warn
from halimede.codec import MAX_JSON
from halimede.errors import HalimedeError, InvalidFieldError, cause_of, refuse
from halimede.system.bounded_yaml import bounded_yaml, decode_text, yaml_problem

#: suffixes of the files of a folder that are read
SUFFIXES = frozenset({".yaml", ".yml", ".json"})
#: the path that means standard input
STDIN = "-"
#: most documents of one file
MAX_DOCUMENTS = 10_000
#: fields by which a file of a folder is taken for a manifest, and the encodings in which they are searched
MANIFEST_FIELDS = ("apiVersion", "kind")
ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")
#: most files of a folder, of those that are no manifests, that a message names
MAX_NAMED = 5

#: an escaped surrogate: two of them are one character in JSON, and an error in YAML
_half = re.compile(r"\\u[dD][89a-fA-F]")


class ManifestError(HalimedeError):
    """A manifest that cannot be used; the text names the file, the document and, if it is known, the line."""


#: returns the resource of a document, or raises InvalidFieldError: ``api.parse``, or ``api.admit`` for ``apply``
Check = Callable[[Any], api.Resource[Any]]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One checked resource, and where it was read."""

    resource: api.Resource[Any]
    #: the file, or ``standard input``
    source: str
    #: number of the document in the file, from 1
    document: int
    #: the first file or folder that the resource names and that does not exist here; None: all exist
    missing: Path | None = None


def load(paths: Sequence[str], namespace: str = "", check: Check = api.parse) -> list[Manifest]:
    """Return all resources of manifests, in the order in which they must be applied.

    ``paths`` are files, folders or ``-`` for standard input. ``namespace`` is for resources that name none; empty:
    their default. Raises the first ManifestError of all manifests, with all others as its ``further_errors``.
    """
    manifests: list[Manifest] = []
    errors: list[ManifestError] = []
    for path in paths:
        try:
            for source in sources(path):
                manifests += _read(source, namespace, check, errors)
        except ManifestError as error:
            errors.append(error)
    first_by_key: dict[str, Manifest] = {}
    for manifest in manifests:
        first = first_by_key.setdefault(str(manifest.resource.key), manifest)
        if first is not manifest:
            text = (
                f"{manifest.source}, document {manifest.document}: {manifest.resource.key} is already in "
                f"{first.source}, document {first.document}: keep one of them"
            )
            errors.append(ManifestError(text))
    refuse(errors)
    return sorted(manifests, key=lambda m: m.resource.kind.order)


def sources(path: str) -> list[str]:
    """Return the manifests of a path: itself, or all below a folder. Warns of other .yaml, .yml and .json files there.

    Raises ManifestError if there is none.
    """
    if path == STDIN:
        return [path]
    here = Path(path)
    if not here.exists():
        raise ManifestError(f"{path}: there is no such file or folder")
    return _in_folder(here) if here.is_dir() else [path]


def _in_folder(folder: Path) -> list[str]:
    """Return the manifests below a folder; warn of other files with such suffixes. Raises ManifestError without any."""
    files = sorted(str(file) for file in folder.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not files:
        raise ManifestError(f"{folder}: there is no .yaml, .yml or .json file in this folder")
    manifests = [file for file in files if _is_manifest(file)]
    if len(manifests) < len(files):
        other_files = [file for file in files if file not in set(manifests)]
        more = f" and {len(other_files) - MAX_NAMED} more" if len(other_files) > MAX_NAMED else ""
        text = f"files without {' and '.join(MANIFEST_FIELDS)}: {', '.join(other_files[:MAX_NAMED])}{more}"
        if not manifests:
            raise ManifestError(f"{folder}: there is no manifest in this folder, only {text}")
        warn(f"skipped {text}")
    return manifests


def _is_manifest(file: str) -> bool:
    """Whether a file of a folder is meant as a manifest: a document has a field of a manifest.

    True as well for a file that cannot be read, or has the name of such a field in a text that is not valid: the caller
    then reports its error.
    """
    try:
        data = _data(file)
        if not any(field.encode(encoding) in data for field in MANIFEST_FIELDS for encoding in ENCODINGS):
            return False
        bodies = (body for _, body in _documents(file, _text(file)))
        return any(isinstance(body, dict) and not body.keys().isdisjoint(MANIFEST_FIELDS) for body in bodies)
    except ManifestError:
        return True


def _read(source: str, namespace: str, check: Check, errors: list[ManifestError]) -> Iterator[Manifest]:
    """Yield the valid resources of a file; append the errors of invalid ones to ``errors``."""
    try:
        yield from _read_documents(source, _text(source), namespace, check, errors)
    except ManifestError as error:
        errors.append(error)


def _read_documents(
    source: str, text: str, namespace: str, check: Check, errors: list[ManifestError]
) -> Iterator[Manifest]:
    """Yield the valid resources in a file's text; append the errors of invalid ones to ``errors``.

    Raises ManifestError for a text that is not valid YAML, or has no resource.
    """
    folder = Path.cwd() if source == STDIN else Path(source).resolve().parent
    shown = "standard input" if source == STDIN else source
    count = 0
    for number, body in _documents(shown, text):
        for item in _items(body):
            count += 1
            try:
                yield _check(item, shown, number, folder, namespace=namespace, check=check)
            except InvalidFieldError as error:
                for one_error in (error, *error.further_errors):
                    line = _line(text, number, one_error.field)
                    where = f"{shown}:{line}" if line else shown
                    errors.append(ManifestError(f"{where}: document {number}: {one_error}"))
    if not count:
        raise ManifestError(f"{shown}: it contains no resource")


def _check(body: Any, source: str, number: int, folder: Path, *, namespace: str, check: Check) -> Manifest:
    """Return the resource in a body; its relative paths become absolute, from ``folder`` on. Raises InvalidFieldError.

    ``source``: the file, for people; ``number``: that of the document.
    """
    _drop_nulls(body)
    missing = resolve(body, folder)
    if namespace and isinstance(body, dict) and isinstance(body.get("metadata"), dict):
        body["metadata"].setdefault("namespace", namespace)
    check(body)
    try:
        # values that JSON lacks become text (dates) or lists (sets); others are refused here, before anything is sent
        plain = msgspec.json.decode(msgspec.json.encode(body))
    except (TypeError, ValueError, RecursionError) as error:
        fix = "use only text, numbers, lists and maps with text keys"
        raise InvalidFieldError("resource", str(error), fix) from error
    return Manifest(check(plain), source, number, missing)


def _drop_nulls(body: Any) -> None:
    """Remove fields without a value, in place: an empty field counts as absent, as for kubectl.

    Raises InvalidFieldError for NaN and infinity: JSON has no number for them, and would make an empty field.
    """
    values, ids = [("", body)], set[int]()
    while values:
        path, value = values.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidFieldError(path, value, "write a finite number")
        if not isinstance(value, dict | list) or id(value) in ids:  # an alias may contain itself
            continue
        ids.add(id(value))
        if isinstance(value, dict):
            for name in [name for name, field in value.items() if field is None]:
                del value[name]
            values += [(f"{path}.{name}".removeprefix("."), field) for name, field in value.items()]
        else:
            values += [(f"{path}[{number}]", field) for number, field in enumerate(value)]


def _text(source: str) -> str:
    """Return the text of a file in UTF-8, or UTF-16 with a byte order mark. Raises ManifestError."""
    data = _data(source)
    if len(data) > MAX_JSON:
        raise ManifestError(f"{source}: it is larger than {MAX_JSON >> 20} MiB: split it")
    try:
        return decode_text(data)
    except UnicodeDecodeError as error:
        name = error.encoding.upper()[: len("UTF-16")]
        raise ManifestError(f"{source}: byte {error.start} is not {name}: give a manifest in UTF-8") from error


def _data(source: str) -> bytes:
    """Return the content of a file or of standard input, at most a byte over the limit. Raises ManifestError."""
    try:
        if source == STDIN:
            return sys.stdin.buffer.read(MAX_JSON + 1)
        with Path(source).open("rb") as file:
            return file.read(MAX_JSON + 1)
    except OSError as error:
        raise ManifestError(f"{source}: cannot be read: {error.strerror}") from error


def _documents(source: str, text: str) -> Iterator[tuple[int, Any]]:
    """Yield number (from 1) and content of each document that is not empty. Raises ManifestError."""
    if _half.search(text):
        with contextlib.suppress(ValueError, RecursionError):
            yield 1, json.loads(text)
            return
    number = 0
    try:
        for number, body in enumerate(bounded_yaml().load_all(text), start=1):
            if number > MAX_DOCUMENTS:
                raise ManifestError(f"{source}: it has more than {MAX_DOCUMENTS} documents: split it")
            if body is not None:
                yield number, body
    except MarkedYAMLError as error:
        line, problem = yaml_problem(error)
        where = f"{source}:{line}" if line else source
        raise ManifestError(f"{where}: document {number + 1}: not valid YAML: {problem}") from error
    except (YAMLError, ValueError, TypeError) as error:
        raise ManifestError(f"{source}: document {number + 1}: not valid YAML: {cause_of(error)}") from error
    except RecursionError as error:
        raise ManifestError(f"{source}: document {number + 1}: it is nested too deeply: flatten it") from error


def _items(body: Any) -> Iterable[Any]:
    """Return the resources of a document: itself, or the items of a List, as ``get -o yaml`` writes it."""
    if isinstance(body, dict) and body.get("kind") == "List" and isinstance(body.get("items"), list):
        return list(body["items"])
    return [body]


def _line(text: str, number: int, field: str) -> int | None:
    """Return the line, from 1, of a field or of the nearest part that contains it; None if YAML is not valid.

    ``number`` is that of the document, ``field`` a path such as ``spec.tiers[0].name``.
    """
    nodes = _nodes(text)
    if len(nodes) < number:
        return None
    node = nodes[number - 1]
    line: int = node.start_mark.line + 1
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", field):
        if isinstance(node, MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == name), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, SequenceNode) and index and int(index) < len(node.value):
            node = node.value[int(index)]
            line = node.start_mark.line + 1
        else:
            break
    return line


@lru_cache(maxsize=1)  # a file with many errors is then read twice, not once for each error
def _nodes(text: str) -> list[Node]:
    """Return the documents of a file with the positions of their fields; fewer if the file is not valid YAML."""
    nodes: list[Node] = []
    with contextlib.suppress(YAMLError, RecursionError, ValueError):
        nodes.extend(bounded_yaml().compose_all(text))
    return nodes
