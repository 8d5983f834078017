"""How a worker writes what goes up, as its service says, and the figures of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

from prometheus_client.metrics_core import Metric

from halimede.frames.transcode_policy import UploadFormat
from halimede.observe.metrics import counter, times
from halimede.offload.circuit_breaker import CircuitBreaker
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.transcode import UploadEncoder
from halimede.worker.roles import WorkerContext


@asynccontextmanager
async def uploading(parts: WorkerContext, circuit: CircuitBreaker) -> AsyncIterator[UploadEncoder]:
    """Write what goes up for the length of the block; a thread is started by the first that has to be written.

    ``circuit`` is that of the way up.
    """
    settings = parts.settings
    wish = UploadFormat(encoding=settings.upload_encoding, max_bytes=settings.upload_max_bytes)
    async with ModelThread("upload") as thread:
        uploads = UploadEncoder(wish, thread, circuit)
        parts.figures.more.append(partial(figures, uploads))
        yield uploads


def figures(uploads: UploadEncoder) -> Iterator[Metric]:
    """Return what was written and what it cost; counts are this process's own."""
    ready = [({"encoding": e, "changed": changed}, n) for (e, changed), n in sorted(uploads.ready.items())]
    text = "Samples ready for upload, by encoding and by change: none, encoding or size."
    yield counter("worker_upload_ready_samples", text, ready)
    refused = [({"reason": reason}, n) for reason, n in sorted(uploads.refused.items())]
    text = "Samples that cannot be written as the service wants what goes up, by reason."
    yield counter("worker_upload_refused_samples", text, refused)
    sizes = [({"when": "before"}, uploads.before), ({"when": "after"}, uploads.after)]
    yield counter("worker_upload_written_bytes", "Bytes of samples that were written anew to go up.", sizes)
    text, taken = "Time to encode one sample again, decoding included.", uploads.times
    yield times("worker_upload_writing_seconds", text, [({}, taken.histogram, taken.total)])
