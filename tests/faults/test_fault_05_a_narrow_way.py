"""A way of 64 kbit/s with 2 s to and fro that loses a fifth: uploads adapt to what it carries; presence is unaffected.

LC and edge worker of one node share that way, as they share its line in the world; everybody else is on the good side.
Nothing here has network emulation in the kernel, so the proxy does it: see ``Proxy.share``. What is lost is sent again
after a timeout and arrives; a segment that is lost three times over is silence for longer than a keepalive, and that is
row 4's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from halimede import topics
from tests.faults.control import Control
from tests.faults.picture_folder import PictureFolder, noise
from tests.proxy import Proxy
from tests.waiting import patience

BYTES_S, ONE_WAY_S, LOSS, RTO_S = 8_000, 1.0, 0.2, 2.2
#: bytes that one connection has on the line at a time
WINDOW = 6 * 1460
#: one picture's bytes; one a second is more than the line carries beside everything else
SIZE = 6_000
DEADLINE_S = 6.0
NARROW, AFTER = 40, 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


async def put(edge: PictureFolder, count: int) -> None:
    """Take a picture a second."""
    for _ in range(count):
        edge.put()
        await asyncio.sleep(1)


async def put_until_the_cloud_answers(plane: Control, edge: PictureFolder, count: int) -> int:
    """Take pictures until the cloud has given so many answers one after another; return how many were taken."""
    pictures = 0

    async def are_of_the_cloud() -> bool:
        nonlocal pictures
        await put(edge, 1)
        pictures += 1
        return [result.by for result in list(edge.results.values())[-count:]] == ["cloud"] * count

    await plane.until(are_of_the_cloud)
    return pictures


@asynccontextmanager
async def narrow(proxy: Proxy) -> AsyncIterator[None]:
    proxy.delay(ONE_WAY_S)
    proxy.lose(LOSS, RTO_S, once=True)
    proxy.share(BYTES_S, WINDOW)
    yield
    proxy.heal()


async def start(plane: Control, proxy: Proxy, edge: PictureFolder) -> None:
    """Start an LC and its worker behind the proxy, and a service whose every sample is for the cloud."""
    plane.trained()
    plane.lc_process("edge0", port=proxy.port)
    await plane.operator.subscribe(topics.RESULT.filter(), edge.hear)
    changes = {"source": {"path": str(edge.path)}, "deadlineMs": int(DEADLINE_S * 1000)}
    service = plane.real_service(edge={}, cloud={}, hardExampleMining={"name": "CloudOnly"}, **changes)
    service["spec"]["cloudWorker"]["template"]["spec"]["nodeName"] = "cloud0"
    await plane.apply(*plane.real_models(), service)
    await plane.running("digits")


async def test_fault_05_uploads_adapt_and_presence_is_unaffected(plane: Control) -> None:
    async with plane.gm(), Proxy(plane.broker.port, seed=5) as proxy, plane.lc(node="cloud0"):
        edge = PictureFolder(plane.folder / "pictures", [noise(int(SIZE**0.5))])
        await start(plane, proxy, edge)
        before = await put_until_the_cloud_answers(plane, edge, 5)
        await plane.until(lambda: len(edge.results) == before)
        connections, birth = proxy.accepted, next(p for p in reversed(plane.presences) if p.node == "edge0")

        async with narrow(proxy):
            await put(edge, NARROW)
            # results are not behind all that was given up: they come as the pictures do, a few seconds late
            assert len(edge.results) - before > NARROW * 3 / 8
            # a report that is behind pictures on such a line may take longer than the 10 s of a silent worker
            status = plane.statuses["digits"]
            assert status.phase == "Running" or status.conditions[-1].reason == "WorkerSilent"
            assert (await plane.node()).online
        assert proxy.accepted == connections, "somebody's connection was taken for a dead one"
        # a client repeats its birth some seconds after it has connected
        assert all(presence == birth for presence in plane.presences if presence.node == "edge0")

        await plane.until(lambda: len(edge.results) == before + NARROW)
        meanwhile = list(edge.results.values())[before:]
        reasons = Counter(result.reason for result in meanwhile)
        # what would be late is known to be: it is answered here at once, and most of it is not even sent
        assert reasons["too-slow"] > NARROW / 2
        assert set(reasons) <= {"", "too-slow", "deadline", "circuit-open", "shed"}
        assert all(result.total_ms < (DEADLINE_S + patience(2)) * 1000 for result in meanwhile)

        await put_until_the_cloud_answers(plane, edge, AFTER)
        assert set(edge.copies.values()) == {1}
