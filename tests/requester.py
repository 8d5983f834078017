"""A requester: it sends frames to the cloud workers of a service, as an edge worker does, and keeps the replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest

from halimede import topics
from halimede.messages import Frame, Reply
from services.broker import MosquittoProcess
from tests.inbox import Inbox
from tests.integration.workers import Site, site
from tests.simulated import eventually


@pytest.fixture
async def s(mosquitto: MosquittoProcess, unique: str, tmp_path: Path) -> AsyncIterator[Site]:
    """A service on the shared broker, without workers yet."""
    async with site(mosquitto, unique, tmp_path) as s:
        yield s


class Requester(Inbox[Reply]):
    """Sends requests in this name, with a response topic of its own, and keeps the replies."""

    def __init__(self, s: Site, name: str = "requester") -> None:
        super().__init__()
        self._bus, self._names, self._name = s.bus, {"ns": "default", "service": s.service}, name

    async def listen(self) -> Self:
        await self._bus.subscribe(topics.REPLY.filter(**self._names, worker=self._name), self)
        return self

    async def send(self, sample: Frame, worker: str = "") -> None:
        """Ask the worker of this name, or any."""
        to = topics.REQUEST_TO.at(**self._names, worker=worker) if worker else topics.REQUEST.at(**self._names)
        reply_to = topics.REPLY.at(**self._names, worker=self._name)
        await self._bus.publish(to, sample, reply_to=reply_to, correlation=sample.id)

    async def ask(self, sample: Frame, worker: str = "") -> Reply:
        """Ask, and return the first reply."""
        await self.send(sample, worker)
        await eventually(lambda: sample.id in self.read(lambda reply: reply.id), 30)
        return next(reply for reply in self.bodies if reply.id == sample.id)


def answered_once(s: Site) -> None:
    assert set(s.results) == set(s.sent)
    assert set(s.copies.values()) == {1}
