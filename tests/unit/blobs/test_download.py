"""Reading over a bus that loses, and from sources that fall silent, lie or leave. In simulated time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from halimede import topics
from halimede.blobs import BlobClient, BusOpener, with_fallback
from halimede.blobs.uris import url
from halimede.bus.memory import MemoryBus
from halimede.bus.message import Delivery
from halimede.messages import BlobAnswer, BlobChunk, BlobQuery, BlobRequest
from halimede.models import Cache, Fetched, FetchError, FetchReason, fetch
from halimede.models.external_data import DataFilesError
from halimede.models.source_types import TransferLimits
from tests.unit.blobs.world import World, digest_of, keep, read, some_bytes
from tests.unit.models.archives import refusal

pytestmark = pytest.mark.simulated

FILE = some_bytes(3_000_000)
DIGEST = digest_of(FILE)


async def liar(world: World, name: str, file: bytes, *, says: str = DIGEST, size: int | None = None) -> MemoryBus:
    """Give something else under a digest."""
    bus = await world.bus(f"{name}-liar")
    whole = len(file) if size is None else size

    async def asked(delivery: Delivery[BlobRequest]) -> None:
        body = delivery.body
        data = memoryview(file)[body.offset : body.offset + body.length]
        chunk = BlobChunk(digest=says, offset=body.offset, size=whole, data=data)
        to = topics.BLOB_CHUNK.at(asker=delivery.names["asker"], source=name)
        await bus.publish(to, chunk, correlation=delivery.packet.correlation)

    async def queried(delivery: Delivery[BlobQuery]) -> None:
        to = topics.BLOB_ANSWER.at(asker=delivery.names["asker"], source=name)
        await bus.publish(to, BlobAnswer(outcome="has", size=whole), correlation=delivery.packet.correlation)

    await bus.subscribe(topics.BLOB_REQUEST.filter(source=name), asked)
    await bus.subscribe(topics.BLOB_QUERY.filter(), queried)
    return bus


async def fetched(client: BlobClient, cache: Cache, source: str, limits: TransferLimits | None = None) -> bytes:
    openers = {"bus": BusOpener(client)}
    found = await with_fallback(fetch, url(source, DIGEST), "", cache, openers=openers, limits=limits)
    return found.path.read_bytes()


@pytest.mark.parametrize("offset", [0, 1, 1_234_567, len(FILE) - 1, len(FILE)])
async def test_a_file_is_read_from_any_offset(world: World, offset: int) -> None:
    await world.source("lc.edge0", FILE)
    assert await read(await world.client(), url("edge0", DIGEST), offset) == FILE[offset:]


async def test_a_part_that_is_longer_than_the_file_is_begun_anew(world: World) -> None:
    await world.source("gm", FILE)
    opener = BusOpener(await world.client())
    async with opener(url("gm", DIGEST), "", TransferLimits(), len(FILE) + 1) as stream:
        assert (stream.offset, stream.size) == (0, len(FILE))


async def test_what_is_known_already_is_not_sent(world: World) -> None:
    opener = BusOpener(await world.client())
    async with opener(url("gm", DIGEST), DIGEST, TransferLimits(), 0) as stream:
        assert stream.blocks is None


async def test_a_model_that_lacks_its_data_files_discredits_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch_model(*_: Any, **__: Any) -> Fetched:
        error = FetchError(FetchReason.DIGEST_MISMATCH, "spec.sha256 covers only the model file")
        raise DataFilesError(Fetched(Path("/m"), DIGEST, 1), error)

    monkeypatch.setattr(BusOpener, "distrust", lambda *_: "edge0")
    openers = {"bus": BusOpener(cast("Any", None))}
    with pytest.raises(DataFilesError):
        await with_fallback(fetch_model, url("edge0", DIGEST), "", Cache(Path("/c")), openers=openers)


@pytest.mark.parametrize("seed", range(5))
async def test_a_bus_that_loses_and_reorders_gives_the_whole_file(world: World, seed: int) -> None:
    giver, client = await world.source("lc.edge0", FILE), await world.client()
    world.broker.chance.seed(seed)
    faults = world.broker.faults
    faults.loss, faults.reorder, faults.delay_s = 0.2, 0.3, (0.001, 0.05)
    assert await read(client, url("edge0", DIGEST)) == FILE
    assert giver.source.stats.bytes > len(FILE), "something was lost and sent again"


async def test_a_source_that_falls_silent_is_left_for_another(world: World) -> None:
    first, second = await world.source("lc.edge0", FILE), await world.source("lc.edge1", FILE)
    client, got = await world.client(), b""
    async with BusOpener(client)(url("edge0", DIGEST), "", TransferLimits(), 0) as stream:
        assert stream.blocks is not None
        async for block in stream.blocks:
            got += block
            if len(got) > 500_000:
                await first.stop()
    assert got == FILE
    assert 0 < second.source.stats.bytes < len(FILE), "it went on where the first ended"


async def test_without_another_source_the_reader_waits_for_it_to_come_back_and_no_longer(world: World) -> None:
    giver, client = await world.source("lc.edge0", FILE), await world.client()
    asyncio.get_running_loop().call_later(0.4, giver.work.cancel)
    world.broker.faults.delay_s = (0.01, 0.02)
    reading = read(client, url("edge0", DIGEST), limits=TransferLimits(inactivity_s=30))
    assert await refusal(reading) == (FetchReason.INTERRUPTED, True)
    assert giver.source.stats.bytes > 100_000
    assert asyncio.get_running_loop().time() < 120


async def test_a_source_that_is_cut_off_and_comes_back_goes_on(world: World) -> None:
    giver, client = await world.source("lc.edge0", FILE), await world.client()
    got, cut = b"", False
    async with BusOpener(client)(url("edge0", DIGEST), "", TransferLimits(inactivity_s=60), 0) as stream:
        assert stream.blocks is not None
        async for block in stream.blocks:
            got += block
            if not cut:
                cut = True
                giver.bus.cut()
                asyncio.get_running_loop().call_later(20, giver.bus.heal)
    assert got == FILE


async def test_wrong_bytes_are_found_out_and_their_source_is_left_alone(world: World) -> None:
    wrong = await liar(world, "lc.wrong", some_bytes(len(FILE), seed=1))
    client, cache = await world.client(), world.cache("own")
    with pytest.raises(FetchError, match="wrong sent other content") as caught:
        await fetched(client, cache, "any")
    assert (caught.value.reason, caught.value.temporary) == (FetchReason.DIGEST_MISMATCH, True)
    await world.source("lc.right", FILE)
    assert await fetched(client, cache, "wrong") == FILE, "although the wrong one is named"
    assert wrong.connected


async def test_when_all_who_have_it_lie_somebody_has_to_act(world: World) -> None:
    await liar(world, "lc.wrong", some_bytes(len(FILE), seed=1))
    client, cache = await world.client(), world.cache("own")
    found = [await refusal(fetched(client, cache, "any")) for _ in range(2)]
    assert found == [(FetchReason.DIGEST_MISMATCH, True), (FetchReason.DIGEST_MISMATCH, False)]


async def test_a_source_that_claims_endless_size_is_refused_by_the_limit(world: World) -> None:
    await liar(world, "lc.endless", FILE, size=2**62)
    reading = fetched(await world.client(), world.cache("own"), "endless", TransferLimits(max_bytes=10**7))
    assert (await refusal(reading))[0] is FetchReason.TOO_LARGE


async def test_what_nobody_has_and_who_is_not_there_are_two_things(world: World) -> None:
    await world.source("lc.edge0", b"something else")
    client = await world.client()
    nobody, absent = (FetchReason.NOT_FOUND, False), (FetchReason.UNREACHABLE, True)
    limits = TransferLimits(connect_s=5)
    for source, refused in (("any", nobody), ("edge0", nobody), ("edge9", absent)):
        assert await refusal(read(client, url(source, DIGEST), limits=limits)) == refused, source


async def test_without_a_broker_the_reader_says_so_in_time(world: World) -> None:
    client = await world.client()
    world.broker.stop()
    reading = read(client, url("any", DIGEST), limits=TransferLimits(connect_s=5))
    assert await refusal(reading) == (FetchReason.UNREACHABLE, True)
    assert asyncio.get_running_loop().time() < 30


async def test_a_download_that_ended_goes_on_where_it_was_from_whoever_has_it(world: World) -> None:
    await world.source("lc.edge0", FILE)
    client, cache = await world.client(), world.cache("own")
    here: list[int] = []

    def progress(done: int, _: int | None) -> None:
        here.append(done)
        if done > 1_000_000 and len(here) < 100:
            raise KeyboardInterrupt("killed")

    with pytest.raises(KeyboardInterrupt):
        await fetch(url("edge0", DIGEST), DIGEST, cache, progress, openers={"bus": BusOpener(client)})
    other = await world.source("gm", FILE)
    found = await fetch(url("gm", DIGEST), DIGEST, cache, openers={"bus": BusOpener(client)})
    assert found.path.read_bytes() == FILE
    assert other.source.stats.bytes < len(FILE) - 900_000


async def test_pieces_for_somebody_else_or_of_an_earlier_question_change_nothing(world: World) -> None:
    await world.source("lc.edge0", FILE)
    client, forger = await world.client(), await world.bus("forger")
    to = topics.BLOB_CHUNK.at(asker="lc.asker", source="lc.edge0")
    forged = BlobChunk(digest=DIGEST, size=len(FILE), data=memoryview(bytes(60_000)))

    async def forge() -> None:
        while True:
            await forger.publish(to, forged, correlation=b"0123456789abcdef")
            await asyncio.sleep(0.001)

    work = asyncio.create_task(forge())
    world.broker.faults.delay_s = (0.01, 0.01)
    assert await read(client, url("edge0", DIGEST)) == FILE
    work.cancel()
    assert client.late > 0


async def test_a_file_that_is_in_the_cache_is_given_under_its_own_digest_alone(world: World) -> None:
    giver = await world.source("lc.edge0")
    keep(giver.cache, FILE)
    giver.cache.path(DIGEST).write_bytes(b"tampered")
    assert (await refusal(read(await world.client(), url("edge0", DIGEST))))[0] is FetchReason.NOT_FOUND
