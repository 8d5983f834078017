"""The share of a core that a training is promised, and the report of a worker that gets less than it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from halimede.messages.training import STARVED
from halimede.system.cpu_share import CpuShare
from halimede.worker.status_reporter import StatusReporter


@contextlib.asynccontextmanager
async def promised_share(share: float, reporter: StatusReporter) -> AsyncIterator[None]:
    """Within the block, keep a share of one core (0..1) for this process and its children, by their priority.

    While they get less, the worker reports STARVED. With a share of 0 nothing is done; otherwise an exception of the
    block leaves it in an ExceptionGroup.
    """
    if not share:
        yield
        return
    cpu_share = CpuShare(share)
    reporter.troubles.append((STARVED, lambda: cpu_share.trouble))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(cpu_share.run(), name="share of a core")
        yield
        task.cancel()
