"""An overload lasts while the circuit is open because the cloud is too slow, and ends when the cloud is down."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.limits import State
from halimede.pipeline.escalation import Escalation, NextTier
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.upload_policy.overload import WINDOW_S, OverloadDetector
from halimede.pipeline.upload_policy.policy import UploadDecision
from halimede.stats.ledger import Ledger
from tests.unit.frames.clouds import NS, SERVICE, ScriptedCloud, cloud_bus, silent
from tests.unit.pipeline.answering import new_sample
from tests.worlds import connected

pytestmark = pytest.mark.simulated

HARD_PER_S, DEADLINE_S, SERVICE_MS = 4, 2.0, 1300.0
UP = UploadDecision(ask=True, hard=True)


class HardSamples:
    """Requests the next tier ``HARD_PER_S`` times a second, and reads the detector once a second."""

    def __init__(self, client: OffloadClient, ledger: Ledger, group: asyncio.TaskGroup) -> None:
        self.detector = OverloadDetector()
        self._escalation = Escalation(client, ledger, tier=NextTier(deadline_s=DEADLINE_S))
        self._group = group

    async def seconds(self, count: int, cloud: ScriptedCloud | None, credits_: int = 0) -> list[bool]:
        """Return for each second whether the next tier is overloaded. The cloud advertises ``credits_``."""
        states, intake = list[bool](), SimpleNamespace(responder=SimpleNamespace(return_s=0.0))
        for _ in range(count):
            if cloud:
                await cloud.advertise(credits_, SERVICE_MS)
            for _ in range(HARD_PER_S):
                request = self._escalation.request(new_sample(intake=intake), InferenceOutcome(), UP)
                self._group.create_task(request)
                await asyncio.sleep(1 / HARD_PER_S)
            self.detector.read(self._escalation.totals(), asyncio.get_running_loop().time())
            states.append(self.detector.is_overloaded)
        return states


async def test_overload_lasts_while_a_slow_cloud_has_opened_the_circuit_and_ends_with_the_cloud(tmp_path: Path) -> None:
    broker = MemoryBroker()
    with Ledger(tmp_path, "u-1") as ledger:
        async with connected(MemoryBus("edge", broker)) as bus, asyncio.TaskGroup() as group:
            client = OffloadClient(bus, inference(NS, SERVICE, "edge"))
            await client.start()
            hard = HardSamples(client, ledger, group)
            async with cloud_bus(broker, "c0") as cloud_side:
                cloud = ScriptedCloud(cloud_side, "c0", silent)
                await cloud.start(advertise=0)
                assert (await hard.seconds(6, cloud))[-1], "it has no free slot"
                states = await hard.seconds(40, cloud, credits_=100)
                assert client.circuit.state is not State.CLOSED
                assert all(states)
            assert not (await hard.seconds(int(2 * WINDOW_S), None))[-1]
