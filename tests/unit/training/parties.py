"""The parties of a training job in memory: their settings, and the tasks that they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

from halimede.training.settings import Program, TrainingSettings, read_training

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
