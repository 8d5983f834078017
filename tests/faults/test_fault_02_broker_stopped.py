"""The broker stands still for a minute: that is noticed, the edge answers its own source, and memory stays bounded."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from halimede import topics
from halimede.bus.mqtt import MqttBus
from halimede.frames.payloads import ID_BYTES
from halimede.messages import Result
from halimede.stats.ledger import HEADER
from halimede.worker.sources.folder import DONE_FILE
from tests.faults.control import Control
from tests.faults.picture_folder import PictureFolder
from tests.waiting import patience

#: seconds: how long it stands still (four times the keepalive of all who are connected), and between two pictures
STOPPED, APART = 60.0, 0.5
#: pictures that come one by one, and then at once: more than results have room while they wait
SINGLE, BURST = 80, 500
#: bytes that a process may grow by, whatever happens
GROWTH = 48 * 1024 * 1024

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Edge(PictureFolder):
    """The folder that the edge worker watches, and what it has done with it."""

    def __init__(self, plane: Control, pictures: list[bytes]) -> None:
        super().__init__(plane.folder / "pictures", pictures)
        self.state = plane.home / "nodes/edge0/workers/default/digits-edge-edge0"

    def accepted(self) -> int:
        """Frames that it has taken on, by its ledger: no broker is needed for that."""
        return int.from_bytes((self.state / "ledger").read_bytes()[HEADER.size : HEADER.size + 8], "little")

    def first_results(self, count: int) -> list[Result]:
        """The results of the pictures that it took first."""
        ids = (self.state / DONE_FILE).read_bytes()
        return [self.results[ids[i * ID_BYTES : (i + 1) * ID_BYTES].hex()] for i in range(count)]


async def through_a_standstill(plane: Control, edge: Edge) -> None:
    """Stop the broker for a minute; pictures come one by one all the while, and many at the end."""
    pid, loop = plane.broker.pid, asyncio.get_running_loop()
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        began = loop.time()
        for _ in range(1, SINGLE):
            edge.put()
            await asyncio.sleep(APART)
        await plane.until(lambda: edge.accepted() >= SINGLE)
        for _ in range(BURST):
            edge.put()
        await asyncio.sleep(max(0.0, began + STOPPED - loop.time()))
        assert len(edge.results) == 1
        # what results have no room for waits in the folder, not in memory
        assert SINGLE < edge.accepted() < SINGLE + BURST
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_fault_02_a_broker_that_stands_still_for_a_minute(plane: Control) -> None:
    # one whose connection outlives the minute, or it would miss what is sent before it is back
    async with MqttBus("consumer", plane.settings(keepalive_s=600)) as consumer:
        edge = Edge(plane, plane.trained())
        await consumer.subscribe(topics.RESULT.filter(), edge.hear)
        await consumer.wait_connected(patience(30))
        gm, lc = plane.gm_process(), plane.lc_process()
        # a source of its own: no frame comes over the broker
        source = {"path": str(edge.path)}
        await plane.apply(*plane.real_models(), plane.real_service(edge={}, cloud={}, source=source))
        await plane.running("digits")
        edge.put()
        await plane.until(lambda: edge.results)
        before, memory = plane.workers(), plane.memory(gm, lc)

        await through_a_standstill(plane, edge)
        for log in (gm.log, lc.log, edge.state / "worker.log"):
            assert "bus down" in log.read_text(), "its keepalive did not trip"
        await plane.until(lambda: len(edge.results) == SINGLE + BURST, 90)
        async with plane.converging():
            await plane.running("digits")
        assert plane.workers() == before, "nobody had a reason to end"
        # each was answered when it came, not when the broker was back
        for result in edge.first_results(SINGLE)[1:]:
            assert result.by == "edge"
            assert result.total_ms < 10_000
        for process, bytes_now in plane.memory(gm, lc).items():
            assert bytes_now - memory[process] < GROWTH, process
