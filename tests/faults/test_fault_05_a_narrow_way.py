"""A way of 64 kbit/s with 2 s to and fro that loses a fifth: uploads adapt to what it carries; presence is unaffected.

LC and edge worker of one node share that way, as they share its line in the world; everybody else is on the good side.
Nothing here has network emulation in the kernel, so the proxy does it: see ``Proxy.share``. What is lost is sent again
after a timeout and arrives; a segment that is lost three times over is silence for longer than a keepalive, and that is
row 4's.
"""

from __future__ import annotations

import asyncio
import io
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halimede import topics
from halimede.bus import Delivery
from halimede.messages import Result
from tests.faults.control import PATIENCE, Control, control
from tests.proxy import Proxy

BYTES_S, ONE_WAY_S, LOSS, RTO_S = 8_000, 1.0, 0.2, 2.2
#: bytes that one connection has on the line at a time
WINDOW = 6 * 1460
#: one picture's bytes; one a second is more than the line carries beside everything else
SIZE = 6_000
DEADLINE_S = 6.0
NARROW, AFTER = 40, 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def noise() -> bytes:
    """Return a picture that nothing makes smaller."""
    side, out = int(SIZE**0.5), io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (side, side), np.uint8)).save(out, format="PNG")
    return out.getvalue()


class Edge:
    """The folder that the edge worker watches, and what a consumer hears of it, in that order."""

    def __init__(self, folder: Path) -> None:
        self.results: dict[str, Result] = {}
        self.copies: Counter[str] = Counter()
        self._folder = folder
        self._folder.mkdir()
        self._picture = noise()
        self._numbers = itertools.count()

    async def hear(self, delivery: Delivery[Result]) -> None:
        self.copies[delivery.body.id] += 1
        self.results.setdefault(delivery.body.id, delivery.body)

    async def put(self, count: int) -> None:
        """Take a picture a second."""
        for _ in range(count):
            part = self._folder / f"{next(self._numbers):04}.part"
            part.write_bytes(self._picture)
            part.rename(part.with_suffix(".png"))
            await asyncio.sleep(1)


@asynccontextmanager
async def narrow(proxy: Proxy) -> AsyncIterator[None]:
    """Make the way what the row says."""
    proxy.delay(ONE_WAY_S)
    proxy.lose(LOSS, RTO_S, once=True)
    proxy.share(BYTES_S, WINDOW)
    yield
    proxy.heal()


async def start(plane: Control, proxy: Proxy, edge: Edge, folder: Path) -> None:
    """Start an LC and its worker behind the proxy, and a service whose every sample is for the cloud."""
    plane.trained()
    plane.lc_process("edge0", port=proxy.port)
    await plane.operator.subscribe(topics.RESULT.filter(), edge.hear)
    changes = {"source": {"path": str(folder)}, "deadlineMs": int(DEADLINE_S * 1000)}
    service = plane.real_service(edge={}, cloud={}, hardExampleMining={"name": "CloudOnly"}, **changes)
    service["spec"]["cloudWorker"]["template"]["spec"]["nodeName"] = "cloud0"
    await plane.apply(*plane.real_models(), service)
    await plane.running("digits")


async def test_fault_05_uploads_adapt_and_presence_is_unaffected(tmp_path: Path) -> None:
    async with (
        control(tmp_path) as plane,
        plane.gm(),
        Proxy(plane.broker.port, seed=5) as proxy,
        plane.lc(node="cloud0"),
    ):
        edge = Edge(tmp_path / "pictures")
        await start(plane, proxy, edge, tmp_path / "pictures")
        await edge.put(5)
        await plane.until(lambda: [result.by for result in edge.results.values()] == ["cloud"] * 5)
        connections, birth = proxy.accepted, next(p for p in reversed(plane.presences) if p.node == "edge0")

        async with narrow(proxy):
            await edge.put(NARROW)
            # results are not behind all that was given up: they come as the pictures do, a few seconds late
            assert len(edge.results) > NARROW / 2
            # a report that is behind pictures on such a line may take longer than the 10 s of a silent worker
            status = plane.statuses["digits"]
            assert status.phase == "Running" or status.conditions[-1].reason == "WorkerSilent"
            assert (await plane.node()).online
        assert proxy.accepted == connections, "somebody's connection was taken for a dead one"
        # a client repeats its birth some seconds after it has connected
        assert all(presence == birth for presence in plane.presences if presence.node == "edge0")

        await plane.until(lambda: len(edge.results) == 5 + NARROW)
        meanwhile = list(edge.results.values())[5:]
        reasons = Counter(result.reason for result in meanwhile)
        # what would be late is known to be: it is answered here at once, and most of it is not even sent
        assert reasons["too-slow"] > NARROW / 2
        assert set(reasons) <= {"", "too-slow", "deadline", "circuit-open", "shed"}
        assert all(result.total_ms < (DEADLINE_S + 2) * 1000 for result in meanwhile)

        for _ in range(int(PATIENCE)):
            await edge.put(1)
            if list(edge.results.values())[-1].by == "cloud":
                break
        await edge.put(AFTER)
        await plane.until(lambda: [result.by for result in list(edge.results.values())[-AFTER:]] == ["cloud"] * AFTER)
        assert set(edge.copies.values()) == {1}
