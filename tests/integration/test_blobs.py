"""Files over a real broker: processes that are killed in mid-way, access rules, a bridge, and the commands."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from halimede import codec, topics
from halimede.access.site import Principal
from halimede.blobs import with_fallback
from halimede.blobs.admin import BlobNode
from halimede.blobs.uris import url
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.messages import BlobChunk, BlobOrder, BlobQuery, BlobRequest
from halimede.models import Cache, FetchError, fetch
from halimede.models.source_types import TransferLimits
from halimede.topic import Address, Role
from services.broker import MosquittoProcess
from services.gm.app import BlobServing
from services.lc.app import NodeBlobs
from tests.access_world import AUDITOR, AccessWorld, access_world
from tests.blob_process import process
from tests.bridged import Bridged, bridged
from tests.integration.conftest import serving
from tests.unit.blobs.world import digest_of, keep, some_bytes
from tests.waiting import patience

pytestmark = pytest.mark.timeout(180)

PATIENCE = 60
FILE = some_bytes(40_000_000)
DIGEST = digest_of(FILE)
SMALL = some_bytes(300_000, seed=1)
LC0, LC1 = Principal(Role.LC, "edge0"), Principal(Role.LC, "edge1")
GM = Principal(Role.GM)


async def fetched(peer: BlobNode, cache: Cache, source: str, file: bytes = SMALL) -> None:
    found = await with_fallback(fetch, url(source, digest_of(file)), "", cache, openers={"bus": peer.opener})
    assert found.path.read_bytes() == file


async def lines(process: asyncio.subprocess.Process, past: int) -> int:
    """Read what a taker says until it has more than so many bytes, or is done; return what it said last."""
    assert process.stdout is not None
    async with asyncio.timeout(patience(PATIENCE)):
        while line := (await process.stdout.readline()).decode().split():
            if line[0] == "done" or int(line[0]) > past:
                return int(line[-1])
    raise AssertionError("it ended")


async def test_a_source_that_is_killed_in_mid_way_is_left_for_another(
    own_broker: MosquittoProcess, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        keep(Cache(tmp_path / name), FILE)
    async with (
        process("give", own_broker.url, "edge0", tmp_path / "a") as first,
        process("give", own_broker.url, "edge1", tmp_path / "b"),
        process("take", own_broker.url, "edge2", tmp_path / "c", url("edge0", DIGEST)) as taker,
    ):
        assert await lines(taker, len(FILE) // 3) < len(FILE)
        first.kill()
        assert await lines(taker, len(FILE)) == len(FILE)
    assert Cache(tmp_path / "c").path(DIGEST).read_bytes() == FILE


async def test_a_broker_that_is_killed_in_mid_way_costs_time_alone(
    own_broker: MosquittoProcess, tmp_path: Path
) -> None:
    keep(Cache(tmp_path / "a"), FILE)
    async with (
        process("give", own_broker.url, "edge0", tmp_path / "a"),
        process("take", own_broker.url, "edge2", tmp_path / "c", url("edge0", DIGEST)) as taker,
    ):
        await lines(taker, len(FILE) // 3)
        await own_broker.restart()
        assert await lines(taker, len(FILE)) == len(FILE)
    assert Cache(tmp_path / "c").path(DIGEST).read_bytes() == FILE


async def test_the_rules_of_a_guarded_broker_let_peers_work(tmp_path: Path) -> None:
    async with access_world(tmp_path / "site") as world:
        gm, one, two = (peer_of(world, user, tmp_path / user.username) for user in (GM, LC0, LC1))
        keep(Cache(tmp_path / LC0.username), SMALL)
        async with serving(gm, one, two):
            await fetched(two, Cache(tmp_path / "x"), "edge0")
            await fetched(two, Cache(tmp_path / "y"), "any")
            await fetched(gm, Cache(tmp_path / "z"), "edge0")


def peer_of(world: AccessWorld, user: Principal, folder: Path) -> BlobNode:
    bus = MqttBus(f"{user.username}-blobs", world.settings(user))
    return BlobServing(bus, folder) if user == GM else NodeBlobs(user.name, bus, Cache(folder))


async def test_a_node_speaks_and_hears_for_itself_alone(tmp_path: Path) -> None:
    """It neither asks nor answers as another, gives no orders, and hears nothing that is for others."""
    chunk = codec.encode(topics.BLOB_CHUNK, BlobChunk(digest=DIGEST, data=memoryview(b"forged")))
    request = codec.encode(topics.BLOB_REQUEST, BlobRequest(digest=DIGEST, length=1))
    query = codec.encode(topics.BLOB_QUERY, BlobQuery(digest=DIGEST))
    order = codec.encode(topics.BLOB_ORDER, BlobOrder(op="list"))
    async with access_world(tmp_path / "site") as world:
        thief, auditor = await world.client(LC1), await world.client(AUDITOR)
        await thief.listen(["sedna/blobs/#"])
        denied: list[tuple[Address[Any], bytes]] = [
            (topics.BLOB_REQUEST.at(source="gm", asker="lc.edge0"), request),
            (topics.BLOB_CHUNK.at(asker="lc.edge0", source="gm"), chunk),
            (topics.BLOB_CHUNK.at(asker="lc.edge1", source="lc.edge0"), chunk),
            (topics.BLOB_QUERY.at(asker="lc.edge0"), query),
            (topics.BLOB_ORDER.at(source="gm", asker="lc.edge1"), order),
            (topics.BLOB_ORDER.at(source="lc.edge1", asker="lc.edge1"), order),
        ]
        for address, body in denied:
            assert await thief.bus.send(Packet(address.text, body), PATIENCE) == 0x87, address
        for address, body in denied[:2]:
            await auditor.bus.send(Packet(address.text, body), PATIENCE)
        own = topics.BLOB_CHUNK.at(asker="lc.edge1", source="gm")
        await auditor.bus.send(Packet(own.text, chunk), PATIENCE)
        await thief.settle()
        assert {topic for topic, _ in thief.heard} == {own.text}


async def test_a_place_behind_a_bridge_gives_and_takes(tmp_path: Path) -> None:
    async with bridged(tmp_path / "site", secure=False) as world:
        here, beyond = node(world, "edge0", tmp_path), node(world, "cloud0", tmp_path)
        gm = BlobServing(MqttBus("gm-blobs", world.settings(GM, here=False)), tmp_path / "gm")
        other = some_bytes(300_000, seed=2)
        keep(Cache(tmp_path / "cloud0"), SMALL)
        keep(Cache(tmp_path / "edge0"), other)
        async with serving(here, beyond, gm):
            await patiently(here, Cache(tmp_path / "x"), "cloud0", SMALL)
            await patiently(beyond, Cache(tmp_path / "y"), "edge0", other)
            await patiently(gm, Cache(tmp_path / "z"), "any", other)


def node(world: Bridged, name: str, folder: Path) -> NodeBlobs:
    settings = world.settings(Principal(Role.LC, name), here=name == "edge0")
    return NodeBlobs(name, MqttBus(f"{name}-blobs", settings), Cache(folder / name))


async def patiently(peer: BlobNode, cache: Cache, source: str, file: bytes) -> None:
    """Fetch once the bridge is up."""
    async with asyncio.timeout(patience(PATIENCE)):
        while True:
            with contextlib.suppress(FetchError):
                async with peer.opener(url(source, digest_of(file)), "", TransferLimits(connect_s=1), 0):
                    break
    await fetched(peer, cache, source, file)
