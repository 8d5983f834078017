"""What both processes of every way have in common: samples, the check of an answer, and a closed loop of requests.

A server prints ``ready <port>`` and serves until its standard input ends, which it does with its parent, however that
goes. A client reads one JSON line a round, keeps so many requests in flight for so long, and writes one JSON line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.peers import SHAPES
from bench.peers.profiled import Profiles

Pixels = NDArray[np.uint8]
#: different samples of each size, sent in turn
KINDS = 4
#: an echo's answer: how many bytes arrived, and the first and last eight of them
ECHO = struct.Struct("!I8s8s")
#: seconds: that answers may stay away (16 of 921,600 bytes as JSON take one of these minutes on a busy machine); for a
#: server to end by itself
LONGEST, END = 300.0, 3.0


@cache
def sample(size: int, number: int) -> Pixels:
    """Return one of the samples of a size: height x width x channels of noise, read-only, darker or lighter."""
    kind = number % KINDS
    if kind != number:
        return sample(size, kind)
    pixels = np.random.default_rng(kind).integers(0, 64 * (kind + 1), SHAPES[size], np.uint8)
    pixels.flags.writeable = False
    return pixels


@cache
def packed(size: int, number: int) -> bytes:
    """Return the bytes of a sample."""
    kind = number % KINDS
    return sample(size, kind).tobytes() if kind == number else packed(size, kind)


@cache
def mean(size: int, number: int) -> float:
    """Return the mean of a sample, 1 for white."""
    kind = number % KINDS
    return float(sample(size, kind).mean() / 255) if kind == number else mean(size, kind)


@cache
def echo(size: int, number: int) -> bytes:
    """Return the right answer of an echo."""
    kind = number % KINDS
    return answer(packed(size, kind)) if kind == number else echo(size, kind)


def answer(data: bytes | bytearray | memoryview) -> bytes:
    """Return an echo's answer to what arrived."""
    return ECHO.pack(len(data), bytes(data[:8]), bytes(data[-8:]))


def check_echo(size: int, number: int, given: bytes) -> None:
    """End when the answer is another sample's, or cut short."""
    if given != echo(size, number):
        raise SystemExit(f"wrong answer to a sample of {size} bytes: {given!r}")


def check_mean(size: int, number: int, given: float) -> None:
    """End when a model's answer is wrong."""
    if abs(given - mean(size, number)) > 1e-3:
        raise SystemExit(f"wrong mean of a sample of {size} bytes: {given}, not {mean(size, number)}")


@dataclass(slots=True)
class Round:
    """One round: what is sent, how many at a time, for how long; at least so many answers, however long that takes."""

    size: int
    flight: int
    seconds: float
    least: int = 1
    profile: bool = False


@dataclass(slots=True)
class Taken:
    """What a round found: seconds of each answer, of the round, and of its processor."""

    seconds: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def line(self) -> str:
        """Return it as the parent reads it."""
        count = len(self.seconds)
        rtt, rate = statistics.median(self.seconds) * 1000, count / self.wall_s
        return json.dumps({"rtt_ms": rtt, "rate": rate, "count": count, "client": self.cpu_s / count * 1e6})


class Pump:
    """A closed loop for echoes with callbacks: ``begin`` sends the first requests, ``answered`` the next ones.

    ``send`` gets the bytes of a sample; answers come in the order of the requests.
    """

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self.running = False
        self._send = send
        self._sent: deque[float] = deque()

    def begin(self, wanted: Round) -> None:
        """Send as many as shall be in flight."""
        self.taken = Taken()
        self._size, self._least, self._started = wanted.size, wanted.least, 0
        self.running = True
        self._cpu, self._began = time.process_time(), time.perf_counter()
        self._until = self._began + wanted.seconds
        for _ in range(wanted.flight):
            self._one()

    def answered(self, given: bytes) -> None:
        """Check an answer; send the next request, unless time is over."""
        now = time.perf_counter()
        check_echo(self._size, len(self.taken.seconds), given)
        self.taken.seconds.append(now - self._sent.popleft())
        if now < self._until or self._started < self._least:
            self._one()
        elif not self._sent:
            self.taken.wall_s, self.taken.cpu_s = now - self._began, time.process_time() - self._cpu
            self.running = False

    def overdue(self) -> None:
        """End when answers stay away."""
        if time.perf_counter() > self._until + LONGEST:
            raise SystemExit(f"{len(self._sent)} answers did not come")

    def _one(self) -> None:
        number, self._started = self._started, self._started + 1
        self._sent.append(time.perf_counter())
        self._send(packed(self._size, number))


#: one request: the size and the number of the sample; ends the process when the answer is wrong
Ask = Callable[[int, int], Awaitable[None]]


async def closed_loop(ask: Ask, wanted: Round) -> Taken:
    """Keep requests in flight, each followed by the next."""
    taken, started = Taken(), 0
    cpu, began = time.process_time(), time.perf_counter()
    until = began + wanted.seconds

    async def client() -> None:
        nonlocal started
        while (sent := time.perf_counter()) < until or started < wanted.least:
            number, started = started, started + 1
            await ask(wanted.size, number)
            taken.seconds.append(time.perf_counter() - sent)

    async with asyncio.timeout(wanted.seconds + LONGEST):
        await asyncio.gather(*(client() for _ in range(wanted.flight)))
    taken.wall_s, taken.cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return taken


async def rounds(ask: Ask) -> None:
    """Be a client with an event loop: run rounds until there are no more; connections live on between them."""
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        wanted = Round(**json.loads(line))
        with _profiled(wanted):
            taken = await closed_loop(ask, wanted)
        print(taken.line(), flush=True)


def pumped(pump: Pump, turn: Callable[[], Any]) -> None:
    """Be a client with callbacks: as ``rounds``; ``turn`` lets it read and write once."""
    print("ready", flush=True)
    while line := sys.stdin.readline():
        wanted = Round(**json.loads(line))
        with _profiled(wanted):
            pump.begin(wanted)
            while pump.running:
                turn()
                pump.overdue()
        print(pump.taken.line(), flush=True)


@contextlib.contextmanager
def _profiled(wanted: Round) -> Iterator[None]:
    if not wanted.profile:
        yield
        return
    profiles = Profiles()
    profiles.begin()
    try:
        yield
    finally:
        profiles.end()
        profiles.show(sys.stderr)


def end_with_input(number: signal.Signals = signal.SIGINT) -> None:
    """Get the signal when standard input ends, and end for good a little later."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), number)
        time.sleep(END)
        os._exit(0)

    threading.Thread(target=watch, name="input", daemon=True).start()


def listening(port: int = 0) -> None:
    """Tell the parent that the server can be asked, and where."""
    print(f"ready {port}", flush=True)


async def serving(port: int = 0) -> None:
    """Be a server with an event loop, until standard input ends."""
    listening(port)
    await asyncio.to_thread(sys.stdin.buffer.read)
