"""The memory and the time that requests may take, over REST and gRPC together.

A request is charged for its body, and for the tensors that the body becomes, until it is answered. Nobody knows the
size of a gRPC message before it is here: so few arrive at a time that each may be as large as is allowed. What is
large is parsed and written in a thread, one after the other, since that holds the interpreter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
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


class RequestBudget:
    """The budget of a server whose requests have up to ``largest`` bytes. One such request always fits."""

    def __init__(self, largest: int) -> None:
        self.memory = max(MEMORY, 2 * largest)
        self.held = 0
        self._arriving = asyncio.Semaphore(max(1, ARRIVING // largest))
        #: held by the one large request or answer that is converted
        self.converting = asyncio.Lock()

    async def receive(self, read: Callable[[], Awaitable[T]]) -> T:
        """Receive a message of unknown size. Raises OverloadedError and SlowRequestError."""
        try:
            async with asyncio.timeout(WAIT_S) if self._arriving.locked() else nullcontext():
                await self._arriving.acquire()
        except TimeoutError:
            raise OverloadedError("too many messages arrive at a time: try again later") from None
        try:
            async with asyncio.timeout(ARRIVAL_S):
                return await read()
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

    def __exit__(self, *_: object) -> None:
        """Give everything back."""
        self.release()

    def release(self) -> None:
        """Give everything back."""
        self._budget.held -= self._taken
        self._taken = 0

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
        size = max(0, size)
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
