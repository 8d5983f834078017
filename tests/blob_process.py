"""A node's part in blobs as a process of its own, to be killed: it gives what its cache holds, or fetches a file.

    python -m tests.blob_process give BROKER NODE CACHE
    python -m tests.blob_process take BROKER NODE CACHE URL

The taker prints how many bytes are here with each piece, and ``done <bytes that came in this run>`` in the end. It is
slow on purpose: whoever kills something in mid-way finds a way.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from halimede import log
from halimede.blobs import with_fallback
from halimede.bus.mqtt import MqttBus
from halimede.models import Cache, fetch
from services.lc.app import NodeBlobs, client_id

#: seconds that a taker spends on each piece
PIECE_S = 0.02
ROOT = Path(__file__).parents[1]


async def give(broker: str, node: str, cache: Path) -> None:
    await NodeBlobs(node, MqttBus(client_id(node), broker), Cache(cache)).run()


async def take(broker: str, node: str, cache: Path, url: str) -> None:
    blobs = NodeBlobs(node, MqttBus(client_id(node), broker), Cache(cache))
    work = asyncio.create_task(blobs.run())
    first: int | None = None
    here = 0

    def progress(done: int, _: int | None) -> None:
        nonlocal first, here
        first = done if first is None else first
        here = done
        print(here, flush=True)
        time.sleep(PIECE_S)

    await with_fallback(fetch, url, "", Cache(cache), progress, openers={"bus": blobs.opener})
    print("done", here - (first or 0), flush=True)
    work.cancel()
    await asyncio.wait([work])


@contextlib.asynccontextmanager
async def process(*arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run this file as another process; it is killed at the end."""
    command = [sys.executable, "-m", "tests.blob_process", *map(str, arguments)]
    started = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.wait()


if __name__ == "__main__":
    log.configure("CRITICAL")
    what, broker_, node_, cache_, *rest = sys.argv[1:]
    asyncio.run(give(broker_, node_, Path(cache_)) if what == "give" else take(broker_, node_, Path(cache_), *rest))
