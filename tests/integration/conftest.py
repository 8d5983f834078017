"""Worlds that many files begin with: a service on a real broker, and a service that runs on a GM in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halimede import log
from halimede.blobs.admin import BlobNode
from services.broker import MosquittoProcess
from tests.integration.gm_world import World, world
from tests.ports import free_port
from tests.requester import s  # noqa: F401 - a fixture
from tests.waiting import eventually, patience


@contextlib.asynccontextmanager
async def serving(*peers: BlobNode) -> AsyncIterator[None]:
    """Let peers give and take files until the block ends."""
    work = [asyncio.create_task(peer.run()) for peer in peers]
    try:
        # a peer carries out orders once it has asked for all of its subscriptions, and is connected once it has them
        await eventually(lambda: [task.get_name() for task in asyncio.all_tasks()].count("blob admin") == len(peers))
        for peer in peers:
            await peer.bus.wait_connected(patience(60))
        yield
    finally:
        for task in work:
            task.cancel()
        await asyncio.wait(work)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the command: log lines are not mixed into what it prints."""
    monkeypatch.setenv("HALIMEDE_LOG_LEVEL", "CRITICAL")
    log.configure()


@pytest.fixture
async def own_broker(tmp_path: Path) -> AsyncIterator[MosquittoProcess]:
    """A Mosquitto that no other test uses."""
    async with MosquittoProcess(tmp_path / "broker", port=free_port()) as broker:
        yield broker


@pytest.fixture
async def w(tmp_path: Path) -> AsyncIterator[World]:
    """A GM with the nodes ``w.edge`` and ``w.cloud``, on which its service runs."""
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as w.edge, w.node("cloud0") as w.cloud:
        await w.deploy()
        yield w
