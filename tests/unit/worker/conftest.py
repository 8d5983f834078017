"""Worlds of workers: none yet, an edge worker alone, or one with its cloud worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.worker.world import World, world


@pytest.fixture
async def w(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as workers:
        yield workers


@pytest.fixture
async def lone_edge(w: World) -> AsyncIterator[World]:
    async with w.worker("edge", "e0"):
        yield w


@pytest.fixture
async def pair(w: World) -> AsyncIterator[World]:
    async with w.worker("cloud", "c0"), w.worker("edge", "e0"):
        yield w
