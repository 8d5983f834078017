"""The files of workers on this node: ``Logs`` serves their logs over the bus.

``move_worker_folders`` takes the folders of deleted services out of the way, and ``remove_moved_folders`` removes them.
Workers append to their logs themselves, so a log that is too large is copied and then truncated in place (rotated).
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import secrets
import shutil
from collections.abc import Coroutine
from pathlib import Path

import structlog

from halimede import topics
from halimede.api.placement import worker_name
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcServer
from halimede.errors import InvalidFieldError
from halimede.messages import LogsReply, LogsRequest
from halimede.names import Key
from halimede.system.child_process import MAX_LOG, rotate, rotated_path
from services.lc.paths import WORKERS, NodePaths, Worker
from services.lc.planning.node_kinds import NODE_KINDS, NodeKind

log = structlog.get_logger()
#: seconds between two checks of the logs' sizes
ROTATE_S = 5.0
#: most bytes of a log in one reply, and most bytes in JSON for one of them
MAX_PART, WORST_GROWTH = 512 * 1024, 6


class Logs(RpcServer[LogsRequest, LogsReply]):
    """An ``RpcServer`` that answers requests for parts of workers' logs.

    Its task rotates the logs, and removes the folders that ``move_worker_folders`` has moved.
    """

    def __init__(self, folders: NodePaths, bus: Bus) -> None:
        requests = topics.LOGS_REQUEST.filter(node=folders.node)
        super().__init__(bus, requests, topics.LOGS_REPLY, self._answer, queue=100)
        self._folders = folders

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Return the coroutines to run as long as the LC, by name."""
        return {"logs": self.run()}

    async def run(self) -> None:
        """Rotate large logs, and remove moved folders, until cancelled."""
        while True:
            try:
                await asyncio.to_thread(remove_moved_folders, self._folders)
            except OSError as error:
                log.warning("leftovers of workers not removed", error=str(error))
            for path in self._folders.root.glob("workers/*/*/worker.log"):
                try:
                    if path.stat().st_size > MAX_LOG:
                        await asyncio.to_thread(rotate, path)
                except OSError as error:
                    log.warning("log not rotated", path=str(path), error=str(error))
            await asyncio.sleep(ROTATE_S)

    async def _answer(self, delivery: Delivery[LogsRequest]) -> LogsReply:
        """Return a part of a worker's log, or the error."""
        request = delivery.body
        max_text = (self._bus.max_packet - 4096) // WORST_GROWTH  # 4096 bytes for all but the text
        try:
            path = self._folders.log(Worker(request.namespace, request.worker))
            return read_part(path, request.offset, min(request.limit, MAX_PART, max_text))
        except InvalidFieldError as error:
            return LogsReply(error=str(error))
        except FileNotFoundError:
            text = f"no worker {request.namespace}/{request.worker} has run on node {self._folders.node}"
            return LogsReply(error=text)
        except OSError as error:
            return LogsReply(error=f"the log cannot be read: {error.strerror}")


class PodLogs(Logs):
    """``Logs`` of a node of pods: replies with the command that shows a pod's log. Only the API server serves it."""

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Return no tasks: there are no logs here, and a task that ended would make the node unhealthy."""
        return {}

    async def _answer(self, delivery: Delivery[LogsRequest]) -> LogsReply:
        """Return an error that says where the log is."""
        request = delivery.body
        node, namespace = self._folders.node, request.namespace
        try:
            self._folders.log(Worker(namespace, request.worker))
        except InvalidFieldError as error:
            return LogsReply(error=str(error))
        command = f"kubectl logs --namespace {namespace} {request.worker}"
        all_pods = f"kubectl logs --namespace {namespace} --selector app.kubernetes.io/managed-by=halimede --prefix"
        listed = f"kubectl get pods --namespace {namespace} --field-selector spec.nodeName={node}"
        text = f"node {node} runs its workers as pods: use `{command}`, or `{all_pods}` for all; `{listed}` lists them"
        return LogsReply(error=text)


def read_part(path: Path, offset: int, limit: int) -> LogsReply:
    """Return at most ``limit`` bytes of a log from the byte ``offset`` on, as text, with the offset of the next part.

    A negative offset counts from the end. One beyond the end is from before a rotation: then the rotated log is read to
    its end, and after that the log from its beginning. An incomplete character is left for the next part. Raises
    OSError.
    """
    if offset > path.stat().st_size and _size(rotated := rotated_path(path)) > offset:
        path = rotated
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        begin = size + offset if offset < 0 else offset
        start = file.seek(begin if 0 <= begin <= size else 0)
        data = file.read(limit)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return LogsReply(text=text, offset=start + len(data) - len(decoder.getstate()[0]))


def _size(path: Path) -> int:
    """Return the bytes of a file; 0: there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def move_worker_folders(folders: NodePaths, service: Key) -> None:
    """Move the folders of a service's workers (logs, counters, own files), for ``remove_moved_folders`` to remove.

    Call it when none of the service's workers runs. A folder is moved at once, so that a new service of that name
    starts with an empty one, and is removed later in a thread: a worker may have written any number of files. A failure
    is only logged.
    """
    for name in _worker_names(folders, service):
        try:
            move_folder(folders, folders.worker(Worker(service.namespace, name)))
        except InvalidFieldError:  # a name too long for a worker never had a folder
            continue


def move_folder(folders: NodePaths, folder: Path) -> None:
    """Move a folder, if it exists, for ``remove_moved_folders`` to remove; remove its parent if that is empty then."""
    try:
        if folder.exists():
            folders.removed.mkdir(exist_ok=True)
            folder.rename(folders.removed / secrets.token_hex(8))
            with contextlib.suppress(OSError):  # the namespace has other workers
                folder.parent.rmdir()
    except OSError as error:
        log.warning("folder not removed", folder=str(folder), error=str(error))


def _worker_names(folders: NodePaths, service: Key) -> list[str]:
    """Return the names of the workers of a service on this node, as their folders have them.

    A kind with ``names_workers`` lets the user name workers: their names are read from the folders, which begin and end
    as the service's names do.
    """
    kind = NODE_KINDS.get(service.plural, NodeKind())
    fixed = [worker_name(service.name, role, folders.node) for role in kind.roles]
    if not kind.names_workers:
        return fixed
    # a line break, which no name has, marks the place of the user's part, which has no dot
    before, after = worker_name(service.name, "\n", folders.node, group=kind.group).split("\n")
    here = folders.root / WORKERS / service.namespace
    folder_names = [path.name for path in here.iterdir()] if here.is_dir() else []
    return fixed + [
        name
        for name in folder_names
        if name.startswith(before) and name.endswith(after) and "." not in name[len(before) : -len(after)]
    ]


def remove_moved_folders(folders: NodePaths) -> None:
    """Remove the folders that were moved. Blocks: call it in a thread. Raises OSError."""
    if folders.removed.is_dir():
        for path in folders.removed.iterdir():
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
