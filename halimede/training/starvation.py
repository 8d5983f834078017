"""The share of a core that a training is promised, and the report of a worker that gets less."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from halimede.messages.training import STARVED
from halimede.system.cpu_share import CpuShare
from halimede.worker.status_reporter import StatusReporter


@contextlib.asynccontextmanager
async def promised_share(share: float, reporter: StatusReporter) -> AsyncIterator[None]:
    """Keep the share for the processes of this worker within the block, and report it if they get less; 0: none."""
    if not share:
        yield
        return
    cpu_share = CpuShare(share)
    reporter.troubles.append((STARVED, lambda: cpu_share.trouble))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(cpu_share.run(), name="share of a core")
        yield
        task.cancel()
