"""The giving side: hostile questions, floods, guarded files, and whose turn it is. In simulated time."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import codec, topics
from halimede.blobs.server import PER_ASKER, FairQueue
from halimede.blobs.uris import read_url, url
from halimede.bus.memory import MemoryBus
from halimede.bus.message import Delivery, Packet
from halimede.messages import BlobAnswer, BlobChunk, BlobQuery, BlobRequest
from halimede.messages.blobs import MAX_CHUNK
from halimede.models import FetchError
from tests.simulated import eventually, simulate, simulated
from tests.unit.blobs.world import Giver, World, digest_of, keep, read, some_bytes, world

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


async def asker(made: World, name: str = "lc.asker") -> Asker:
    return await Asker(await made.bus(f"{name}-by-hand"), name).start()


async def edge0(made: World) -> Giver:
    return await made.source("lc.edge0", FILE)


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
@simulated
async def test_any_offset_is_answered(tmp_path: Path, offset: int, length: int, error: str, data: bytes) -> None:
    async with world(tmp_path) as made:
        await edge0(made)
        one = await asker(made)
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
@simulated
async def test_what_no_question_may_be_is_refused_and_the_next_is_answered(tmp_path: Path, body: Any) -> None:
    async with world(tmp_path) as made:
        giver, one = await edge0(made), await asker(made)
        await one.say(body)
        await one.ask(0)
        assert [chunk.error for chunk in await one.hears()] == [""]
        assert (giver.bus.stats.rejected, giver.source.stats.pieces) == (1, 1)


@simulated
async def test_a_digest_that_is_not_here_is_told_so_and_asks_no_other_folder(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        giver, one = await edge0(made), await asker(made)
        other = digest_of(b"other")
        (giver.cache.root / "index").mkdir(exist_ok=True)
        (giver.cache.root / "index" / other).write_bytes(b"other")
        (giver.cache.root / other).write_bytes(b"other")
        await one.ask(0, digest=other)
        (chunk,) = await one.hears()
        assert (chunk.error, bytes(chunk.data)) == ("NotFound", b"")
        await one.bus.publish(topics.BLOB_QUERY.at(asker=one.name), BlobQuery(digest=other))
        await one.bus.publish(topics.BLOB_QUERY.at(asker=one.name), BlobQuery(digest=DIGEST))
        await eventually(lambda: one.answers, 10)
        await asyncio.sleep(5)
        assert [(answer.outcome, answer.size) for answer in one.answers] == [("has", len(FILE))]


@simulated
async def test_what_was_opened_with_credentials_is_given_to_nobody(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        giver, one = await edge0(made), await asker(made)
        secret = some_bytes(1000, seed=7)
        giver.cache.guard(digest_of(secret))
        keep(giver.cache, secret)
        giver.cache.grant("s3 with a key", digest_of(secret))
        await one.ask(0, digest=digest_of(secret))
        assert [chunk.error for chunk in await one.hears()] == ["NotFound"]
        with pytest.raises(FetchError):
            await read(await made.client("lc.other"), url("any", digest_of(secret)))


@simulated
async def test_a_flood_is_bounded_and_the_others_are_served_meanwhile(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        giver, flooder = await edge0(made), await asker(made, "lc.flooder")
        client = await made.client()

        async def flood() -> None:
            for offset in range(6_000):
                await flooder.ask(offset, 1)
                assert len(giver.source.queue) <= PER_ASKER + 64

        work = asyncio.create_task(flood())
        assert await read(client, url("edge0", DIGEST)) == FILE
        await work
        assert len(flooder.chunks) < 6_000


@simulated
async def test_the_same_question_waits_once(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        giver, one = await edge0(made), await asker(made)
        await giver.stop()
        for _ in range(100):
            await one.ask(0)
        await asyncio.sleep(1)
        assert len(giver.source.queue) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=200))
def test_each_asker_has_its_turn_and_none_more_than_its_places(questions: list[tuple[str, int]]) -> None:
    async def run() -> None:
        turns: FairQueue[tuple[str, int]] = FairQueue(per_asker=8, askers=2)
        kept = {question for question in questions if turns.put(question[0], question[1], question)}
        waiting = {name for name, _ in kept}
        assert len(waiting) <= 2
        taken = [await turns.take() for _ in range(len(turns))]
        assert set(taken) == kept
        assert len(taken) == len(kept)
        left = {name: sum(1 for asker, _ in kept if asker == name) for name in waiting}
        assert all(count <= 8 for count in left.values())
        for one, two in itertools.pairwise(taken):
            left[one[0]] -= 1
            assert one[0] != two[0] or all(left[name] == 0 for name in waiting if name != one[0])

    simulate(run())


@pytest.mark.parametrize(
    "text",
    [
        "bus://any/sha256/" + "0" * 63,
        "bus://any/sha1/" + "0" * 64,
        "bus://any/sha256/../../etc/passwd",
        "bus:///sha256/" + "0" * 64,
        "bus://a+b/sha256/" + "0" * 64,
        "bus://#/sha256/" + "0" * 64,
        "bus://edge0:80/sha256/" + "0" * 64,
        "bus://user@edge0/sha256/" + "0" * 64,
        "http://any/sha256/" + "0" * 64,
        "bus://any/sha256/" + "0" * 64 + "?x",
        "bus://[/sha256/" + "0" * 64,
    ],
)
def test_a_url_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(FetchError, match="bus://NODE/sha256/DIGEST"):
        read_url(text)
