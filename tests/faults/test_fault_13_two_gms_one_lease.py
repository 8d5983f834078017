"""Fault 13: two GMs. One leads by the Lease; the other waits, and leads when the first is gone, cut off or asleep.

It does so in a higher epoch. The one that is cut off has stopped before, by its own clock. One that slept (SIGSTOP of a
process) writes nothing when it wakes up and stays away from the broker, and a node does not follow its epoch.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.messages import Delete, GmPresence, NodeStatus
from services.gm.cluster.kubernetes.leader_election import NotLeadingError
from tests.faults.operators import Operators, operators
from tests.inbox import Inbox
from tests.integration.gm_world import SERVICES
from tests.kubernetes.adapter import adapter
from tests.kubernetes.apiserver import on_double
from tests.kubernetes.world import PATIENCE, world
from tests.simulated import eventually
from tests.waiting import patience

#: the pause between giving up and being overtaken is what a busy machine may take
TIMING = {"duration_s": 8.0, "give_up_s": 5.0, "retry_s": 0.5}


async def test_the_next_one_takes_over_in_a_higher_epoch_when_the_leader_stops(tmp_path: Path) -> None:
    async with on_double(tmp_path) as api, world(api, play=False) as w:
        # ages of minutes: only letting go can be what hands over
        w.timing = {"duration_s": 60.0, "give_up_s": 50.0, "retry_s": 0.5}
        async with contextlib.AsyncExitStack() as first:
            await first.enter_async_context(w.gm("gm-0"))
            async with w.gm("gm-1", wait=False) as second:
                await eventually(lambda: second.elector, PATIENCE)
                await first.aclose()
                await eventually(lambda: second.leads, PATIENCE)
                assert second.elector
                assert second.elector.epoch == 2


async def test_a_leader_that_has_lost_writes_nothing_more(tmp_path: Path) -> None:
    async with on_double(tmp_path) as api, adapter(api, **TIMING) as a:
        stored = await a.model()
        a.elector._deadline = 0.0  # as after a stop of the process: time has passed, no timer has fired yet
        writes = a.client.writes
        for write in (
            a.cluster.add_finalizer(stored.key, stored.uid),
            a.cluster.remove(None, ""),  # type: ignore[arg-type]
            a.cluster.ensure({}),
        ):
            with pytest.raises(NotLeadingError):
                await write
        assert a.client.writes == writes
        assert "may lead" in a.cluster.check()


class Ear:
    """Hears who is GM, and which generation of the service the edge node has."""

    def __init__(self, o: Operators) -> None:
        self.names = {"node": o.w.edge, "ns": o.w.namespace, "plural": SERVICES, "name": "helmet"}
        self.bus = MqttBus("ear", o.broker.url)
        self.presences = Inbox[GmPresence]()
        self.generation: int | None = None

    async def listen(self) -> None:
        await self.bus.subscribe(topics.GM_PRESENCE.filter(), self.presences)
        await self.bus.subscribe(topics.NODE_STATUS.filter(**self.names), self._status, cleared=self._cleared)
        await self.bus.wait_connected(patience(PATIENCE))

    async def has(self, generation: int | None) -> None:
        await eventually(lambda: self.generation == generation, PATIENCE)

    async def _status(self, delivery: Delivery[NodeStatus]) -> None:
        self.generation = delivery.body.observed_generation

    async def _cleared(self, _: object) -> None:
        self.generation = None


async def edit(o: Operators, deadline_ms: int) -> None:
    patch = {"spec": {"edgeWorker": {"deadlineMs": deadline_ms}}}
    await o.api.client.patch(f"{SERVICES}.sedna.io/v1alpha1", o.w.namespace, "helmet", patch)


@pytest.mark.slow
@pytest.mark.timeout(240)
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
            births = [presence.epoch for presence in ear.presences.bodies if presence.online]
            assert list(dict.fromkeys(births)) == [1, 2], "each birth is published again some seconds later"

            service = await o.w.find()
            assert service is not None
            order = Delete(uid=service["metadata"]["uid"], generation=3)
            to = topics.DELETE.at(**ear.names)
            await ear.bus.publish(to, order, properties={"epoch": "1"})
            await eventually(lambda: lc.says("message of an older GM ignored"), PATIENCE)
            assert ear.generation == 3
            # in the present epoch it is followed: it was for its epoch that it was not
            await ear.bus.publish(to, order, properties={"epoch": "2"})
            await ear.has(None)
