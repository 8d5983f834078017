"""Ports for brokers that a test kills and starts again: nobody else may take one of them in between.

They lie below the range that systems hand out to outgoing connections, and every pytest process has its own part, of
which it takes one after the other: what was given out is not given out again before its new owner uses it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from collections.abc import AsyncIterator

from aiohttp import web

FIRST, PART = 20_000, 1500
_turns = itertools.cycle(random.sample(range(PART), PART))


def free_port() -> int:
    """Return a port on loopback that is free, and that no other test process will choose."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    while True:
        port = FIRST + worker * PART + next(_turns)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextlib.asynccontextmanager
async def serve_app(app: web.Application) -> AsyncIterator[str]:
    """Serve an application on a port that the system chooses; yield host and port."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
