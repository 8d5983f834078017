"""The ends of the edge worker of ``bench.easy``: a bus that takes results at once, and a cloud that nobody asks."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Self

from halimede.bus import Bus
from halimede.bus.message import SUCCESS, Packet, Receive, ReceiveNow
from halimede.messages import Frame, Reply
from halimede.topic import Filter
from halimede.tracing import FrameRecord


class Sink(Bus):
    """Takes results and answers at once: nothing of a network is timed."""

    def __init__(self) -> None:
        super().__init__("easy")
        self.sent = self.until = 0
        self.heard: asyncio.Future[float] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    @property
    def connected(self) -> bool:
        """Always."""
        return True

    @property
    def max_packet(self) -> int:
        """More than any result has."""
        return 1 << 24

    async def wait_connected(self, timeout_s: float) -> None:
        """It is there."""

    def post(self, packet: Packet) -> asyncio.Future[int]:  # noqa: ARG002 (the port's)
        """Take a result; whoever waits for it gets the time."""
        self.sent += 1
        if self.heard and self.sent >= self.until:
            self.heard.set_result(time.perf_counter())
            self.heard = None
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answer.set_result(SUCCESS)
        return answer

    def hear(self, count: int) -> asyncio.Future[float]:
        """Return when ``count`` more results have come."""
        self.until = self.sent + count
        self.heard = asyncio.get_running_loop().create_future()
        return self.heard

    async def send(self, packet: Packet, timeout_s: float = 0.0) -> int:  # noqa: ARG002 (the port's)
        """Take a result; whoever waits for it gets the time."""
        return await self.post(packet)

    async def listen(
        self,
        filter_: str,
        qos: int,
        receive: Receive | ReceiveNow,
        queue: int,
        *,
        later: bool = False,
        inherit: bool = False,
    ) -> None:
        """Nobody sends anything."""

    async def unlisten(self, filter_: str) -> None:
        """Nobody listens."""

    async def recall(self, filter_: Filter[Any]) -> None:
        """Nothing is retained."""

    def resolve_id_conflict(self) -> None:
        """Nobody else is here."""

    def renew(self) -> None:
        """It never ends."""


class Nobody:
    """The cloud, which no easy sample may reach."""

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Refuse: the sample was not easy."""
        raise RuntimeError(f"{frame.id.hex()} was sent up ({deadline_s} s, {trace}): it is no easy sample")

    def abandon(self) -> None:
        """Nothing is under way."""
