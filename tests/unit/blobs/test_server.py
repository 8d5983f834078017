"""The giving side: hostile questions, floods, guarded files, and whose turn it is. In simulated time."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import codec, topics
from halimede.blobs.server import MAX_PER_REQUESTER, FairQueue
from halimede.blobs.uris import parse_url, url
from halimede.bus.memory import MemoryBus
from halimede.bus.message import Delivery, Packet
from halimede.messages import BlobAnswer, BlobChunk, BlobQuery, BlobRequest
from halimede.messages.blobs import MAX_CHUNK
from halimede.models import FetchError
from tests.simulated import eventually
from tests.unit.blobs.world import Giver, World, digest_of, keep, read, some_bytes

pytestmark = pytest.mark.simulated

FILE = some_bytes(1_000_000)
DIGEST = digest_of(FILE)


@dataclass
class Asker:
    """Asks by hand, and hears all that comes."""

    bus: MemoryBus
    name: str
    chunks: list[BlobChunk] = field(default_factory=list)
    answers: list[BlobAnswer] = field(default_factory=list)

    async def start(self) -> Asker:
        async def chunk(delivery: Delivery[BlobChunk]) -> None:
            self.chunks.append(delivery.body)

        async def answer(delivery: Delivery[BlobAnswer]) -> None:
            self.answers.append(delivery.body)

        await self.bus.subscribe(topics.BLOB_CHUNK.filter(asker=self.name), chunk, queue=10_000)
        await self.bus.subscribe(topics.BLOB_ANSWER.filter(asker=self.name), answer)
        return self

    async def ask(self, offset: int, length: int = 1000, digest: str = DIGEST) -> None:
        to = topics.BLOB_REQUEST.at(source="lc.edge0", asker=self.name)
        await self.bus.publish(to, BlobRequest(digest=digest, offset=offset, length=length), qos=0)

    async def say(self, body: Any) -> None:
        to = topics.BLOB_REQUEST.at(source="lc.edge0", asker=self.name).text
        await self.bus.send(Packet(to, codec._json.encode(body)))

    async def hears(self, count: int = 1) -> list[BlobChunk]:
        await eventually(lambda: len(self.chunks) >= count, 30)
        return self.chunks


async def asker(world: World, name: str = "lc.asker") -> Asker:
    return await Asker(await world.bus(f"{name}-by-hand"), name).start()


async def edge0(world: World) -> Giver:
    return await world.source("lc.edge0", FILE)


@pytest.mark.parametrize(
    ("offset", "length", "error", "data"),
    [
        (0, 10, "", FILE[:10]),
        (999_990, MAX_CHUNK, "", FILE[999_990:]),
        (1_000_000, 10, "", b""),
        (1_000_001, 10, "Beyond", b""),
        (2**63 - 1, MAX_CHUNK, "Beyond", b""),
    ],
)
async def test_any_offset_is_answered(world: World, offset: int, length: int, error: str, data: bytes) -> None:
    await edge0(world)
    one = await asker(world)
    await one.ask(offset, length)
    (chunk,) = await one.hears()
    assert (chunk.error, bytes(chunk.data), chunk.size, chunk.offset) == (error, data, len(FILE), offset)


@pytest.mark.parametrize(
    "body",
    [
        {"digest": "../../../../etc/passwd", "length": 10},
        {"digest": f"../sha256/{DIGEST}"[:64], "length": 10},
        {"digest": DIGEST.upper(), "length": 10},
        {"digest": DIGEST + "\n", "length": 10},
        {"digest": "", "length": 10},
        {"digest": DIGEST, "length": 0},
        {"digest": DIGEST, "length": MAX_CHUNK + 1},
        {"digest": DIGEST, "length": 2**62},
        {"digest": DIGEST, "length": 10, "offset": -1},
        {"digest": DIGEST, "length": 10, "offset": 2**63},
        {"digest": DIGEST, "length": "10"},
        {"length": 10},
        [],
    ],
)
async def test_what_no_question_may_be_is_refused_and_the_next_is_answered(world: World, body: Any) -> None:
    giver, one = await edge0(world), await asker(world)
    await one.say(body)
    await one.ask(0)
    assert [chunk.error for chunk in await one.hears()] == [""]
    assert (giver.bus.stats.rejected, giver.source.stats.pieces) == (1, 1)


async def test_a_digest_that_is_not_here_is_told_so_and_asks_no_other_folder(world: World) -> None:
    giver, one = await edge0(world), await asker(world)
    other = digest_of(b"other")
    (giver.cache.root / "index").mkdir(exist_ok=True)
    (giver.cache.root / "index" / other).write_bytes(b"other")
    (giver.cache.root / other).write_bytes(b"other")
    await one.ask(0, digest=other)
    (chunk,) = await one.hears()
    assert (chunk.error, bytes(chunk.data)) == ("NotFound", b"")
    for digest in (other, DIGEST):
        await one.bus.publish(topics.BLOB_QUERY.at(asker=one.name), BlobQuery(digest=digest))
    await eventually(lambda: one.answers, 10)
    await asyncio.sleep(5)
    assert [(answer.outcome, answer.size) for answer in one.answers] == [("has", len(FILE))]


async def test_what_was_opened_with_credentials_is_given_to_nobody(world: World) -> None:
    giver, one = await edge0(world), await asker(world)
    secret = some_bytes(1000, seed=7)
    giver.cache.guard(digest_of(secret))
    keep(giver.cache, secret)
    giver.cache.grant("s3 with a key", digest_of(secret))
    await one.ask(0, digest=digest_of(secret))
    assert [chunk.error for chunk in await one.hears()] == ["NotFound"]
    with pytest.raises(FetchError):
        await read(await world.client("lc.other"), url("any", digest_of(secret)))


async def test_a_flood_is_bounded_and_the_others_are_served_meanwhile(world: World) -> None:
    giver, flooder = await edge0(world), await asker(world, "lc.flooder")
    client = await world.client()

    async def flood() -> None:
        for offset in range(6_000):
            await flooder.ask(offset, 1)
            assert len(giver.source.queue) <= MAX_PER_REQUESTER + 64

    work = asyncio.create_task(flood())
    assert await read(client, url("edge0", DIGEST)) == FILE
    await work
    assert len(flooder.chunks) < 6_000


async def test_the_same_question_waits_once(world: World) -> None:
    giver, one = await edge0(world), await asker(world)
    await giver.stop()
    for _ in range(100):
        await one.ask(0)
    await asyncio.sleep(1)
    assert len(giver.source.queue) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=200))
async def test_each_asker_has_its_turn_and_none_more_than_its_places(questions: list[tuple[str, int]]) -> None:
    turns: FairQueue[tuple[str, int]] = FairQueue(per_asker=8, askers=2)
    kept = {question for question in questions if turns.put(question[0], question[1], question)}
    waiting = {name for name, _ in kept}
    assert len(waiting) <= 2
    taken = [await turns.take() for _ in range(len(turns))]
    assert sorted(taken) == sorted(kept)
    left = {name: sum(1 for asker, _ in kept if asker == name) for name in waiting}
    assert all(count <= 8 for count in left.values())
    for one, two in itertools.pairwise(taken):
        left[one[0]] -= 1
        assert one[0] != two[0] or all(left[name] == 0 for name in waiting if name != one[0])


@pytest.mark.parametrize(
    "text",
    [
        *(f"bus://{source}/sha256/{DIGEST}" for source in ("", "a+b", "#", "edge0:80", "user@edge0", "[")),
        *(f"bus://any/{path}" for path in (f"sha256/{DIGEST[1:]}", f"sha1/{DIGEST}", "sha256/../../etc/passwd")),
        *(f"http://any/sha256/{DIGEST}", f"bus://any/sha256/{DIGEST}?x"),
    ],
)
def test_a_url_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(FetchError, match="bus://NODE/sha256/DIGEST"):
        parse_url(text)
