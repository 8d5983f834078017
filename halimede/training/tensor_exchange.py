"""Exchanges tensor files between an aggregator and its trainers, in pieces, on topics of the job.

Files are pulled: a worker publishes digest and size of a file, and sends pieces to the worker that requests them. So a
worker whose files are not requested cannot send any.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from halimede import topics
from halimede.blobs.channel import BlobChannel
from halimede.blobs.client import BlobClient
from halimede.blobs.download import BlobDownload
from halimede.blobs.server import BlobServer, FileProvider
from halimede.bus import Bus
from halimede.bus.retained_publisher import RetainedPublisher
from halimede.messages import TensorFile
from halimede.models.source_types import TransferLimits
from halimede.training.weights import WeightsError, digest_of

#: seconds for the first piece of a file, and between two pieces
LIMITS = TransferLimits(connect_s=20.0, inactivity_s=20.0)


class TensorExchange:
    """Serves the files of the worker ``name`` of a job in a namespace, and fetches those of others.

    Call ``start``, then ``run_party``, or ``serve`` in a task of its own.

    Attributes:
        offered: the path of each file that others may fetch, by digest.
        received_bytes: bytes of all files that were fetched.

    """

    def __init__(self, bus: Bus, namespace: str, job: str, name: str) -> None:
        self.offered: dict[str, Path] = {}
        self.received_bytes = 0
        names = {"ns": namespace, "job": job}
        channel = BlobChannel(topics.TRAINING_REQUEST, topics.TRAINING_CHUNK, names, has_queries=False)
        self._client = BlobClient(bus, name, channel)
        self._server = BlobServer(bus, name, FileProvider([self._find]), channel)

    @property
    def sent_bytes(self) -> int:
        """The bytes of all pieces that were sent."""
        return self._server.stats.bytes

    @property
    def moved_bytes(self) -> int:
        """The bytes that were sent and received."""
        return self.sent_bytes + self.received_bytes

    async def start(self) -> None:
        """Subscribe to requests and pieces. Raises BusError."""
        await self._client.start()
        await self._server.start()

    async def serve(self) -> None:
        """Send requested pieces until cancelled."""
        await self._server.run()

    async def run_party(
        self,
        publisher: RetainedPublisher[Any],
        work: Coroutine[Any, Any, None],
        ready: Callable[[], None],
        stop: asyncio.Event,
    ) -> None:
        """Serve files, publish a party's state and do its work until ``stop`` is set; then clear the state.

        ``ready`` is called at the begin. Setting ``stop`` cancels the work. Raises an ExceptionGroup with what the work
        raises.
        """
        async with asyncio.TaskGroup() as group:
            party = group.create_task(work, name="training")
            services = [
                group.create_task(self.serve(), name="tensors"),
                group.create_task(publisher.run(), name="state"),
            ]
            ready()
            await stop.wait()
            party.cancel()
            await publisher.withdraw()
            for task in services:
                task.cancel()

    async def fetch(self, source: str, file: TensorFile, most_bytes: int) -> bytes:
        """Return the content of a file of the worker ``source``.

        Raises WeightsError for more than ``most_bytes`` or other bytes than were published, FetchError or BusError if
        the file cannot be fetched.
        """
        if file.size > most_bytes:
            raise WeightsError("TooLarge", f"{file.size} bytes: at most {most_bytes} are expected")
        content = bytearray()
        with contextlib.closing(BlobDownload(self._client, file.digest, [source], LIMITS, ask_all=False)) as download:
            await download.open(0)
            if download.size != file.size:
                raise WeightsError("Unreadable", f"it has {download.size} bytes, and not {file.size} as was published")
            async for block in download.blocks():
                content += block
        self.received_bytes += len(content)
        if digest_of(memoryview(content)) != file.digest:
            raise WeightsError("Unreadable", "it has other bytes than its digest states")
        return bytes(content)

    async def _find(self, digest: str) -> Path | None:
        """Return the path of an offered file; None if it is not offered."""
        return self.offered.get(digest)
