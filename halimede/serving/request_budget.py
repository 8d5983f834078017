"""The memory and the time that the requests of a server may take, over REST and gRPC together.

A request is charged for its body, and for the tensors made from it, until it is answered. The size of a gRPC message is
unknown before its arrival: so the number of arriving messages is limited as if each had the largest size. Large
requests are parsed and encoded in a thread, one after the other, because that holds the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Self, TypeVar

from halimede.serving.errors import OverloadedError, SlowRequestError
from halimede.serving.tensors import BYTES, Tensor

T = TypeVar("T")

#: bytes
MEGABYTE = 1024 * 1024
#: most bytes of open requests
MEMORY = 384 * MEGABYTE
#: most bytes of gRPC messages that are arriving
ARRIVING = 192 * MEGABYTE
#: seconds for the arrival of a body, and for the wait of a gRPC message until earlier ones have arrived
ARRIVAL_S, WAIT_S = 60.0, 5.0
#: most bytes that are converted on the event loop: the worst case, numbers of many digits, takes some 10 ms
SMALL = 64 * 1024
#: bytes of memory that each text in a tensor counts
TEXT = 128


class SharedTimeout:
    """Ends waits longer than ``seconds``, with one timer for all of them.

    It replaces ``asyncio.timeout``, whose timer for each wait would cost more than a wait. It is for many waits of
    equal length, of which few time out.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        #: waiting tasks, the longest-waiting first, with their deadlines in loop time
        self._waits: dict[asyncio.Task[object], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``wait``. Raises TimeoutError if it takes longer than ``seconds``."""
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
                raise  # another task has cancelled it
            raise TimeoutError from None
        finally:
            self._waits.pop(task, None)

    def _end_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the tasks whose deadline is over, and set the timer for the next one."""
        self._timer = None
        while self._waits:
            task, until = next(iter(self._waits.items()))
            if until > loop.time():
                self._timer = loop.call_at(until, self._end_late, loop)
                return
            del self._waits[task]
            task.cancel()


class RequestBudget:
    """The budget of a server whose requests have up to ``largest`` bytes. An idle server accepts one of that size.

    Attributes:
        memory: most bytes of all open requests.
        used: the bytes that they take now.
        converting: is held while a large request or answer is converted.

    """

    def __init__(self, largest: int) -> None:
        self.memory = max(MEMORY, 2 * largest)
        self.used = 0
        self._arriving = asyncio.Semaphore(max(1, ARRIVING // largest))
        self._waits, self._arrivals = SharedTimeout(WAIT_S), SharedTimeout(ARRIVAL_S)
        self.converting = asyncio.Lock()

    async def receive(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return the message of unknown size that ``read`` receives.

        Raises OverloadedError if others have not arrived within WAIT_S, SlowRequestError after ARRIVAL_S.
        """
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
    """The bytes of a budget that one request takes: a context manager, which returns them at its end."""

    __slots__ = ("_budget", "_charged")

    def __init__(self, budget: RequestBudget) -> None:
        self._budget = budget
        self._charged = 0

    def __enter__(self) -> Self:
        return self

    def release(self, *_: object) -> None:
        """Return all bytes to the budget."""
        self._budget.used -= self._charged
        self._charged = 0

    __exit__ = release

    def take(self, size: int) -> None:
        """Take ``size`` more bytes; below 0: return as many. Raises OverloadedError if the budget has fewer."""
        budget = self._budget
        if budget.used + size > budget.memory:
            raise OverloadedError("other requests take the memory that this one needs: try again later")
        budget.used += size
        self._charged += size

    def take_tensors(self, tensors: Iterable[Tensor], body: int = 0) -> int:
        """Take the bytes of tensors, less the ``body`` bytes that are charged already; return how many were taken.

        Raises OverloadedError.
        """
        size = -body
        for tensor in tensors:
            size += tensor.array.size * TEXT if tensor.datatype == BYTES else tensor.array.nbytes
        if size <= 0:
            return 0
        self.take(size)
        return size

    async def convert(self, size: int, needs: int, call: Callable[[], T]) -> T:
        """Return the result of ``call``, which parses or encodes ``size`` bytes and needs ``needs`` bytes meanwhile.

        A large size is converted in a thread. Raises the errors of ``call``, and OverloadedError.
        """
        if size <= SMALL:
            return call()
        async with self._budget.converting:
            self.take(needs)
            try:
                return await asyncio.to_thread(call)
            finally:
                self.take(-needs)
