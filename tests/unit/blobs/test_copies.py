"""A file of one node comes to many: each receives it from one, and the node that has it sends it once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.blobs import BlobServer, FileProvider, of_cache
from halimede.blobs.client import BlobClient
from halimede.blobs.copies import CopyFetcher, sources
from halimede.models import FetchError, FetchReason
from tests.simulated import simulated
from tests.unit.blobs.world import World, digest_of, keep, some_bytes, world
from tests.waiting import patience

NAMES = st.sets(st.from_regex(r"edge[0-9]{1,3}", fullmatch=True), min_size=1, max_size=40)


@given(peers=NAMES, content=st.binary(max_size=8))
def test_the_nodes_are_a_tree_in_which_each_gives_a_file_to_two_at_most(peers: set[str], content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    given_to = Counter[str]()
    for node in peers:
        chain = sources(digest, node, peers, "origin")
        assert chain[-1] == "origin"
        assert node not in chain
        assert len(set(chain)) == len(chain)
        if len(chain) > 1:  # its own chain is the rest of its source's: no node waits for one that waits for it
            assert sources(digest, chain[0], peers, "origin") == chain[1:]
        given_to[chain[0]] += 1
    assert given_to.pop("origin") == 1
    assert max(given_to.values(), default=0) <= 2


def test_each_file_has_another_tree() -> None:
    peers = {f"edge{n}" for n in range(10)}
    first = Counter(
        node
        for number in range(200)
        for node in peers
        if sources(digest_of(bytes([number])), node, peers, "origin") == ["origin"]
    )
    assert set(first) == peers
    assert max(first.values()) < 60


class Node:
    """A node that copies and gives."""

    def __init__(self, name: str, made: World) -> None:
        self.name = name
        self.cache = made.cache(name)
        self._made = made

    async def start(self) -> None:
        party = f"lc.{self.name}"
        bus = await self._made.bus(f"{party}-blobs")
        self.client = BlobClient(bus, party)
        await self.client.start()
        self.source = BlobServer(bus, party, FileProvider([of_cache(self.cache)]))
        await self.source.start()
        self.copies = CopyFetcher(self.client, self.name)
        self.work = asyncio.create_task(self.source.run())
        self._made.stack.push_async_callback(self.stop)

    async def stop(self) -> None:
        self.work.cancel()
        await asyncio.wait([self.work])

    async def copy(self, digest: str, peers: set[str]) -> int:
        """Fetch as often as needed; return how often."""
        for times in range(1, 1000):
            try:
                await self.copies.fetch(digest, "origin", peers, self.cache)
            except FetchError as error:
                if not error.temporary:
                    raise
                await asyncio.sleep(1)
            else:
                return times
        raise AssertionError("never")


async def nodes(made: World, count: int) -> tuple[Node, list[Node]]:
    found = [Node(name, made) for name in ("origin", *(f"edge{n}" for n in range(count)))]
    for node in found:
        await node.start()
    return found[0], found[1:]


@simulated
async def test_the_node_that_has_a_file_sends_it_once_and_the_copies_send_it_on(tmp_path: Path) -> None:
    data = some_bytes(300_000)
    async with world(tmp_path) as made:
        origin, others = await nodes(made, 10)
        digest = keep(origin.cache, data)
        peers = {node.name for node in others}
        async with asyncio.timeout(patience(120)):
            await asyncio.gather(*(node.copy(digest, peers) for node in others))
        assert all([(await node.cache.find(digest)) for node in others])
        assert origin.source.stats.bytes <= 1.1 * len(data)
        assert max(node.source.stats.bytes for node in others) <= 2.2 * len(data)


@pytest.mark.parametrize("silent", [False, True])
@simulated
async def test_nodes_that_are_gone_or_silent_are_passed_over(tmp_path: Path, silent: bool) -> None:
    peers = {f"edge{n}" for n in range(7)}
    async with world(tmp_path) as made:
        origin = Node("origin", made)
        await origin.start()
        digest = keep(origin.cache, some_bytes(50_000))
        deepest = max(peers, key=lambda node: len(sources(digest, node, peers, "origin")))
        for name in peers - {deepest} if silent else ():
            node = Node(name, made)
            await node.start()
            await node.stop()
        last = Node(deepest, made)
        await last.start()
        async with asyncio.timeout(patience(60)):
            assert await last.copy(digest, peers) == 1
        assert await last.cache.find(digest)


@simulated
async def test_a_file_that_nobody_has_any_more_is_a_temporary_error(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        _, (only,) = await nodes(made, 1)
        with pytest.raises(FetchError) as caught:
            await only.copies.fetch("0" * 64, "origin", set(), only.cache)
        assert (caught.value.reason, caught.value.temporary) == (FetchReason.NOT_FOUND, True)


@simulated
async def test_a_node_with_other_bytes_under_the_digest_is_passed_over(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        origin, others = await nodes(made, 3)
        data = some_bytes(50_000)
        digest = keep(origin.cache, data)
        peers = {node.name for node in others}
        child = max(others, key=lambda node: len(sources(digest, node.name, peers, "origin")))
        parent = sources(digest, child.name, peers, "origin")[0]
        liar = next(node for node in others if node.name == parent)
        wrong = tmp_path / "wrong"
        wrong.write_bytes(some_bytes(50_000, seed=1))

        async def find(_: str) -> Path:
            return wrong

        liar.source._provider._finders = [find]
        async with asyncio.timeout(patience(60)):
            await child.copy(digest, peers)
        found = await child.cache.find(digest)
        assert found
        assert found.path.read_bytes() == data
