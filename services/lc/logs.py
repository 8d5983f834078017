"""The logs of this node's workers: rotated, and served over the bus.

Workers append to their log by themselves, so a log that has grown is copied and emptied in place.
"""

from __future__ import annotations

import asyncio
import codecs
import os
from collections.abc import Coroutine
from pathlib import Path

import structlog

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.bus.rpc import RpcServer
from halimede.errors import InvalidFieldError
from halimede.messages import LogsReply, LogsRequest
from halimede.system.child_process import MAX_LOG, rotate, rotated
from services.lc.cleanup import remove
from services.lc.paths import NodePaths, Worker

log = structlog.get_logger()

#: seconds between two looks at the sizes
ROTATE_S = 5.0
#: bytes of log in one reply: JSON may write one byte as six characters
MAX_PART, WORST_GROWTH = 512 * 1024, 6


class Logs(RpcServer[LogsRequest, LogsReply]):
    """Answers requests and keeps logs small."""

    def __init__(self, folders: NodePaths, bus: Bus) -> None:
        requests = topics.LOGS_REQUEST.filter(node=folders.node)
        super().__init__(bus, requests, topics.LOGS_REPLY, self._answer, queue=100)
        self._folders = folders

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Return what is to be run, by name."""
        return {"logs": self.run()}

    async def run(self) -> None:
        """Look at the sizes of all logs, and remove those that nobody needs any more, until cancelled."""
        while True:
            try:
                await asyncio.to_thread(remove, self._folders)
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
        request = delivery.body
        room = (self._bus.max_packet - 4096) // WORST_GROWTH
        try:
            path = self._folders.log(Worker(request.namespace, request.worker))
            return read_part(path, request.offset, min(request.limit, MAX_PART, room))
        except InvalidFieldError as error:
            return LogsReply(error=str(error))
        except FileNotFoundError:
            text = f"no worker {request.namespace}/{request.worker} has run on node {self._folders.node}"
            return LogsReply(error=text)
        except OSError as error:
            return LogsReply(error=f"the log cannot be read: {error.strerror}")


class PodLogs(Logs):
    """Replies with where the logs of pods are: kubelet keeps them, and only the API server serves them."""

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Nothing is kept here; a task that ended would count as ill health."""
        return {}

    async def _answer(self, delivery: Delivery[LogsRequest]) -> LogsReply:
        request = delivery.body
        node, namespace = self._folders.node, request.namespace
        try:
            self._folders.log(Worker(namespace, request.worker))
        except InvalidFieldError as error:
            return LogsReply(error=str(error))
        how = f"kubectl logs --namespace {namespace} {request.worker}"
        listed = f"kubectl get pods --namespace {namespace} --field-selector spec.nodeName={node}"
        return LogsReply(error=f"node {node} runs its workers as pods: use `{how}`; `{listed}` names them")


def read_part(path: Path, offset: int, limit: int) -> LogsReply:
    """Read at most ``limit`` bytes of a log from ``offset`` on (negative: from the end).

    An offset behind the end is one from before a rotation: what was put aside is read to its end, and then the log from
    its beginning. A character that is not complete yet is left for the next part.
    """
    if offset > path.stat().st_size and _size(aside := rotated(path)) > offset:
        path = aside
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size + offset) if offset < 0 else offset if offset <= size else 0
        file.seek(start)
        data = file.read(limit)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return LogsReply(text=text, offset=start + len(data) - len(decoder.getstate()[0]))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
