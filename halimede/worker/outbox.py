"""Final results on their way out: bounded, several at a time, each sent again until the broker has taken it.

A result that is sent again may arrive twice, under the same id. Results are not kept in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from halimede.bus import Bus
from halimede.errors import DisconnectedError, RefusedError, TooLargeError
from halimede.messages import Prediction, Result
from halimede.topic import Address

log = structlog.get_logger()

#: results that wait, and results under way
CAPACITY, SENDERS = 256, 32
#: seconds
FIRST_PAUSE, LAST_PAUSE = 0.1, 5.0
TOO_LARGE = "result-too-large"

Taken = Callable[[], None]
Properties = Mapping[str, str] | None


class Outbox:
    """Results of one service. ``run`` sends until cancelled; ``drain`` before that."""

    def __init__(self, bus: Bus, address: Address[Result], *, capacity: int = CAPACITY, senders: int = SENDERS) -> None:
        self._bus = bus
        self._address = address
        self._senders = senders
        self._waiting: asyncio.Queue[tuple[Result, Taken, Properties]] = asyncio.Queue(capacity)
        self._back = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Results that the broker has not been given yet."""
        return self._waiting.qsize()

    async def run(self) -> None:
        """Send what is put in, until cancelled."""
        self._bus.on_connect(self._connected)
        async with asyncio.TaskGroup() as group:
            for number in range(self._senders):
                group.create_task(self._send_all(), name=f"sender {number}")

    async def put(self, result: Result, taken: Taken, properties: Properties = None) -> None:
        """Take a result, once there is room; ``taken`` is called when the broker has acknowledged it.

        ``properties``: user properties to send with it.
        """
        await self._waiting.put((result, taken, properties))

    async def drain(self, timeout_s: float) -> bool:
        """Wait until the broker has taken everything; return whether it did within ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._waiting.join()
        except TimeoutError:
            return False
        return True

    async def _send_all(self) -> None:
        while True:
            result, taken, properties = await self._waiting.get()
            await self._deliver(result, properties)
            taken()
            self._waiting.task_done()

    async def _deliver(self, result: Result, properties: Properties) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._bus.publish(self._address, result, properties=properties)
            except DisconnectedError:
                log.debug("result waits for the broker")
            except RefusedError as error:
                # an operator can mend that; until then the worker holds its sources back
                log.warning("result refused by the broker", error=str(error))
            except (TooLargeError, TypeError, ValueError, OverflowError) as error:
                log.warning("result cannot be sent whole", frame=result.id, error=str(error))
                result = msgspec.structs.replace(result, prediction=Prediction(), edge=None, reason=TOO_LARGE)
            else:
                return
            await self._pause(pause)
            pause = min(pause * 2, LAST_PAUSE)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until the broker is back."""
        try:
            async with asyncio.timeout(seconds):
                await self._back.wait()
        except TimeoutError:
            return

    async def _connected(self) -> None:
        self._back.set()
        self._back = asyncio.Event()
