"""A place with a broker of its own: what passes its bridge and how, and what happens while the way is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from halimede import topics
from halimede.access.bridge import MAX_RECONNECT_S, configuration
from halimede.access.grants import routes
from halimede.access.mosquitto import LINK_STATES
from halimede.access.site import Principal, read_site
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.bus.topic_filter import matches
from halimede.contract.examples import NAMES
from halimede.topic import Role
from halimede.topics import CONTRACT
from tests.bridged import SITE, Bridged, bridged
from tests.simulated import eventually

pytestmark = pytest.mark.timeout(180)

GM, LC = Principal(Role.GM), Principal(Role.LC, "edge0")
EDGE, CLOUD = Principal(Role.EDGE, "edge0"), Principal(Role.CLOUD, "cloud0")
CONSUMER, GATE = Principal(Role.CONSUMER, "viewer"), Principal(Role.CONSUMER, "gate")
OPERATOR, CAMERA = Principal(Role.OPERATOR, "admin"), Principal(Role.CAMERA, "cam0")
KEY = {"ns": "default", "plural": "models", "name": "m"}
STATUS = topics.NODE_STATUS.at(node="edge0", **KEY).text
INSERT = topics.INSERT.at(node="edge0", **KEY).text
RESULT = topics.RESULT.at(ns="default", service="s").text
REQUEST = topics.REQUEST.at(ns="default", service="s").text
REPLY = topics.REPLY.at(ns="default", service="s", worker="w").text
LOAD = topics.LOAD.at(ns="default", service="s", worker="c").text
PRESENCE = topics.PRESENCE.at(node="edge0").text
STAMP = (("epoch", "3"), ("number", "7"))
#: seconds: longer than the bridge may wait before it connects again
PATIENCE = 2 * MAX_RECONNECT_S


@dataclass
class Ear:
    """What one client was sent."""

    bus: MqttBus
    packets: list[Packet] = field(default_factory=list)

    async def to(self, *filters: str) -> Ear:
        for text in filters:
            await self.bus.listen(text, 1, self._hear, 100_000)
        return self

    async def _hear(self, packet: Packet) -> None:
        self.packets.append(packet)

    async def hears(self, topic: str, payload: bytes) -> Packet:
        def found() -> list[Packet]:
            return [packet for packet in self.packets if (packet.topic, packet.payload) == (topic, payload)]

        await eventually(found, PATIENCE)
        return found()[-1]


@pytest.fixture(params=["passwords", "certificates"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bridged]:
    async with bridged(tmp_path, secure=request.param == "certificates") as made:
        yield made


async def ear(world: Bridged, principal: Principal, *filters: str) -> Ear:
    return await Ear(await world.client(principal)).to(*filters)


async def linked(world: Bridged, gm: MqttBus, lc: Ear) -> None:
    """Wait until the bridge is up: what GM says arrives."""
    for number in range(PATIENCE * 10):
        await gm.send(Packet(topics.SYNCED.at(node="edge0").text, str(number).encode()), PATIENCE)
        await asyncio.sleep(0.1)
        if any(packet.payload == str(number).encode() for packet in lc.packets):
            return
    raise AssertionError("no link")


async def live(cloud: MqttBus, edge: Ear) -> None:
    """Wait until the bridge's other connection is up: each comes back in its own time, and this one keeps nothing."""
    edge.packets.clear()
    for number in range(PATIENCE * 10):
        await cloud.send(Packet(REPLY, str(number).encode()), PATIENCE)
        await asyncio.sleep(0.1)
        if edge.packets:
            return
    raise AssertionError("no live link")


async def test_everything_that_mqtt_5_has_beside_a_body_passes_the_bridge(world: Bridged) -> None:
    lc = await ear(world, LC, INSERT, topics.SYNCED.at(node="edge0").text)
    gm = await ear(world, GM, STATUS)
    edge, cloud = await ear(world, EDGE, REPLY), await ear(world, CLOUD, f"$share/s/{REQUEST}")
    await linked(world, gm.bus, lc)
    await live(cloud.bus, edge)
    await lc.bus.send(Packet(STATUS, b"up", retain=True, properties=STAMP), PATIENCE)
    assert (await gm.hears(STATUS, b"up")).properties == STAMP
    await gm.bus.send(Packet(INSERT, b"down", properties=STAMP), PATIENCE)
    assert (await lc.hears(INSERT, b"down")).properties == STAMP
    asked = Packet(REQUEST, b"sample", response_topic=REPLY, correlation=b"\x01\x00\xff", expiry_s=20)
    await edge.bus.send(asked, PATIENCE)
    got = await cloud.hears(REQUEST, b"sample")
    assert (got.response_topic, got.correlation) == (REPLY, b"\x01\x00\xff")
    assert got.expiry_s is not None
    assert 0 < got.expiry_s <= 20
    await cloud.bus.send(Packet(got.response_topic, b"answer", correlation=got.correlation), PATIENCE)
    assert (await edge.hears(REPLY, b"answer")).correlation == b"\x01\x00\xff"


async def test_what_is_retained_passes_and_so_does_its_clearing_and_nothing_goes_round(world: Bridged) -> None:
    lc = await ear(world, LC, topics.SYNCED.at(node="edge0").text)
    gm = await ear(world, GM, STATUS)
    await linked(world, gm.bus, lc)
    await lc.bus.send(Packet(STATUS, b"v1", retain=True), PATIENCE)
    await gm.hears(STATUS, b"v1")
    await gm.bus.send(Packet(STATUS, b"", retain=True), PATIENCE)
    await gm.hears(STATUS, b"")
    await asyncio.sleep(1)
    assert [packet.payload for packet in gm.packets] == [b"v1", b""], "nothing comes back"
    # and the place's broker has forgotten it as well: a new connection of the bridge would bring it up again
    world.link.cut()
    world.link.heal()
    await linked(world, gm.bus, lc)
    await asyncio.sleep(1)
    assert [packet.payload for packet in gm.packets] == [b"v1", b""]
    cloud = await world.client(CLOUD)
    await cloud.send(Packet(LOAD, b"{}", qos=0, retain=True), PATIENCE)
    await cloud.send(Packet(LOAD, b"", retain=True), PATIENCE)
    edge = await ear(world, EDGE, LOAD)
    await linked(world, gm.bus, lc)
    assert edge.packets == []


async def test_while_the_way_is_cut_results_and_statuses_wait_and_samples_do_not(world: Bridged) -> None:
    lc = await ear(world, LC, topics.SYNCED.at(node="edge0").text)
    gm = await ear(world, GM, STATUS)
    edge, cloud = await ear(world, EDGE, REPLY), await ear(world, CLOUD, f"$share/s/{REQUEST}")
    viewer, gate = await ear(world, CONSUMER, RESULT), await ear(world, GATE, RESULT)
    await linked(world, gm.bus, lc)
    world.link.cut()
    wanted = [f"r{number}".encode() for number in range(1000)]
    for payload in wanted:
        await edge.bus.send(Packet(RESULT, payload), PATIENCE)
    await edge.bus.send(Packet(REQUEST, b"too late", response_topic=REPLY, correlation=b"1"), PATIENCE)
    await lc.bus.send(Packet(STATUS, b"meanwhile", retain=True, properties=STAMP), PATIENCE)
    await eventually(lambda: len(gate.packets) == len(wanted), PATIENCE)  # who is there has them at once
    assert viewer.packets == []
    world.link.heal()
    await linked(world, gm.bus, lc)
    await eventually(lambda: {packet.payload for packet in viewer.packets} == set(wanted), PATIENCE)
    assert (await gm.hears(STATUS, b"meanwhile")).properties == STAMP
    await live(cloud.bus, edge)
    await edge.bus.send(Packet(REQUEST, b"in time", response_topic=REPLY, correlation=b"2"), PATIENCE)
    await cloud.hears(REQUEST, b"in time")
    assert [packet.payload for packet in cloud.packets] == [b"in time"]


async def test_what_waits_outlives_a_restart_of_the_places_broker(world: Bridged) -> None:
    lc = await ear(world, LC, topics.SYNCED.at(node="edge0").text)
    gm, viewer = await world.client(GM), await ear(world, CONSUMER, RESULT)
    edge = await world.client(EDGE)
    await linked(world, gm, lc)
    world.link.cut()
    for number in range(100):
        await edge.send(Packet(RESULT, str(number).encode()), PATIENCE)
    await world.place.stop()
    await world.place.start()
    world.link.heal()
    await eventually(lambda: {int(packet.payload) for packet in viewer.packets} == set(range(100)), PATIENCE)


async def test_a_place_may_say_what_its_own_parts_may_and_no_more(world: Bridged) -> None:
    """The site's broker checks the bridge, whoever has taken over the place."""
    bridge = Principal(Role.BRIDGE, "factory")
    thief = await world.client(bridge, here=False)
    gm = await ear(world, GM, "node/+/+/sedna/upstream/+/+/status")
    cloud = await ear(world, CLOUD, "node/cloud0/#", f"$share/s/{REQUEST}")
    other = topics.NODE_STATUS.at(node="cloud0", **KEY).text
    down = topics.INSERT.at(node="cloud0", **KEY).text
    for topic in (other, down, INSERT, REPLY):
        assert await thief.send(Packet(topic, b"forged"), PATIENCE) == 0x87, topic
    assert await thief.send(Packet(STATUS, b"own"), PATIENCE) != 0x87
    await gm.hears(STATUS, b"own")
    assert [packet.payload for packet in (*gm.packets, *cloud.packets)] == [b"own"]


def _routes(**bridge: object) -> dict[str, str]:
    site = read_site({**SITE, "bridges": [{"name": "factory", "nodes": ["edge0"], **bridge}]})
    words = {(True, True): "both", (True, False): "out", (False, True): "in"}
    return {route.filter: words[route.up, route.down] for route in routes(site.bridges[0])}


def test_each_topic_goes_where_its_readers_are() -> None:
    found = _routes()
    ways = {}
    for topic in CONTRACT:
        text = topic.at(**{**{name: NAMES[name] for name in topic.fields}, **_node(topic.fields)}).text
        ways[topic.id] = [way for filter_, way in found.items() if matches(filter_.split("/"), text.split("/"))]
    assert all(len(set(way)) == len(way) for way in ways.values()), "a message must not pass twice the same way"
    assert {id_: "".join(way) for id_, way in ways.items()} == {
        "insert": "in", "delete": "in", "synced": "in", "node-status": "both", "sync": "out", "presence": "both",
        "worker-info": "", "camera-frame": "", "request": "out", "request-to": "out", "reply": "in", "load": "in",
        "result": "out", "hard-sample": "out", "occupancy": "both", "status": "", "gm-presence": "in",
        "api-request": "", "api-reply": "",
        "logs-request": "in", "logs-reply": "out", "trace-request": "in", "trace-reply": "out", "dead-letter": "out",
        "blob-request": "out", "blob-chunk": "in", "blob-query": "outin", "blob-order": "", "blob-answer": "in",
        "edge-peer": "out", "peer": "both", "hop-request": "out", "hop-reply": "in", "multi-result": "out",
        "track": "both", "gallery": "both", "fused": "both", "identity-query": "both", "identity-answer": "both",
        "camera-status": "both", "node-camera-status": "both", "kept-request": "in", "kept-reply": "out",
        "training-round": "in", "trainer-state": "out", "training-request": "both", "training-chunk": "both",
    }  # fmt: skip


def _node(fields: tuple[str, ...]) -> dict[str, str]:
    return {"node": "edge0"} if "node" in fields else {}


def test_named_namespaces_narrow_what_passes() -> None:
    narrow = _routes(namespaces=["east", "north"])
    assert narrow["east/sedna/inference/+/reply/+"] == narrow["north/sedna/inference/+/reply/+"] == "in"
    assert not [text for text in narrow if text.startswith("+/")]
    assert "sedna/gm/presence" in narrow


def test_a_prefix_is_the_same_on_both_sides() -> None:
    site = read_site({**SITE, "prefix": "factory/east"})
    text = configuration(site, site.bridges[0], Path("/place"))
    lines = [line for line in text.splitlines() if line.startswith("topic ")]
    assert lines
    assert all(line.startswith("topic factory/east/") for line in lines)


async def test_an_operator_at_the_place_sees_whether_the_link_is_up_and_a_camera_does_not(world: Bridged) -> None:
    watcher = await Ear(await world.client(OPERATOR, here=True)).to(LINK_STATES)
    gate, camera = await ear(world, GATE, LINK_STATES), await ear(world, CAMERA, LINK_STATES)
    state = "$SYS/broker/connection/bridge.factory/state"
    await watcher.hears(state, b"1")
    await gate.hears(state, b"1")
    world.link.cut()
    await watcher.hears(state, b"0")
    assert camera.packets == []
