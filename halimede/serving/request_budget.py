"""The memory and the time that requests may take, over REST and gRPC together.

A request is charged for its body, and for the tensors that the body becomes, until it is answered. Nobody knows the
size of a gRPC message before it is here: so few arrive at a time that each may be as large as is allowed. What is
large is parsed and written in a thread, one after the other, since that holds the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Self, TypeVar

from halimede.serving.errors import OverloadedError, SlowRequestError
from halimede.serving.tensors import BYTES, Tensor

T = TypeVar("T")

MEGABYTE = 1024 * 1024
#: bytes that requests under way may take
MEMORY = 384 * MEGABYTE
#: bytes that gRPC messages may have which are on their way here
ARRIVING = 192 * MEGABYTE
#: seconds in which a body has to arrive, and in which a gRPC message may wait for those that arrive
ARRIVAL_S, WAIT_S = 60.0, 5.0
#: bytes that are converted on the event loop: the worst of them, numbers of many digits, take some 10 ms
SMALL = 64 * 1024
#: bytes of a text in memory, besides its own
TEXT = 128


class SharedTimeout:
    """Ends waits that take longer than ``seconds``, with one timer for all: one for each would cost more than a wait.

    It is ``asyncio.timeout`` for waits of one length, of which there are many and few that time out.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        #: tasks that wait, the first of them longest, and the loop times until which they may
        self._waits: dict[asyncio.Task[object], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Return what ``wait`` does. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None  # noqa: S101  # for the type checker
        self._waits[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._end_late, loop)
        try:
            return await wait()
        except asyncio.CancelledError:
            if task in self._waits or task.uncancel():
                raise  # somebody else has cancelled it
            raise TimeoutError from None
        finally:
            self._waits.pop(task, None)

    def _end_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the tasks that have waited too long, and come again for the next one."""
        self._timer = None
        while self._waits:
            task, until = next(iter(self._waits.items()))
            if until > loop.time():
                self._timer = loop.call_at(until, self._end_late, loop)
                return
            del self._waits[task]
            task.cancel()


class RequestBudget:
    """The budget of a server whose requests have up to ``largest`` bytes. One such request always fits."""

    def __init__(self, largest: int) -> None:
        self.memory = max(MEMORY, 2 * largest)
        self.held = 0
        self._arriving = asyncio.Semaphore(max(1, ARRIVING // largest))
        self._waits, self._arrivals = SharedTimeout(WAIT_S), SharedTimeout(ARRIVAL_S)
        #: held by the one large request or answer that is converted
        self.converting = asyncio.Lock()

    async def receive(self, read: Callable[[], Awaitable[T]]) -> T:
        """Receive a message of unknown size. Raises OverloadedError and SlowRequestError."""
        try:
            if self._arriving.locked():
                await self._waits.run(self._arriving.acquire)
            else:
                await self._arriving.acquire()
        except TimeoutError:
            raise OverloadedError("too many messages arrive at a time: try again later") from None
        try:
            return await self._arrivals.run(read)
        except TimeoutError:
            raise SlowRequestError(f"the message has not arrived within {ARRIVAL_S:g} s") from None
        finally:
            self._arriving.release()


class Charge:
    """What one request has taken of a budget, which has it back at the end of ``with``."""

    __slots__ = ("_budget", "_taken")

    def __init__(self, budget: RequestBudget) -> None:
        self._budget = budget
        self._taken = 0

    def __enter__(self) -> Self:
        return self

    def release(self, *_: object) -> None:
        """Give everything back."""
        self._budget.held -= self._taken
        self._taken = 0

    __exit__ = release

    def take(self, size: int) -> None:
        """Take so many bytes. Raises OverloadedError."""
        budget = self._budget
        if budget.held + size > budget.memory:
            raise OverloadedError("other requests take the memory that this one needs: try again later")
        budget.held += size
        self._taken += size

    def take_tensors(self, tensors: Iterable[Tensor], body: int = 0) -> int:
        """Take the memory that tensors need besides a body that they may lie in; return it. Raises OverloadedError."""
        size = -body
        for tensor in tensors:
            size += tensor.array.size * TEXT if tensor.datatype == BYTES else tensor.array.nbytes
        if size <= 0:
            return 0
        self.take(size)
        return size

    async def convert(self, size: int, needs: int, call: Callable[[], T]) -> T:
        """Parse or write ``size`` bytes, which takes ``needs`` bytes more meanwhile. Raises what ``call`` raises."""
        if size <= SMALL:
            return call()
        async with self._budget.converting:
            self.take(needs)
            try:
                return await asyncio.to_thread(call)
            finally:
                self.take(-needs)
