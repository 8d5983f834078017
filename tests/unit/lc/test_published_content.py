"""What a node knows of the content that it copies: from GM's statuses, and after a start without GM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import DatasetFacts, ModelFacts, NodeSummary, Status, StatusDocument
from halimede.names import Key
from services.lc.published_content import PublishedContent, PublishedFile, usable_digest
from tests.simulated import eventually
from tests.worlds import connected

pytestmark = pytest.mark.simulated

FRAMES, SMALL = Key("datasets", "default", "frames"), Key("models", "default", "small")
A, B = "a" * 64, "b" * 64


def document(key: Key, uid: str = "u", **status: object) -> StatusDocument:
    return StatusDocument(
        api_version="sedna.io/v1alpha1",
        kind="Dataset" if key == FRAMES else "Model",
        namespace=key.namespace,
        name=key.name,
        uid=uid,
        generation=1,
        status=Status(**{"observed_generation": 1, **status}),  # type: ignore[arg-type]
    )


async def publish(bus: MemoryBus, key: Key, said: StatusDocument) -> None:
    await bus.publish(topics.STATUS.at(ns=key.namespace, plural=key.plural, name=key.name), said, qos=1)


@asynccontextmanager
async def followed(file: Path, changed: Callable[[], None]) -> AsyncIterator[tuple[MemoryBus, PublishedContent]]:
    """Follow what GM publishes; yield GM's bus, and the content."""
    broker = MemoryBroker()
    async with connected(MemoryBus("gm", broker)) as gm, connected(MemoryBus("lc", broker)) as bus:
        content = PublishedContent(bus, file)
        task = asyncio.create_task(content.run(changed))
        yield gm, content
        task.cancel()


async def test_content_and_peers_are_read_from_the_status_and_kept_over_a_restart(tmp_path: Path) -> None:
    file, changes = tmp_path / "published.json", list[int]()
    async with followed(file, lambda: changes.append(1)) as (gm, content):
        content.set_required({FRAMES, SMALL})
        nodes = [
            NodeSummary(node="edge0", online=True, phase="Ready"),
            NodeSummary(node="edge1", online=True, phase="Pending"),
            NodeSummary(node="edge2", online=False, phase="Ready"),
            NodeSummary(node="edge3", online=True, phase="Failed"),
        ]
        await publish(gm, FRAMES, document(FRAMES, dataset=DatasetFacts(listing=A), nodes=nodes))
        await publish(gm, SMALL, document(SMALL, model=ModelFacts(digest=B)))
        await eventually(lambda: len(content.files) == 2)
        assert (content.files[FRAMES], set(content.peers(FRAMES))) == (PublishedFile("u", 1, A), {"edge0", "edge1"})
        assert len(changes) == 2
        # a status without content, such as that of a source that starts again, changes nothing
        await publish(gm, FRAMES, document(FRAMES))
        await asyncio.sleep(1)
        assert content.files[FRAMES].digest == A
    again = PublishedContent(MemoryBus("lc", MemoryBroker()), file)
    again.load()
    assert again.files == content.files


async def test_resources_that_are_not_copied_any_more_are_forgotten(tmp_path: Path) -> None:
    async with followed(tmp_path / "published.json", lambda: None) as (gm, content):
        content.set_required({FRAMES})
        await publish(gm, FRAMES, document(FRAMES, dataset=DatasetFacts(listing=A)))
        await eventually(lambda: FRAMES in content.files)
        content.set_required(set())
        await eventually(lambda: not content.files)
        await publish(gm, FRAMES, document(FRAMES, dataset=DatasetFacts(listing=B)))
        await asyncio.sleep(1)
        assert not content.files
        content.set_required({FRAMES})  # the retained status brings it again
        await eventually(lambda: content.files.get(FRAMES) == PublishedFile("u", 1, B))


def test_content_is_that_of_the_resource_and_of_its_generation() -> None:
    known = {FRAMES: PublishedFile("u", 2, A)}
    assert usable_digest(known, FRAMES, "u", 2) == usable_digest(known, FRAMES, "u", 1) == A
    foreign = ((FRAMES, "u", 3), (FRAMES, "other", 2), (SMALL, "u", 2))
    assert [usable_digest(known, *resource) for resource in foreign] == ["", "", ""]


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    for data in (b"", b"{", b'{"no key": {"uid": "u", "generation": 1, "digest": ""}}', b"[]"):
        (tmp_path / "published.json").write_bytes(data)
        content = PublishedContent(MemoryBus("lc", MemoryBroker()), tmp_path / "published.json")
        content.load()
        assert content.files == {}
