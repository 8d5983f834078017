"""What operators ask of a source: keep, list, remove; refused with a reason, repeated without harm. Simulated time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halimede.blobs import BlobClient, BlobServer, FileProvider
from halimede.bus.memory import MemoryBus
from halimede.errors import HalimedeError, NoSubscriberError
from halimede.messages import BlobAnswer, BlobOrder
from halimede.models import Cache
from services.gm.app import BlobServing
from services.lc.app import NodeBlobs
from tests.unit.blobs.world import World, digest_of, keep, some_bytes

pytestmark = pytest.mark.simulated

FILE = some_bytes(1_000_000)
DIGEST = digest_of(FILE)
KEEP = BlobOrder(op="keep", digest=DIGEST, size=len(FILE))


@contextlib.asynccontextmanager
async def gm(world: World, most: int = 10**9) -> AsyncIterator[BlobServing]:
    blobs = BlobServing(MemoryBus("gm-blobs", world.broker), world.folder / "gm", most)
    work = asyncio.create_task(blobs.run())
    try:
        await asyncio.sleep(1)
        yield blobs
    finally:
        work.cancel()
        await asyncio.wait([work])
    assert work.cancelled()


async def operator(world: World, file: Path | None = None) -> BlobClient:
    """Be a command that gives one file."""
    bus = await world.bus("cli-1")
    client = BlobClient(bus, "cli-1")
    await client.start()

    async def find(digest: str) -> Path | None:
        return file if digest == DIGEST else None

    source = BlobServer(bus, "cli-1", FileProvider([find]))
    await source.start(queries=False)
    work = asyncio.create_task(source.run())

    async def stop() -> None:
        work.cancel()
        await asyncio.wait([work])

    world.stack.push_async_callback(stop)
    return client


async def done(client: BlobClient, order: BlobOrder, source: str = "gm") -> BlobAnswer:
    return await client.order(source, order, timeout_s=60)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(FILE)
    return path


async def test_a_file_is_kept_listed_and_removed(world: World, file: Path) -> None:
    async with gm(world):
        client = await operator(world, file)
        assert await done(client, KEEP) == BlobAnswer(outcome="kept", size=len(FILE))
        assert (world.folder / "gm" / "sha256" / DIGEST).read_bytes() == FILE
        (entry,) = (await done(client, BlobOrder(op="list"))).blobs
        assert (entry.digest, entry.size) == (DIGEST, len(FILE))
        assert (await done(client, BlobOrder(op="list", after=DIGEST))).blobs == []
        assert (await done(client, BlobOrder(op="remove", digest=DIGEST))).outcome == "removed"
        assert (await done(client, BlobOrder(op="list"))).blobs == []
        with pytest.raises(HalimedeError, match="is not here"):
            await done(client, BlobOrder(op="remove", digest=DIGEST))


async def test_an_order_is_done_once_however_often_it_comes(world: World, file: Path) -> None:
    async with gm(world) as blobs:
        client = await operator(world, file)
        fetched = []
        came = blobs.client.attach
        blobs.client.attach = lambda *its: (fetched.append(its), came(*its))  # type: ignore[method-assign]
        orders = [asyncio.create_task(done(client, KEEP)) for _ in range(5)]
        assert [answer.outcome for answer in await asyncio.gather(*orders)] == ["kept"] * 5
        assert len(fetched) == 1


async def test_a_bus_that_loses_and_repeats_delays_an_order_and_no_more(world: World, file: Path) -> None:
    async with gm(world):
        client = await operator(world, file)
        world.broker.faults.loss = world.broker.faults.duplicate = 0.2
        assert (await client.order("gm", KEEP, timeout_s=600)).outcome == "kept"
        assert list((world.folder / "gm" / "sha256").iterdir()) == [world.folder / "gm" / "sha256" / DIGEST]


@pytest.mark.parametrize(
    ("order", "most", "reason"),
    [
        (KEEP, 999_999, "free space with"),
        (BlobOrder(op="keep", digest=DIGEST, size=10), 10**9, "larger than the limit"),
        (BlobOrder(op="keep", digest="1" * 64, size=10), 10**9, "no source on the bus has"),
        (BlobOrder(op="keep"), 10**9, "name a digest"),
    ],
)
async def test_what_is_not_kept_is_refused_with_its_reason(
    world: World, file: Path, order: BlobOrder, most: int, reason: str
) -> None:
    async with gm(world, most):
        client = await operator(world, file)
        with pytest.raises(HalimedeError, match=reason):
            await done(client, order)
        assert (await done(client, BlobOrder(op="list"))).blobs == []


async def test_a_node_keeps_what_it_is_given_and_removes_by_itself_alone(world: World, file: Path) -> None:
    cache = Cache(world.folder / "node")
    secret = some_bytes(100, seed=3)
    cache.guard(digest_of(secret))
    keep(cache, secret)
    work = asyncio.create_task(NodeBlobs("edge0", MemoryBus("lc.edge0-blobs", world.broker), cache).run())
    await asyncio.sleep(1)
    client = await operator(world, file)
    assert (await done(client, KEEP, "lc.edge0")).outcome == "kept"
    listed = (await done(client, BlobOrder(op="list"), "lc.edge0")).blobs
    assert [entry.digest for entry in listed] == [DIGEST], "what is guarded is not shown"
    with pytest.raises(HalimedeError, match="unused files itself"):
        await done(client, BlobOrder(op="remove", digest=DIGEST), "lc.edge0")
    work.cancel()
    await asyncio.wait([work])


async def test_who_is_not_there_does_not_keep_anybody_waiting(world: World) -> None:
    with pytest.raises(NoSubscriberError, match="edge9 is not on the bus"):
        await done(await operator(world), BlobOrder(op="list"), "lc.edge9")
