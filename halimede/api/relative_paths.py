"""Makes the paths in a manifest absolute: they are relative to the manifest's folder.

Who reads manifests from files does this before checking them: nodes and GM do not know the folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from halimede.api.base import kinds
from halimede.api.mining import rule_file

_scheme = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def resolve(body: Any, folder: Path) -> Path | None:
    """Make relative paths absolute, in place; return the first one that does not exist.

    These are ``spec.url`` of a Model or Dataset; in services ``scriptDir`` (neptune.io), the ``workingDir`` of pod
    templates, and the file of a mining rule.
    """
    spec = body.get("spec") if isinstance(body, dict) else None
    if not isinstance(spec, dict):
        return None
    if any(kind.kind == body.get("kind") and kind.relative_url for kind in kinds()):
        return _absolute(spec, "url", folder, lambda path: path.as_uri())
    lists = [spec.get(field) for field in ("edgeWorkers", "tiers")]
    several = [worker for workers in lists if isinstance(workers, list) for worker in workers]
    workers = [spec.get("edgeWorker"), spec.get("cloudWorker"), *several]
    absent = [_absolute(part, field, folder, str) for worker in workers for field, part in _named_paths(worker)]
    return next(filter(None, absent), None)


def _named_paths(worker: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the fields of a worker that name a file or folder, and their parents. The document was not checked yet."""
    script = _dict(worker).get("workerSpec")
    if isinstance(script, dict):
        yield "scriptDir", script
    containers = _dict(_dict(_dict(worker).get("template")).get("spec")).get("containers")
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, dict):
            yield "workingDir", container
    rule = _dict(_dict(worker).get("hardExampleMining"))
    if rule_file(rule.get("name")):
        yield "name", rule


def _dict(part: Any) -> dict[str, Any]:
    return part if isinstance(part, dict) else {}


def _absolute(part: dict[str, Any], field: str, folder: Path, write: Callable[[Path], str]) -> Path | None:
    """Make one field absolute if it is a relative path; return the path when there is no such file or folder."""
    value = part.get(field)
    if not isinstance(value, str) or not value or "\0" in value:
        return None
    file = rule_file(value)
    relative, rest = (file, value.removeprefix(file)) if file else (value.removeprefix("file:"), "")
    if relative.startswith("/") or (not file and _scheme.match(relative)):
        return None
    path = folder / relative
    try:
        path = path.resolve()
        there = path.exists()
    except (OSError, RuntimeError):  # a name that is too long, or a cycle of links
        there = False
    part[field] = write(path.absolute()) + rest
    return None if there else path
