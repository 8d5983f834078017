"""Tells edge workers what a cloud worker can take now: on change, but not with every sample, and as a heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from halimede import topics
from halimede.bus import Announcement, Bus, Packet
from halimede.errors import BusError
from halimede.frames.channel import Channel
from halimede.messages import Load
from halimede.topic import Address

M = TypeVar("M")
log = structlog.get_logger()

#: seconds between two advertisements, at least and at most
LEAST_S, HEARTBEAT_S = 0.1, 2.0
#: seconds that a change has to last: a single sample takes a credit and gives it back, which is no news
LASTS_S = 0.02


def load_will(namespace: str, service: str, worker: str) -> Announcement:
    """Return the announcement of a cloud worker: its advertised load vanishes when its connection does."""
    address = topics.LOAD.at(ns=namespace, service=service, worker=worker)
    return Announcement(will=Packet(topic=address.text, payload=b"", qos=1, retain=True))


class Advertises(Protocol):
    """Says what a worker can take."""

    def touch(self) -> None:
        """Look again, soon."""

    async def run(self) -> None:
        """Advertise until withdrawn or cancelled."""

    async def withdraw(self) -> None:
        """Say no more, and take back what was said."""


class Herald(Generic[M]):
    """Publishes what a worker says of itself, always the latest; ``touch`` says that it may have changed.

    ``say`` gives it, None where there is nothing to say yet, and ``farewell`` the last before it is taken back.
    """

    def __init__(self, bus: Bus, address: Address[M], say: Callable[[], M | None], farewell: Callable[[], M]) -> None:
        self._bus = bus
        self._address = address
        self._now = say
        self._farewell = farewell
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
                    while not self._withdrawn and self._now() == self._said:
                        await self._changed.wait()
                        if self._said is not None:
                            await asyncio.sleep(LASTS_S)
                        self._changed.clear()
            except TimeoutError:
                continue

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


class Advertiser(Herald[Load]):
    """Publishes one worker's load on its channel. ``load`` gives it."""

    def __init__(self, bus: Bus, channel: Channel, load: Callable[[], Load]) -> None:
        address = topics.LOAD.at(**channel.names, worker=channel.worker)
        super().__init__(bus, address, load, lambda: Load(credits=0, leaving=True))
