"""Tells edge workers what a cloud worker can take now: on change, but not with every sample, and as a heartbeat."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from halimede import topics
from halimede.bus import Announcement, Bus, Packet
from halimede.errors import BusError
from halimede.messages import Load
from halimede.offload.channel import Channel
from halimede.topic import Address

M = TypeVar("M")
log = structlog.get_logger()

#: seconds between two advertisements, at least and at most
LEAST_S, HEARTBEAT_S = 0.1, 2.0
#: seconds that a change has to last: a single sample takes a credit and gives it back, which is no news
LASTS_S = 0.01
#: share by which the time of a sample has to change
NEWS = 0.1


def load_will(namespace: str, service: str, worker: str) -> Announcement:
    """Return the announcement of a cloud worker: its advertised load vanishes when its connection does."""
    address = topics.LOAD.at(ns=namespace, service=service, worker=worker)
    return Announcement(will=Packet(topic=address.text, payload=b"", qos=1, retain=True))


class LoadAdvertisement(Protocol):
    """Says what a worker can take."""

    def touch(self) -> None:
        """Look again, soon."""

    async def run(self) -> None:
        """Advertise until withdrawn or cancelled."""

    async def withdraw(self) -> None:
        """Say no more, and take back what was said."""


class RetainedPublisher(Generic[M]):
    """Publishes what a worker says of itself, always the latest; ``touch`` says that it may have changed.

    ``say`` gives it, None where there is nothing to say yet, and ``farewell`` the last before it is taken back. What is
    the ``same`` as before waits for the heartbeat.
    """

    def __init__(  # what it says, in order
        self,
        bus: Bus,
        address: Address[M],
        say: Callable[[], M | None],
        farewell: Callable[[], M],
        same: Callable[[M, M], bool] = operator.eq,
    ) -> None:
        self._bus = bus
        self._address = address
        self._now = say
        self._farewell = farewell
        self._same = same
        self._changed = asyncio.Event()
        self._said: M | None = None
        self._withdrawn = False

    def touch(self) -> None:
        """Look again, soon."""
        self._changed.set()

    async def run(self) -> None:
        """Advertise until withdrawn or cancelled."""
        self._bus.on_connect(self.again)
        while not self._withdrawn:
            self._changed.clear()
            await self.say()
            await asyncio.sleep(LEAST_S)
            try:
                async with asyncio.timeout(HEARTBEAT_S - LEAST_S):
                    while not self._withdrawn and not self._is_news():
                        await self._changed.wait()
                        if self._said is not None:
                            await asyncio.sleep(LASTS_S)
                        self._changed.clear()
            except TimeoutError:
                continue

    def _is_news(self) -> bool:
        now, said = self._now(), self._said
        return now is not None and (said is None or not self._same(now, said))

    async def withdraw(self) -> None:
        """Say no more, and take back what was said. What cannot be sent, the will does."""
        self._withdrawn = True
        self._changed.set()
        try:
            await self._bus.publish(self._address, self._farewell())
            await self._bus.clear(self._address)
        except BusError as error:
            log.info("not taken back", topic=self._address.text, error=str(error))

    async def say(self) -> None:
        """Say it now, unless the broker is away."""
        if not self._bus.connected or self._withdrawn:
            return
        now = self._now()
        if now is None:
            return
        try:
            await self._bus.publish(self._address, now)
        except BusError as error:
            log.info("not said", topic=self._address.text, error=str(error))
        else:
            self._said = now

    async def again(self) -> None:
        """Say it again, soon: a will has cleared it, or a restarted broker never had it."""
        self._said = None
        self._changed.set()


class LoadAdvertiser(RetainedPublisher[Load]):
    """Publishes one worker's load on its channel. ``load`` gives it."""

    def __init__(self, bus: Bus, channel: Channel, load: Callable[[], Load]) -> None:
        address = topics.LOAD.at(**channel.names, worker=channel.worker)
        super().__init__(bus, address, load, lambda: Load(credits=0, leaving=True), _is_same)


def _is_same(now: Load, said: Load) -> bool:
    """Whether requesters would choose alike: the time of a sample is a mean, which is never twice the same."""
    apart = abs(now.service_ms - said.service_ms)
    return (now.credits, now.queued) == (said.credits, said.queued) and apart <= NEWS * said.service_ms
