"""Detects a second bridge of the same name: both would publish the same topics.

Every bridge that connects publishes a claim with its life, and asks for those of others. A bridge that runs answers
such a question with its own claim, and the one that asks ends, with the address of the other one. Of two that ask or
two that run, the one that started later ends. Claims are not retained, so a bridge that was killed keeps no name.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from halimede.bridges.homeassistant.discovery import DiscoveryTopics
from halimede.bus.message import Packet, check_reason
from halimede.bus.port import Bus
from halimede.errors import BusError, HalimedeError

#: seconds in which another bridge answers
ANSWER_S = 2.0
#: most claims that wait
MAX_QUEUED = 64

#: a text of bounded length
Short = Annotated[str, Meta(max_length=256)]


class Claim(Struct, rename="camel", kw_only=True, frozen=True):
    """One bridge: its life (a smaller text began earlier), and where it runs.

    ``host``, ``pid``: its machine's name and its process id; ``started``: the time of its start, ISO 8601 in UTC.
    """

    life: Short
    host: Short = ""
    pid: int = 0
    started: Short = ""
    #: others shall answer
    asks: bool = False


class SecondBridgeError(HalimedeError):
    """Another bridge with the same name is running."""


class NameClaim:
    """The claim of this bridge: ``ask`` once, then ``watch`` until cancelled. Both raise SecondBridgeError."""

    def __init__(self, bus: Bus, topics: DiscoveryTopics) -> None:
        self._bus = bus
        self._topics = topics
        self._own = Claim(
            life=f"{time.time_ns():020d}-{secrets.token_hex(4)}",
            host=socket.gethostname()[:256],
            pid=os.getpid(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        #: the bridge that has the name
        self._owner: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()
        self._asking = True

    async def ask(self) -> None:
        """Ask for bridges of this name, and wait for an answer. Raises SecondBridgeError, RefusedError."""
        await self._bus.listen(self._topics.claim, 1, self._receive, MAX_QUEUED, drop_oldest=True)
        self._bus.on_connect(self._publish)
        await self._publish(asks=True)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.watch()
        except TimeoutError:
            self._asking = False

    async def watch(self) -> None:
        """Wait for a bridge that has the name. Raises SecondBridgeError when there is one."""
        owner = await asyncio.shield(self._owner)
        where = f"host {owner.host}, process {owner.pid}, since {owner.started}"
        fix = "end it, or give this one another --name"
        raise SecondBridgeError(f"another bridge publishes {self._topics.base} ({where}). What to do: {fix}")

    async def _publish(self, *, asks: bool = True) -> None:
        """Publish the claim; after each reconnect too, since another bridge may have started meanwhile."""
        claim = msgspec.structs.replace(self._own, asks=asks)
        # some brokers refuse no subscription, so this is the first message by which a user without rights is noticed
        check_reason(self._topics.claim, await self._bus.send(Packet(self._topics.claim, msgspec.json.encode(claim))))

    async def _receive(self, packet: Packet) -> None:
        """Give way to a bridge that runs, or, if both ask or both run, to the one with the smaller life."""
        try:
            claim = msgspec.json.decode(packet.payload, type=Claim)
        except msgspec.MsgspecError:
            return
        if claim.life == self._own.life or self._owner.done():
            return
        is_second = claim.life < self._own.life if claim.asks == self._asking else self._asking
        if is_second:
            self._owner.set_result(claim)
        else:
            await self._answer()

    async def _answer(self) -> None:
        """Publish the claim as an answer, if there is a connection; a bridge that still asks has no name to defend."""
        try:
            await self._publish(asks=self._asking)
        except BusError:
            return
