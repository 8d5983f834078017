"""Fault 13, with processes: the leading GM is stopped (SIGSTOP), the other leads in a higher epoch. When the old one
wakes up it writes nothing and stays away from the broker, and a node does not follow what is said in its epoch.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.messages import Delete, GmPresence, NodeStatus
from tests.faults.operators import Operators, operators
from tests.integration.gm_world import SERVICES
from tests.kubernetes.world import PATIENCE
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Ear:
    """Hears who is GM, and which generation of the service the edge node has."""

    def __init__(self, o: Operators) -> None:
        self.names = {"node": o.w.edge, "ns": o.w.namespace, "plural": SERVICES, "name": "helmet"}
        self.bus = MqttBus("ear", o.broker.url)
        self.births: list[int] = []
        self.generation: int | None = None

    async def listen(self) -> None:
        await self.bus.subscribe(topics.GM_PRESENCE.filter(), self._presence)
        await self.bus.subscribe(topics.NODE_STATUS.filter(**self.names), self._status, cleared=self._cleared)
        await self.bus.wait_connected(patience(PATIENCE))

    async def has(self, generation: int | None) -> None:
        await eventually(lambda: self.generation == generation, PATIENCE)

    async def _presence(self, delivery: Delivery[GmPresence]) -> None:
        if delivery.body.online:
            self.births.append(delivery.body.epoch)

    async def _status(self, delivery: Delivery[NodeStatus]) -> None:
        self.generation = delivery.body.observed_generation

    async def _cleared(self, _: object) -> None:
        self.generation = None


async def edit(o: Operators, deadline_ms: int) -> None:
    patch = {"spec": {"edgeWorker": {"deadlineMs": deadline_ms}}}
    await o.api.client.patch(f"{SERVICES}.sedna.io/v1alpha1", o.w.namespace, "helmet", patch)


async def test_fault_13_a_leader_that_slept_writes_nothing_and_is_not_followed(tmp_path: Path) -> None:
    async with operators(tmp_path) as o, o.gm("gm-0") as first, o.lc(o.w.edge) as lc:
        ear = Ear(o)
        await o.led_by("gm-0")
        async with ear.bus, o.gm("gm-1") as second:
            await ear.listen()
            await o.w.apply_all()
            await o.w.reaches("Running")
            await ear.has(1)
            await eventually(lambda: second.says("gm-0 leads"), PATIENCE)
            assert not second.says("bus connected")

            await edit(o, 700)  # it is at work on that, or has not heard of it
            first.pause()
            assert await o.led_by("gm-1") == 2
            await o.w.reaches("Running", generation=2)
            await ear.has(2)

            # nobody answers what it asks of the Lease: its own clock has to tell it
            hang = o.api.control.hang(times=10**9, matches=lambda r: r.user == first.user and r.resource == "leases")
            woken = time.monotonic()
            first.go_on()
            await edit(o, 800)
            await o.w.reaches("Running", generation=3)
            await ear.has(3)
            await eventually(lambda: first.says("leadership lost"), PATIENCE)
            hang.end()
            await eventually(lambda: first.says("gm-1 leads"), PATIENCE)
            written = [r for r in o.api.control.writes(since=woken) if r.user == first.user]
            events = [r for r in written if r.resource == "events"]
            assert len(events) <= 1, "one may have been on its way when it was stopped"
            assert [r for r in written if r not in events and (r.resource != "leases" or r.code < 300)] == []
            assert list(dict.fromkeys(ear.births)) == [1, 2], "each birth is published again some seconds later"

            found = await o.w.find()
            assert found is not None
            order = Delete(uid=found["metadata"]["uid"], generation=3)
            to = topics.DELETE.at(**ear.names)
            await ear.bus.publish(to, order, properties={"epoch": "1"})
            await eventually(lambda: lc.says("message of an older GM ignored"), PATIENCE)
            assert ear.generation == 3
            # in the present epoch it is followed: it was for its epoch that it was not
            await ear.bus.publish(to, order, properties={"epoch": "2"})
            await ear.has(None)
