"""Nodes with their LC and GM."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.lc_world import World, world
from tests.unit.lc import pods_world


@pytest.fixture
async def stopped_node(tmp_path: Path) -> AsyncIterator[World]:
    """A node whose LC is to be started by the test; GM runs."""
    node = World(tmp_path)
    async with node.gm.running():
        yield node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[World]:
    """A node that holds nothing."""
    async with world(tmp_path) as node:
        yield node


@pytest.fixture
async def started_node(node: World) -> World:
    """A node that has started the edge worker of the service, of which it has no word yet."""
    await node.starts()
    return node


@pytest.fixture
async def working_node(tmp_path: Path) -> AsyncIterator[World]:
    """A node whose edge worker of the service runs."""
    async with world(tmp_path, inserted=True) as node:
        yield node


@pytest.fixture
async def stopped_pods_node(tmp_path: Path) -> AsyncIterator[World]:
    """A node in pods mode whose LC is to be started by the test; GM has the service and its Model."""
    async with pods_world.world(tmp_path) as node:
        yield node


@pytest.fixture
async def pods_node(stopped_pods_node: World) -> AsyncIterator[World]:
    """A node in pods mode that holds the service and has no pod."""
    async with pods_world.holding(stopped_pods_node):
        yield stopped_pods_node
