"""Removes what the workers of a forgotten service have left on this node: their logs, ledgers and own files.

A worker's folder is moved aside at once, so that a service that comes back under that name starts with an empty one,
and is removed later in a thread: a worker may have written any number of files. A crash in between loses nothing.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil

import structlog

from halimede.api.placement import worker_name
from halimede.errors import InvalidFieldError
from halimede.names import Key
from services.lc.paths import WORKERS, NodePaths, Worker
from services.lc.planning.node_kinds import NODE_KINDS, NodeKind

log = structlog.get_logger()


def put_aside(folders: NodePaths, service: Key) -> None:
    """Move the folders of a service's workers to where ``remove`` finds them. None of its workers may run."""
    for name in _names(folders, service):
        try:
            folder = folders.worker(Worker(service.namespace, name))
            if folder.exists():
                folders.removed.mkdir(exist_ok=True)
                folder.rename(folders.removed / secrets.token_hex(8))
                with contextlib.suppress(OSError):  # other workers of that namespace are there
                    folder.parent.rmdir()
        except InvalidFieldError:  # a name too long for a worker never had a folder
            continue
        except OSError as error:
            log.warning("folder of a worker not removed", worker=name, error=str(error))


def _names(folders: NodePaths, service: Key) -> list[str]:
    """Return the names that a service's workers may have here; what it called those of its own is read off folders."""
    kind = NODE_KINDS.get(service.plural, NodeKind())
    fixed = [worker_name(service.name, role, folders.node) for role in kind.roles]
    if not kind.names_workers:
        return fixed
    before, after = worker_name(service.name, "\n", folders.node, tier=kind.tiers).split("\n")
    here = folders.root / WORKERS / service.namespace
    found = [path.name for path in here.iterdir()] if here.is_dir() else []
    return fixed + [
        name
        for name in found
        if name.startswith(before) and name.endswith(after) and "." not in name[len(before) : -len(after)]
    ]


def remove(folders: NodePaths) -> None:
    """Remove what was put aside. Blocks: call it in a thread."""
    if folders.removed.is_dir():
        for path in folders.removed.iterdir():
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
