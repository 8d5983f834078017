"""Request and response over topics (MQTT v5 response topic and correlation data)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.errors import NoSubscriberError
from halimede.topic import Address, Filter

Q = TypeVar("Q")
R = TypeVar("R")


def new_ticket() -> bytes:
    """Return correlation data that nobody can guess."""
    return secrets.token_bytes(16)


class RpcClient(Generic[R]):
    """Many questions at a time over one reply topic. Answers that nobody waits for are counted and dropped.

    Attributes:
        late: answers with correlation data that nobody (any more) waits for: late, replayed or forged.

    """

    def __init__(self, bus: Bus, reply: Address[R]) -> None:
        self.bus = bus
        self.reply = reply
        self.late = 0
        self._waiting: dict[bytes, asyncio.Future[Delivery[R]]] = {}

    async def start(self) -> None:
        """Subscribe to the reply topic: before the first question."""
        await self.bus.subscribe(Filter(self.reply.topic, self.reply.text), self._answered)

    async def ask(
        self,
        address: Address[Q],
        body: Q,
        *,
        timeout_s: float,
        qos: int | None = None,
        properties: Mapping[str, str] | None = None,
        ticket: bytes = b"",
    ) -> Delivery[R]:
        """Send a question and wait for its answer.

        ``ticket``, from ``new_ticket``, is for a question that is asked again: whoever answers can tell that it is the
        same, and so one that is still under way is not done twice.

        Raises NoSubscriberError at once if the broker says that nobody listens, TimeoutError at the deadline, and
        what ``Bus.publish`` raises.
        """
        correlation = ticket or new_ticket()
        answer: asyncio.Future[Delivery[R]] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = answer
        try:
            async with asyncio.timeout(timeout_s):
                heard = await self.bus.publish(
                    address,
                    body,
                    qos=qos,
                    reply_to=self.reply,
                    correlation=correlation,
                    expiry_s=max(1, int(timeout_s) + 1),
                    properties=properties,
                    timeout_s=timeout_s,
                )
                if not heard:
                    raise NoSubscriberError(f"nobody listens on {address}")
                return await answer
        finally:
            del self._waiting[correlation]

    async def _answered(self, delivery: Delivery[Any]) -> None:
        answer = self._waiting.get(delivery.packet.correlation)
        if answer is None or answer.done():
            self.late += 1
        else:
            answer.set_result(delivery)
