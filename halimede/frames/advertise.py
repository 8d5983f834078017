"""Tells edge workers what a cloud worker can take now: on change, but not with every sample, and as a heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from halimede import topics
from halimede.bus import Announcement, Bus, Packet
from halimede.errors import BusError
from halimede.messages import Load

log = structlog.get_logger()

#: seconds between two advertisements, at least and at most
LEAST_S, HEARTBEAT_S = 0.1, 2.0


def load_will(namespace: str, service: str, worker: str) -> Announcement:
    """Return the announcement of a cloud worker: its advertised load vanishes when its connection does."""
    address = topics.LOAD.at(ns=namespace, service=service, worker=worker)
    return Announcement(will=Packet(topic=address.text, payload=b"", qos=1, retain=True))


class Advertiser:
    """Publishes one worker's load, always the latest. ``load`` gives it; ``touch`` says that it may have changed."""

    def __init__(self, bus: Bus, *, namespace: str, service: str, worker: str, load: Callable[[], Load]) -> None:
        self._bus = bus
        self._address = topics.LOAD.at(ns=namespace, service=service, worker=worker)
        self._load = load
        self._changed = asyncio.Event()
        self._said: Load | None = None
        self._withdrawn = False

    def touch(self) -> None:
        """Look again, soon."""
        self._changed.set()

    async def run(self) -> None:
        """Advertise until withdrawn or cancelled."""
        self._bus.on_connect(self._reconnected)
        while not self._withdrawn:
            self._changed.clear()
            await self._say()
            await asyncio.sleep(LEAST_S)
            try:
                async with asyncio.timeout(HEARTBEAT_S - LEAST_S):
                    while not self._withdrawn and self._load() == self._said:
                        await self._changed.wait()
                        self._changed.clear()
            except TimeoutError:
                continue

    async def withdraw(self) -> None:
        """Say no more, and take back what was said. What cannot be sent, the will does."""
        self._withdrawn = True
        self._changed.set()
        try:
            await self._bus.publish(self._address, Load(credits=0, leaving=True))
            await self._bus.clear(self._address)
        except BusError as error:
            log.info("load not cleared", error=str(error))

    async def _say(self) -> None:
        if not self._bus.connected or self._withdrawn:
            return
        load = self._load()
        try:
            await self._bus.publish(self._address, load)
        except BusError as error:
            log.info("load not published", error=str(error))
        else:
            self._said = load

    async def _reconnected(self) -> None:
        """The will has cleared it, and a restarted broker never had it."""
        self._said = None
        self._changed.set()
