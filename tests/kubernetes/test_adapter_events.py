"""What the adapter tells as events of the API: on the object, with counts, waiting for nothing."""

from __future__ import annotations

import time

from services.gm.rate_limit import EVENTS_ABOUT
from tests.kubernetes.adapter import PATIENCE, Adapter, adapter
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body
from tests.simulated import eventually


async def events(a: Adapter, reason: str, namespace: str = "") -> list[Body]:
    """Wait until there are events with the reason, and return them."""

    async def told() -> list[Body]:
        found = (await a.api.client.list("Event", namespace or a.api.namespace))["items"]
        return [event for event in found if event["reason"] == reason]

    return list(await eventually(told, PATIENCE))


async def test_an_event_is_on_the_object_that_it_is_about(api: Api) -> None:
    name = api.unique("node")
    node = await api.node(name)
    async with adapter(api) as a:
        of = await a.service()
        await a.cluster.record("Warning", "Degraded", str(of.key), "NodeOffline: node edge0 is offline")
        (event,) = await events(a, "Degraded")
        assert event["involvedObject"]["uid"] == of.uid
        assert event["involvedObject"]["kind"] == "JointInferenceService"
        assert (event["type"], event["count"]) == ("Warning", 1)
        assert event["message"] == "NodeOffline: node edge0 is offline"
        assert event["source"]["component"] == "halimede-gm"
        await a.cluster.record("Warning", "NodeOffline", f"node/{name}", "the node is gone")

        async def on_node() -> bool:
            found = await events(a, "NodeOffline", "default")
            return any(e["involvedObject"].get("uid") == node["metadata"]["uid"] for e in found)

        await eventually(on_node, PATIENCE)
        await a.cluster.record("Warning", "DeadLetter", "client/x", "unreadable")
        (event,) = await events(a, "DeadLetter")
        assert event["involvedObject"]["kind"] == "Lease"
        assert event["message"] == "client/x: unreadable"


async def test_the_same_again_is_one_event_with_a_count_and_a_flood_is_a_few_writes(api: Api) -> None:
    async with adapter(api) as a:
        of = await a.service()
        before, began = a.client.writes, time.monotonic()
        for _ in range(5000):
            await a.cluster.record("Normal", "Running", str(of.key), "2 workers are running")

        async def counted() -> bool:
            found = await events(a, "Running")
            return len(found) == 1 and found[0]["count"] >= EVENTS_ABOUT[1]

        await eventually(counted, PATIENCE)
        renewals = time.monotonic() - began  # of the leader's Lease, which is renewed every 2 s
        assert a.client.writes - before <= EVENTS_ABOUT[1] + 1 + renewals


async def test_an_event_that_the_server_has_forgotten_is_told_anew(api: Api) -> None:
    async with adapter(api) as a:
        of = await a.service()
        await a.cluster.record("Normal", "Running", str(of.key), "x")
        (event,) = await events(a, "Running")
        await api.client.delete("Event", api.namespace, event["metadata"]["name"])
        await a.cluster.record("Normal", "Running", str(of.key), "x")
        await events(a, "Running")


async def test_events_outlast_a_server_that_is_busy(api: Api) -> None:
    fault = api.control.fail(500, times=2, matches=lambda r: r.resource == "events" and "halimede" in r.agent)
    async with adapter(api) as a:
        of = await a.service()
        await a.cluster.record("Normal", "Running", str(of.key), "x")
        await events(a, "Running")
        assert fault.struck == 2
