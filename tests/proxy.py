"""A TCP proxy that breaks connections on demand: between a client and a real broker, on loopback alone.

It sees a stream of bytes, not packets. What loss does to a stream is a stall: TCP sends a lost segment again after a
timeout and holds back all that came behind it. So ``lose`` stalls, and never drops a byte. What a half-open connection
swallowed is gone, so it can never be a good one again: ``heal`` resets it, as a router does that has forgotten it.

``share`` makes all connections one line's: what one of them sends, the others wait behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from tests.listener import Listener

CHUNK = 64 * 1024
#: bytes in one TCP segment: what is lost at a time
SEGMENT = 1460
#: bytes under way in one direction of one connection; its sender has to wait while there are more
MOST_UNDER_WAY = 256 * 1024
#: seconds: the least time after which Linux sends a segment again
RTO_S = 0.2


@dataclass(frozen=True, slots=True)
class Road:
    """How bytes travel now. Delays are seconds one way, ``loss`` is a share of segments, ``rate`` bytes a second.

    The rate is that of all connections together; 0: any. ``window``: bytes that one direction of one connection has
    under way at most. ``once``: what is sent again arrives.
    """

    up_s: float = 0.0
    down_s: float = 0.0
    loss: float = 0.0
    rto_s: float = RTO_S
    once: bool = False
    rate: float = 0.0
    window: int = MOST_UNDER_WAY

    @property
    def free(self) -> bool:
        return not (self.up_s or self.down_s or self.loss or self.rate)


class Proxy(Listener):
    """Forwards ``port`` to ``target``. Every fault can be switched at any time; all end with ``heal``.

    Attributes:
        accepted: connections so far.
        forwarded: bytes that arrived at either end.
        under_way: the most bytes that one direction of a connection has ever held.

    """

    def __init__(self, target: int, host: str = "127.0.0.1", *, seed: int = 0) -> None:
        super().__init__(host)
        self.accepted = self.forwarded = self.under_way = 0
        self.road = Road()
        self.chance = random.Random(seed)
        self.changed = asyncio.Event()
        #: when a shared line is free again, up and down
        self.line = {True: 0.0, False: 0.0}
        self._target = target
        self._open = True
        self._half_open = False
        self._connections: set[_Connection] = set()

    # --- faults -------------------------------------------------------------------------------------------------

    def delay(self, up_s: float, down_s: float | None = None) -> None:
        """Let bytes travel that long to the target, and back (the same if not given)."""
        self._travel(replace(self.road, up_s=up_s, down_s=up_s if down_s is None else down_s))

    def lose(self, share: float, rto_s: float = RTO_S, *, once: bool = False) -> None:
        """Lose that share of segments: each stalls its direction for one timeout, twice that if it is lost again."""
        self._travel(replace(self.road, loss=share, rto_s=rto_s, once=once))

    def share(self, bytes_per_s: float, window: int) -> None:
        """Let no more than that through in each direction of all connections together, in the order of its coming.

        ``window``: bytes that each connection has on the line at most, in each direction, as TCP's does.
        """
        self._travel(replace(self.road, rate=bytes_per_s, window=window))

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        self._open = False
        for connection in list(self._connections):
            connection.abort()

    def freeze(self) -> None:
        """Let nothing through, and let nobody notice: half-open connections, those that are yet to come as well."""
        self._half_open = True
        self.strand()

    def strand(self) -> None:
        """Make the connections of now half-open until the end, or ``heal``; those that are yet to come are good."""
        for connection in self._connections:
            connection.stranded = True

    def heal(self) -> None:
        """Work again. Half-open connections are reset."""
        self._open, self._half_open = True, False
        self._travel(Road())
        for connection in list(self._connections):
            if connection.stranded:
                connection.abort()

    # --- inside -------------------------------------------------------------------------------------------------

    def _travel(self, road: Road) -> None:
        self.road = road
        self.line = {True: 0.0, False: 0.0}
        self.changed.set()
        self.changed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        self.accepted += 1
        connection = _Connection(self, reader, writer, stranded=self._half_open)
        self._connections.add(connection)
        try:
            await connection.run(self._host, self._target)
        finally:
            self._connections.discard(connection)
            connection.abort()


class _Connection:
    """One client's connection and the one to the target that belongs to it."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, stranded: bool
    ) -> None:
        self.stranded, self._proxy = stranded, proxy
        self._near = reader, writer
        self._writers = [writer]
        self._over = asyncio.Event()

    async def run(self, host: str, target: int) -> None:
        """Forward until both ends are done, or until ``abort``."""
        reader, writer = self._near
        try:
            far_reader, far_writer = await asyncio.open_connection(host, target)
        except OSError:
            return  # the target is away: the client sees its connection close
        self._writers.append(far_writer)
        up = _Lane(self._proxy, self, reader, far_writer, is_up=True)
        down = _Lane(self._proxy, self, far_reader, writer, is_up=False)
        work = [asyncio.create_task(lane) for lane in (up.take(), up.give(), down.take(), down.give())]
        over = asyncio.create_task(self._over.wait())
        lanes = asyncio.gather(*work)
        try:
            with contextlib.suppress(OSError):
                await asyncio.wait(list[asyncio.Future[Any]]([lanes, over]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (over, *work):
                task.cancel()
            await asyncio.gather(over, *work, lanes, return_exceptions=True)

    async def over(self) -> None:
        await self._over.wait()

    def abort(self) -> None:
        """Reset both ends."""
        self._over.set()
        for writer in self._writers:
            writer.transport.abort()


class _Lane:
    """One direction of a connection: a bounded queue of chunks, each with the time at which it is to arrive."""

    def __init__(
        self,
        proxy: Proxy,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_up: bool,
    ) -> None:
        self._proxy, self._connection = proxy, connection
        self._reader, self._writer, self._is_up = reader, writer, is_up
        self._chunks: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._last = 0.0
        self._moved = asyncio.Event()

    async def take(self) -> None:
        """Read what is sent, note when it is to arrive, and wait while too much is under way."""
        while True:
            data = await self._reader.read(SEGMENT if self._proxy.road.loss or self._proxy.road.rate else CHUNK)
            if self._connection.stranded:
                if data:
                    continue
                await self._connection.over()
                return
            self._chunks.append((self._due(len(data)), data))
            self._size += len(data)
            self._proxy.under_way = max(self._proxy.under_way, self._size)
            self._moved.set()
            if not data:
                return
            while self._size >= self._proxy.road.window:
                self._moved.clear()
                await self._moved.wait()

    async def give(self) -> None:
        while True:
            while not self._chunks:
                self._moved.clear()
                await self._moved.wait()
            due, data = self._chunks[0]
            if not self._proxy.road.free and not await self._passed(due):
                continue  # the road has changed: look again
            if self._connection.stranded:
                await self._connection.over()
                return
            if not data:
                # what was said last, such as why the broker disconnects, has arrived; now the end may
                self._writer.write_eof()
                return
            self._writer.write(data)
            await self._writer.drain()
            self._chunks.popleft()
            self._size -= len(data)
            self._proxy.forwarded += len(data)
            self._moved.set()

    def _due(self, size: int) -> float:
        road, now = self._proxy.road, asyncio.get_running_loop().time()
        delay = road.up_s if self._is_up else road.down_s
        stall, wait = 0.0, road.rto_s
        while size and road.loss and self._proxy.chance.random() < road.loss:
            stall += wait
            wait *= 2
            if road.once:
                break
        if road.rate:
            # what is lost while another segment is waited for is sent again beside it, as selective
            # acknowledgements let TCP do it
            line = self._proxy.line[self._is_up] = max(now, self._proxy.line[self._is_up]) + size / road.rate
            due = max(self._last, line + delay + stall)
        else:
            due = max(self._last, now + delay) + stall
        self._last = due
        return due

    async def _passed(self, due: float) -> bool:
        try:
            async with asyncio.timeout_at(due):
                await self._proxy.changed.wait()
        except TimeoutError:
            return True
        return False
