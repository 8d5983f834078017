"""The parties of a training job in memory: their settings, and the tasks that they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

from halimede.messages import TensorFile
from halimede.training.settings import Program, TrainingSettings, read_training
from halimede.training.tensor_exchange import TensorExchange
from halimede.training.weights import digest_of

JOB, AGGREGATOR = "digits", "digits-aggregator"
NAMES = {"ns": "default", "job": JOB}


def party_settings(
    program: Program,
    name: str,
    state: Path,
    data: Path,
    training: dict[str, Any],
    *,
    uid: str = "u-1",
    labels: Sequence[str] = ("a", "b"),
) -> TrainingSettings:
    """Return the settings of a trainer on its node, or of the aggregator in the cloud."""
    environ = {
        "NAMESPACE": "default", "SERVICE_NAME": JOB, "SERVICE_UID": uid, "WORKER_NAME": name,
        "NODE_NAME": training["trainers"].get(name, "cloud0"), "HALIMEDE_STATE": str(state),
        "MODEL_SPEC": json.dumps({"url": "/none", "format": "onnx", "labels": labels}),
        "TRAIN_DATASET_URL": str(data), "TRAINING": json.dumps(training),
    }  # fmt: skip
    return read_training(program, environ)


def offer(exchange: TensorExchange, folder: Path, content: bytes, *, served: bytes | None = None) -> TensorFile:
    """Offer a file of tensors. ``served``: what a fetcher gets in place of its content."""
    file = TensorFile(digest=digest_of(content), size=len(content))
    path = folder / f"file-{file.digest}"
    path.write_bytes(content if served is None else served)
    exchange.offered[file.digest] = path
    return file


@contextlib.asynccontextmanager
async def running(*parties: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run parties until the end of the block."""
    tasks = [asyncio.create_task(party) for party in parties]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
