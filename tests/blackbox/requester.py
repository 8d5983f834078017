"""Requests to a cloud worker or a tier that are written by hand, as the worker of the tier before writes them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import msgspec

from halimede import topics
from halimede.bus import Delivery
from halimede.messages import Frame, Reply
from halimede.topic import Address, Filter
from tests.blackbox.world import Kind, Running, World, frame
from tests.waiting import eventually

#: the kinds of workers that answer requests
REQUESTED: list[Kind] = ["cloud", "tier"]


@dataclass(frozen=True)
class Got:
    """One reply and the correlation that it came with."""

    reply: Reply
    correlation: bytes


def serving(world: World, kind: Kind, estimator: object, **changes: str) -> AbstractAsyncContextManager[Running]:
    """Run ``c0``, which answers requests by its own model alone: a tier never asks the next one."""
    alone = {"HEM_NAME": "EdgeOnly", "HEM_PARAMETERS": ""} if kind == "tier" else {}
    return world.worker(kind, "c0", estimator, **{**alone, **changes})


@contextlib.asynccontextmanager
async def requested(world: World, kind: Kind, estimator: object, **changes: str) -> AsyncIterator[Requester]:
    """Run what ``serving`` runs, and yield who asks it."""
    async with serving(world, kind, estimator, **changes):
        yield await asking(world)


async def asking(world: World, name: str = "asker", worker: str = "c0") -> Requester:
    """Return who asks a worker."""
    requester = Requester(world, worker, name)
    await requester.start()
    return requester


class Requester:
    """Sends requests to one worker, and keeps the replies in the order of their arrival."""

    def __init__(self, world: World, worker: str, name: str = "asker") -> None:
        self.got: list[Got] = []
        self._world = world
        self._worker = worker
        self._reply_to = world.address(topics.REPLY, name)

    async def start(self) -> None:
        await self._world.client.subscribe(Filter(topics.REPLY, self._reply_to.text), self._on_reply)

    async def _on_reply(self, delivery: Delivery[Reply]) -> None:
        self.got.append(Got(delivery.body, delivery.packet.correlation))

    async def send(
        self,
        body: Frame,
        correlation: bytes = b"c",
        *,
        deadline_ms: float = 60_000,
        reply_to: Address[Reply] | None = None,
    ) -> None:
        """Send a request and wait for no reply."""
        body = msgspec.structs.replace(body, deadline_ms=deadline_ms)
        address = self._world.address(topics.REQUEST_TO, self._worker)
        await self._world.client.publish(address, body, reply_to=reply_to or self._reply_to, correlation=correlation)

    async def ask(self, body: Frame, correlation: bytes = b"c", *, deadline_ms: float = 60_000) -> Reply:
        """Send a request; return the next reply."""
        before = len(self.got)
        await self.send(body, correlation, deadline_ms=deadline_ms)
        await eventually(lambda: len(self.got) > before)
        return self.got[before].reply

    async def replies(self, count: int) -> list[Reply]:
        """Return the first replies; there are no more than so many."""
        await eventually(lambda: len(self.got) >= count)
        assert len(self.got) == count
        return [each.reply for each in self.got]

    async def received(self) -> None:
        """Wait until the worker has received all that was sent: what it refuses at once comes after them."""
        refused = frame(0, encoding="png")
        await self.send(refused)
        await eventually(lambda: any(got.reply.id == refused.id for got in self.got))
        self.got = [got for got in self.got if got.reply.id != refused.id]

    async def send_all(self, *values: int) -> list[Frame]:
        """Send a request for each grey value; return the frames."""
        frames = [frame(value) for value in values]
        for body in frames:
            await self.send(body)
        return frames
