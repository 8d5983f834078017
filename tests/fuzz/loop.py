"""A small coverage-guided fuzzer: what reaches new code is kept, and changed further.

Coverage is the steps from line to line in the modules under test, as in AFL's edges, seen with ``sys.settrace``.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

#: bytes of the longest input, unless a target has another limit, and changes that are made to one at a time
LONGEST, STACKED = 512, 6
#: bytes with which lengths, types and limits begin
TELLING = bytes.fromhex("00010203047f80818fff26081f0b21271320303240909fb0d0e0")
Edge = tuple[int, int, int]


class FailedError(Exception):
    """An input that a target did not stand. ``data`` is the input, as short as it could be made."""

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__(f"{name}: {data.hex()}")
        self.data = data


@dataclass
class Fuzzer:
    """One target, with the inputs that it began with, and those that have reached something new."""

    name: str
    target: Callable[[bytes], None]
    modules: Iterable[str]
    chance: random.Random
    longest: int = LONGEST
    runs: int = 0
    kept: list[bytes] = field(default_factory=list)
    edges: set[Edge] = field(default_factory=set)

    def seed(self, inputs: Iterable[bytes]) -> None:
        """Try inputs that are known. Raises FailedError."""
        for data in inputs:
            self._try(data)
            if data not in self.kept:
                self.kept.append(data)

    def run(self, seconds: float, most: float = math.inf) -> None:
        """Go on for so long, or for so many inputs. Raises FailedError."""
        until, last = time.monotonic() + seconds, self.runs + most
        while self.runs < last and time.monotonic() < until:
            self._try(self._changed(self.chance.choice(self.kept or [b""])))

    def _try(self, data: bytes) -> None:
        self.runs += 1
        seen: set[Edge] = set()
        try:
            self._traced(data, seen)
        except Exception as error:
            raise FailedError(self.name, self._shortened(data, type(error))) from error
        if not seen <= self.edges:
            self.edges |= seen
            self.kept.append(data)

    def _traced(self, data: bytes, seen: set[Edge]) -> None:
        files = set(self.modules)

        def enter(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            code, last = id(frame.f_code), 0

            def step(at: FrameType, event: str, _: Any) -> Any:
                nonlocal last
                if event == "line":
                    seen.add((code, last, at.f_lineno))
                    last = at.f_lineno
                return step

            return step

        before = sys.gettrace()
        sys.settrace(enter)
        try:
            self.target(data)
        finally:
            sys.settrace(before)

    def _changed(self, data: bytes) -> bytes:
        chance, out = self.chance, bytearray(data)
        for _ in range(chance.randint(1, STACKED)):
            at, to = chance.randint(0, len(out)), chance.randint(0, len(out))
            match chance.randrange(6):
                case 0 if at < len(out):
                    out[at] = chance.randrange(256)
                case 1 if at < len(out):
                    out[at] = chance.choice(TELLING)
                case 2:
                    del out[min(at, to) : max(at, to)]
                case 3:
                    out[at:at] = chance.choice(self.kept or [b""])[: chance.randint(0, 32)]
                case 4:
                    out[at:at] = out[min(at, to) : max(at, to)]
                case _:
                    out[at:at] = bytes(chance.choices(TELLING, k=chance.randint(1, 4)))
        return bytes(out[: self.longest])

    def _shortened(self, data: bytes, kind: type[Exception]) -> bytes:
        """Leave out what can be left out while the target fails in the same way."""
        step = len(data)
        while step:
            for at in range(0, len(data), step):
                shorter = data[:at] + data[at + step :]
                try:
                    self.target(shorter)
                except kind:
                    data = shorter
                    break
                except Exception:  # noqa: BLE001 - another failure is another finding
                    continue
            else:
                step //= 2
        return data


def modules(*loaded: Any) -> list[str]:
    """Return the files of modules, as frames name them."""
    return [str(Path(module.__file__)) for module in loaded]
