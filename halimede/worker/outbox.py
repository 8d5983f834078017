"""Final results on their way out: bounded, several at a time, each sent again until the broker has taken it.

A result that is sent again may arrive twice, under the same id. Results are not kept in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from halimede.bus import Bus
from halimede.bus.reasons import FAILURE
from halimede.errors import DisconnectedError, RefusedError, TooLargeError
from halimede.messages import Prediction, Result
from halimede.topic import Address

log = structlog.get_logger()

#: results that wait, and results under way
CAPACITY, SENDERS = 256, 32
#: results that may wait while frames are answered as they come: more, and others have to get their turn first
AT_HAND = 8
#: seconds
FIRST_PAUSE, LAST_PAUSE = 0.1, 5.0
#: a connection that is alive may be slow, and brings all the same what was given to it: what is given to it again only
#: makes it slower. One that is not alive is found by its keepalive long before
PATIENCE = 60.0
TOO_LARGE = "result-too-large"

Taken = Callable[[], None]
Properties = Mapping[str, str] | None
#: a result that has left: the loop's time by which the broker has to have acknowledged it, and what ``put`` was given
Posted = tuple[float, Result, Taken, Properties]


class Outbox:
    """Results of one service. ``run`` sends until cancelled; ``drain`` before that."""

    def __init__(self, bus: Bus, address: Address[Result], *, capacity: int = CAPACITY, senders: int = SENDERS) -> None:
        self._bus = bus
        self._address = address
        self._senders = senders
        self._waiting: asyncio.Queue[tuple[Result, Taken, Properties]] = asyncio.Queue(capacity)
        #: results that have left without a sender, in order, and those of them that a task sends again
        self._posted: dict[asyncio.Future[int], Posted] = {}
        self._again: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._group: asyncio.TaskGroup | None = None
        self._back = asyncio.Event()
        self._settled = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Results that the broker has not been given yet."""
        return self._waiting.qsize()

    @property
    def at_hand(self) -> bool:
        """Whether ``put`` would not wait, and not many results that the event loop has to send are before this one."""
        return self._waiting.qsize() < AT_HAND and not self._waiting.full()

    async def run(self) -> None:
        """Send what is put in, until cancelled."""
        self._bus.on_connect(self._connected)
        async with asyncio.TaskGroup() as group:
            for number in range(self._senders):
                group.create_task(self._send_all(), name=f"sender {number}")
            self._group = group
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None  # it takes no more tasks
                self._posted.clear()
                if self._sweeping:
                    self._sweeping.cancel()

    async def put(self, result: Result, taken: Taken, properties: Properties = None) -> None:
        """Take a result, once there is room; ``taken`` is called when the broker has acknowledged it.

        ``properties``: user properties to send with it.
        """
        if not self._post(result, taken, properties):
            await self._waiting.put((result, taken, properties))

    async def drain(self, timeout_s: float) -> bool:
        """Wait until the broker has taken everything; return whether it did within ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._waiting.join()
                while self._posted or self._again:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            return False
        return True

    def _post(self, result: Result, taken: Taken, properties: Properties) -> bool:
        """Send a result now, where nothing waits before it and the bus can take it; return whether it has left."""
        if self._group is None or self._waiting.qsize() or len(self._posted) + len(self._again) >= self._senders:
            return False
        try:
            answer = self._bus.publish_now(self._address, result, properties=properties)
        except (DisconnectedError, TooLargeError, TypeError, ValueError, OverflowError, RecursionError):
            return False  # the long way says what is wrong, and mends it
        if answer is None:
            return False
        loop = asyncio.get_running_loop()
        self._posted[answer] = (loop.time() + PATIENCE, result, taken, properties)
        answer.add_done_callback(self._answered)
        if self._sweeping is None:
            self._sweeping = loop.call_later(PATIENCE, self._sweep)
        return True

    def _answered(self, answer: asyncio.Future[int]) -> None:
        """The broker has taken a result, or it has to be sent again."""
        posted = self._posted.pop(answer, None)
        if posted is None:
            return  # it was given up before
        if answer.cancelled() or answer.exception() or answer.result() >= FAILURE:
            self._repeat(posted)
        else:
            posted[2]()
            self._settled.set()

    def _sweep(self) -> None:
        """Send again what was not acknowledged in time. One timer for all: they are in order."""
        self._sweeping, loop = None, asyncio.get_running_loop()
        for answer, posted in list(self._posted.items()):
            if loop.time() < posted[0]:
                self._sweeping = loop.call_at(posted[0], self._sweep)
                return
            del self._posted[answer]
            self._repeat(posted)

    def _repeat(self, posted: Posted) -> None:
        if self._group is None:
            return  # not taken, and nobody sends any more: it counts as lost
        task = self._group.create_task(self._send_again(posted), name="result again")
        self._again.add(task)
        task.add_done_callback(self._sent_again)

    async def _send_again(self, posted: Posted) -> None:
        _, result, taken, properties = posted
        await self._pause(FIRST_PAUSE)
        await self._deliver(result, properties)
        taken()

    def _sent_again(self, task: asyncio.Task[None]) -> None:
        self._again.discard(task)
        self._settled.set()

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
                await self._bus.publish(self._address, result, properties=properties, timeout_s=PATIENCE)
            except DisconnectedError:
                log.debug("result waits for the broker")
            except RefusedError as error:
                # an operator can mend that; until then the worker holds its sources back
                log.warning("result refused by the broker", error=str(error))
            except (TooLargeError, TypeError, ValueError, OverflowError, RecursionError) as error:
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
