"""A file of one node comes to many: each receives it from one, and the node that has it sends it once."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.blobs.copies import CopyFetcher, sources
from halimede.models import Cache, FetchError, FetchReason
from tests.unit.blobs.world import Giver, World, digest_of, keep, some_bytes
from tests.unit.models.archives import refusal
from tests.waiting import patience

pytestmark = pytest.mark.simulated

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
    digests = [digest_of(bytes([number])) for number in range(200)]
    first = Counter(
        node for digest in digests for node in peers if sources(digest, node, peers, "origin") == ["origin"]
    )
    assert set(first) == peers
    assert max(first.values()) < 60


@dataclass
class Node:
    name: str
    giver: Giver
    copies: CopyFetcher

    @property
    def cache(self) -> Cache:
        return self.giver.cache

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


async def start_node(world: World, name: str) -> Node:
    giver = await world.source(f"lc.{name}")
    return Node(name, giver, CopyFetcher(await world.client(f"lc.{name}"), name))


async def nodes(world: World, count: int) -> tuple[Node, list[Node]]:
    origin, *others = [await start_node(world, name) for name in ("origin", *(f"edge{n}" for n in range(count)))]
    return origin, others


async def test_the_node_that_has_a_file_sends_it_once_and_the_copies_send_it_on(world: World) -> None:
    data = some_bytes(300_000)
    origin, others = await nodes(world, 10)
    digest = keep(origin.cache, data)
    peers = {node.name for node in others}
    async with asyncio.timeout(patience(120)):
        await asyncio.gather(*(node.copy(digest, peers) for node in others))
    assert all([(await node.cache.find(digest)) for node in others])
    assert origin.giver.source.stats.bytes <= 1.1 * len(data)
    assert max(node.giver.source.stats.bytes for node in others) <= 2.2 * len(data)


@pytest.mark.parametrize("silent", [False, True])
async def test_nodes_that_are_gone_or_silent_are_passed_over(world: World, silent: bool) -> None:
    peers = {f"edge{n}" for n in range(7)}
    origin = await start_node(world, "origin")
    digest = keep(origin.cache, some_bytes(50_000))
    deepest = max(peers, key=lambda node: len(sources(digest, node, peers, "origin")))
    for name in peers - {deepest} if silent else ():
        await (await start_node(world, name)).giver.stop()
    last = await start_node(world, deepest)
    async with asyncio.timeout(patience(60)):
        assert await last.copy(digest, peers) == 1
    assert await last.cache.find(digest)


async def test_a_file_that_nobody_has_any_more_is_a_temporary_error(world: World) -> None:
    _, (only,) = await nodes(world, 1)
    fetching = only.copies.fetch("0" * 64, "origin", set(), only.cache)
    assert await refusal(fetching) == (FetchReason.NOT_FOUND, True)


async def test_a_node_with_other_bytes_under_the_digest_is_passed_over(world: World) -> None:
    origin, others = await nodes(world, 3)
    data = some_bytes(50_000)
    digest = keep(origin.cache, data)
    peers = {node.name for node in others}
    child = max(others, key=lambda node: len(sources(digest, node.name, peers, "origin")))
    parent = sources(digest, child.name, peers, "origin")[0]
    liar = next(node for node in others if node.name == parent)
    wrong = world.folder / "wrong"
    wrong.write_bytes(some_bytes(50_000, seed=1))

    async def find(_: str) -> Path:
        return wrong

    liar.giver.source._provider._finders = [find]
    async with asyncio.timeout(patience(60)):
        await child.copy(digest, peers)
    assert (await child.cache.find(digest)).path.read_bytes() == data
