"""A cloud worker that is written by hand: it advertises its load, keeps what it is asked, and answers when told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from halimede import topics
from halimede.bus import Delivery
from halimede.messages import Frame, Load, Prediction, Reply
from halimede.topic import Filter
from tests.blackbox.models import Estimator, small
from tests.blackbox.world import World
from tests.waiting import eventually


class ScriptedCloud:
    """Keeps requests, in the order of their arrival, in ``requests``."""

    def __init__(self, world: World, name: str = "scripted", tier: str = "") -> None:
        self.requests: list[Delivery[Frame]] = []
        self._world = world
        self._name = name
        self._tier = tier

    async def start(self, credits_: int = 16) -> None:
        """Subscribe and advertise."""
        address = self._world.address(topics.REQUEST_TO, self._name)
        await self._world.client.subscribe(Filter(topics.REQUEST_TO, address.text), self._on_request)
        load = Load(credits=credits_, service_ms=1.0, tier=self._tier)
        await self._world.client.publish(self._world.address(topics.LOAD, self._name), load)

    async def _on_request(self, delivery: Delivery[Frame]) -> None:
        self.requests.append(delivery)

    async def asked(self, count: int) -> None:
        """Wait until so many requests are there."""
        await eventually(lambda: len(self.requests) >= count)
        assert len(self.requests) == count

    async def answer(self, number: int, label: str = "scripted") -> None:
        """Answer a request."""
        request = self.requests[number]
        prediction = Prediction(label=label, score=1.0)
        reply = Reply(id=request.body.id, worker=self._name, prediction=prediction, tier=self._tier)
        await self._world.client.reply(request, topics.REPLY, reply)

    async def refuse(self, number: int, error: str) -> None:
        """Answer a request with an error."""
        request = self.requests[number]
        await self._world.client.reply(request, topics.REPLY, Reply(id=request.body.id, worker=self._name, error=error))


@contextlib.asynccontextmanager
async def scripted(
    world: World, model: Estimator | None = None, *, credits_: int = 16, **changes: str
) -> AsyncIterator[ScriptedCloud]:
    """Run an edge worker ``e0``, whose small model is ``model``, and yield the cloud that it knows."""
    cloud = ScriptedCloud(world)
    await cloud.start(credits_)
    async with world.worker("edge", "e0", model or small(), **changes):
        await world.knows("e0", "scripted")
        yield cloud
