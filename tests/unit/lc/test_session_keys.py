"""The session key of a service on its node: where it comes from, where it goes, and that it goes nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.api.worker_environment import SESSION_KEY, SESSION_KEY_PROPERTY, session_digest
from tests.inbox import spying
from tests.integration.lc_world import CLOUD, EDGE, HELMET, World, model, service, world
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

KEY, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2


async def insert(node: World, key: str, **changes: Any) -> None:
    """Send the service with a session key, as GM does."""
    body = service(**changes)
    names = {"ns": "default", "plural": HELMET.plural, "name": HELMET.name}
    properties = {"epoch": str(node.gm.epoch), **({SESSION_KEY_PROPERTY: key} if key else {})}
    await node.gm.bus.publish(topics.INSERT.at(node="edge0", **names), body, properties=properties)


async def starts(node: World, key: str) -> None:
    """Send the service with a session key and its Model, and wait for its process."""
    await node.gm.insert(model())
    await insert(node, key)
    await eventually(lambda: node.launcher.alive)


def key_of(node: World) -> str | None:
    return node.launcher.of(EDGE).start.spec.env.get(SESSION_KEY)


def mark(node: World) -> str | None:
    return next((held.session for held in node.gm.syncs[-1].holds if held.name == "helmet"), None)


async def test_the_edge_worker_gets_it_and_a_later_controller_still_has_it(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        await starts(node, KEY)
        assert key_of(node) == KEY
        assert not any(SESSION_KEY in p.start.spec.env for p in node.launcher.started if p.record.worker == CLOUD)
    first = node.launcher.started[-1]
    again = World(tmp_path)
    again.broker.stop()
    async with again.lc():
        await eventually(lambda: again.launcher.alive)
        assert again.launcher.alive[0].start.spec == first.start.spec


async def test_the_sync_names_its_digest_only_and_a_new_key_replaces_the_worker(working_node: World) -> None:
    assert key_of(working_node) is None
    working_node.bus.renew()
    await eventually(lambda: working_node.gm.syncs and mark(working_node) == "")
    assert {held.session for held in working_node.gm.syncs[-1].holds if held.plural != HELMET.plural} == {None}
    for key in (KEY, OTHER):
        await insert(working_node, key)  # the same generation
        await eventually(lambda key=key: working_node.launcher.alive and key_of(working_node) == key)
        working_node.bus.renew()
        await eventually(lambda key=key: mark(working_node) == session_digest(key), 600)


async def test_an_older_gm_that_sends_no_key_takes_none_away(node: World) -> None:
    await starts(node, KEY)
    await insert(node, "", generation=2)
    await node.gm.reaches(HELMET, "Pending", generation=2)
    assert key_of(node) == KEY


@pytest.mark.parametrize("wrong", ["../x", "0" * 31, "F" * 32, "0" * 8000])
async def test_what_is_no_key_is_refused_and_not_repeated_in_the_dead_letter(node: World, wrong: str) -> None:
    async with spying(node.broker, topics.DEAD_LETTER.filter().text) as letters:
        await insert(node, wrong)
        await eventually(lambda: letters)
        assert wrong.encode() not in letters[0].payload
        assert not node.launcher.started


async def test_nothing_that_the_node_publishes_has_it(node: World) -> None:
    async with spying(node.broker) as packets:
        await starts(node, KEY)
        await node.works()
        node.bus.renew()
        await eventually(lambda: node.gm.syncs and mark(node) == session_digest(KEY), 600)
        found = {p.topic for p in packets if KEY in repr([p.topic, bytes(p.payload), p.properties])}
        assert all(topics.INSERT.parse(topic) for topic in found)
        assert KEY not in repr(node.launcher.started[-1].record)
