"""A node in pods mode on a memory broker, and somebody who speaks for its pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from halimede.messages import NodeStatus, TaskInfo
from services.lc.paths import Worker
from tests.integration.lc_world import HELMET, World, service
from tests.integration.lc_world import model as any_model
from tests.simulated import eventually

PODS = [Worker("default", f"helmet-deployment-edge-7d9f-{n}") for n in range(100)]
CLOUD = Worker("default", "helmet-deployment-cloud-5c6b-x")


def model(**spec: Any) -> dict[str, Any]:
    """A Model that has to be downloaded."""
    return any_model(**{"url": "https://models.example/small.onnx", **spec})


@asynccontextmanager
async def world(home: Path) -> AsyncIterator[World]:
    """A node with its LC in pods mode and GM; the service and its Model are there, and no pod."""
    made = World(home)
    made.config = replace(made.config, pods=True)
    async with made.gm.running():
        await made.gm.insert(model(), service())
        yield made


async def says(node: World, pod: Worker, status: Any = "running", number: int | None = None, **fields: Any) -> None:
    """Speak for a pod. ``number``: inferences that it has counted."""
    told = {"owner_uid": "u1", "role": "edge", "period_s": 10.0, **fields}
    if number is not None:
        told["task_info"] = TaskInfo(inference_number=number, queued=1)
    await node.gm.says(pod, status, **told)


def counted(node: World) -> int | None:
    status = node.gm.statuses.get(HELMET)
    info = status.output.task_info if status and status.output else None
    return info.inference_number if info else None


def named(status: NodeStatus) -> dict[str, str]:
    return {worker.name: worker.phase for worker in status.workers}


@asynccontextmanager
async def holding(node: World, *, killed: bool = False) -> AsyncIterator[None]:
    """Run the LC inside the block, where it holds the service."""
    async with node.lc(killed=killed):
        await node.gm.insert(model(), service())
        await node.gm.reaches(HELMET, "Pending", "NoWorkerHere")
        yield


async def counts(node: World, pod: Worker, status: Any = "running", *, total: int, **fields: Any) -> None:
    """Speak for a pod, and wait until the service has counted so many inferences."""
    await says(node, pod, status, **fields)
    await eventually(lambda: counted(node) == total)
