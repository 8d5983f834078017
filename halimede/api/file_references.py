"""The files that resources refer to.

``resolve`` makes the paths in a manifest (a file with a resource) absolute: they are relative to the manifest's folder.
Programs that read manifests from files do this before they check them, because nodes and GM do not know the folder.

``code_files`` returns the Python files that the spec of a service names: LC replaces a worker that imports one after an
edit of the file. Modules that those files import are not named, so they do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from halimede.api.base import kinds
from halimede.api.mining import rule_file
from halimede.api.multiedge import MultiEdgeInferenceServiceSpec
from halimede.api.placement import Placement

#: most files of one worker that are watched
MAX_CODE_FILES = 16
#: the name of a user's class or object, such as ``own:Estimator``, with its module
MODULE = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*):[A-Za-z_][A-Za-z0-9_.]*", re.ASCII)
#: the beginning of a URL
_scheme = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def code_files(spec: Any, placement: Placement) -> tuple[str, ...]:
    """Return the absolute paths of the Python files that the spec of a worker names, sorted, whether they exist or not.

    ``spec``: that of the service; ``placement``: the worker. The files are that of its mining rule, scripts in its
    command, and in its ``workingDir`` the modules of its rule, of its application and of its estimator: at most 16.
    """
    return tuple(sorted(set(_paths(spec, placement))))[:MAX_CODE_FILES]


def _paths(spec: Any, placement: Placement) -> Iterator[str]:
    """Yield the paths of the files that ``code_files`` returns; a path may come twice."""
    container = placement.pod.containers[0]
    if rule := rule_file(placement.rule):
        yield rule
    folder = PurePosixPath(container.working_dir)
    scripts = [argument for argument in (*container.command, *container.args) if argument.endswith(".py")]
    entries = [placement.rule] if not rule else []
    entries += [variable.value for variable in container.env if variable.name == "ESTIMATOR"]
    if isinstance(spec, MultiEdgeInferenceServiceSpec):
        entries.append(spec.application.entry)
    modules = filter(None, map(MODULE.fullmatch, entries))
    for script in (*scripts, *(f"{module[1].replace('.', '/')}.py" for module in modules)):
        path = folder / script
        if path.is_absolute() and "\0" not in script and ".." not in path.parts:
            yield str(path)


def resolve(body: Any, folder: Path) -> Path | None:
    """Make relative paths in ``body`` absolute, in place; return the first one that does not exist, None if all do.

    ``body``: unchecked plain data of any form. The paths are ``spec.url`` of a Model or Dataset; in services
    ``scriptDir`` (neptune.io), the ``workingDir`` of pod templates, and the file of a mining rule.
    """
    spec = body.get("spec") if isinstance(body, dict) else None
    if not isinstance(spec, dict):
        return None
    if any(kind.kind == body.get("kind") and kind.relative_url for kind in kinds()):
        return _make_absolute(spec, "url", folder, lambda path: path.as_uri())
    lists = [spec.get(field) for field in ("edgeWorkers", "tiers")]
    listed = [worker for workers in lists if isinstance(workers, list) for worker in workers]
    workers = [spec.get("edgeWorker"), spec.get("cloudWorker"), *listed]
    absent = [
        _make_absolute(parent, field, folder, str) for worker in workers for field, parent in _path_fields(worker)
    ]
    return next(filter(None, absent), None)


def _path_fields(worker: Any) -> Iterator[tuple[str, dict[str, Any]]]:
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


def _dict(value: Any) -> dict[str, Any]:
    """Return a value if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def _make_absolute(parent: dict[str, Any], field: str, folder: Path, write: Callable[[Path], str]) -> Path | None:
    """Make one field absolute if it is a relative path; return the path if it does not exist.

    ``write``: returns the text of an absolute path.
    """
    value = parent.get(field)
    if not isinstance(value, str) or not value or "\0" in value:
        return None
    file = rule_file(value)
    relative, class_suffix = (file, value.removeprefix(file)) if file else (value.removeprefix("file:"), "")
    if relative.startswith("/") or (not file and _scheme.match(relative)):
        return None
    path = folder / relative
    try:
        path = path.resolve()
        exists = path.exists()
    except (OSError, RuntimeError):  # a name that is too long, or a cycle of links
        exists = False
    parent[field] = write(path.absolute()) + class_suffix
    return None if exists else path
