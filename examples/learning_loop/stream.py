"""The cameras of the demo, and what comes back: each frame with its truth, its answer, and both times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.digits.data import load, to_png
from examples.learning_loop.train import drifted, noisy
from halimede import topics
from halimede.bus import Bus, Delivery
from halimede.errors import BusError
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame, Result, StatusDocument

NAMESPACE, SERVICE, TRAINING = "default", "loop", "loop"
CAMERAS = tuple(f"loop{number}" for number in range(24))
#: frames a second of all cameras together
RATE = 60.0
#: states in which a round is over, and in the history
ENDS = frozenset({"RolledOut", "Withdrawn"})


@dataclass(slots=True)
class SentFrame:
    """One frame. ``at_s``, ``answered_s``: since the first frame; 0: not answered yet."""

    truth: str
    at_s: float
    answered_s: float = 0.0
    label: str = ""
    by: str = ""
    hard: bool = False
    degraded: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened: the drift, or a step of the loop with its candidate."""

    at_s: float
    text: str
    state: str = ""
    version: str = ""


class Stream:
    """Sends frames at a fixed rate until it is stopped, and keeps every answer and every state of the loop."""

    def __init__(self) -> None:
        self.frames: dict[str, SentFrame] = {}
        self.marks: list[Mark] = []
        self.loop: Mapping[str, Any] = {}
        self.service: StatusDocument | None = None
        self.drift = False
        #: the version of the edge's newest answer
        self.version = ""
        #: when the state of the training changed last, in seconds since the first frame
        self.changed_s = 0.0
        self.unknown = 0
        self._digits = load()
        self._chance = np.random.default_rng(1)
        self._begin = time.monotonic()
        self._changed = asyncio.Event()

    @property
    def now(self) -> float:
        """Seconds since the first frame."""
        return time.monotonic() - self._begin

    @property
    def waiting(self) -> int:
        """Frames without an answer."""
        return sum(not frame.by for frame in self.frames.values())

    async def listen(self, bus: Bus) -> None:
        """Subscribe to results and states."""
        names = {"ns": NAMESPACE, "service": SERVICE}
        await bus.subscribe(topics.RESULT.filter(**names), self._result)
        for plural, name, receive in (
            ("jointinferenceservices", SERVICE, self._of_service),
            ("trainingmodels", TRAINING, self._of_loop),
        ):
            await bus.subscribe(topics.STATUS.filter(ns=NAMESPACE, plural=plural, name=name), receive)

    async def send(self, bus: Bus) -> None:
        """Send frames until cancelled. A frame that the broker did not take is sent again."""
        self._begin = time.monotonic()
        number = 0
        while True:
            await asyncio.sleep(self._begin + number / RATE - time.monotonic())
            index = int(self._chance.integers(len(self._digits.test_x)))
            row = noisy(self._digits.test_x[index], self._chance)
            picture = to_png(drifted(row) if self.drift else row)
            camera = CAMERAS[number % len(CAMERAS)]
            frame = Frame(id=new_id(), camera=camera, sequence=number, encoding="png", data=memoryview(picture))
            self.frames[frame.id.hex()] = SentFrame(str(self._digits.test_y[index]), self.now)
            address = topics.CAMERA_FRAME.at(ns=NAMESPACE, camera=camera)
            try:
                await bus.publish(address, pack(frame))
            except BusError:
                await bus.publish(address, pack(frame))
            number += 1

    def mark(self, text: str, state: str = "", version: str = "") -> None:
        """Note what happens now."""
        self.marks.append(Mark(self.now, text, state, version))
        self._changed.set()

    async def until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition; return whether it came."""
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            self._changed.clear()
            try:
                async with asyncio.timeout(min(0.5, end - time.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return done()

    async def _result(self, delivery: Delivery[Result]) -> None:
        body = delivery.body
        frame = self.frames.get(body.id)
        if frame is None:
            self.unknown += 1
        elif not frame.by:  # a consumer drops repeated ids
            frame.answered_s, frame.label, frame.by = self.now, body.label or "", body.by
            frame.hard, frame.degraded, frame.model = body.hard, body.degraded, body.model
            if body.by == "edge":
                self.version = body.model

    async def _of_service(self, delivery: Delivery[StatusDocument]) -> None:
        self.service = delivery.body
        self._changed.set()

    async def _of_loop(self, delivery: Delivery[StatusDocument]) -> None:
        before, self.loop = self.loop, delivery.body.status.loop or {}
        if self.loop != before:
            self.changed_s = self.now
        if (state := self.loop.get("state", "")) and state != before.get("state"):
            last = self.loop.get("history") or [{}] if state in ENDS else [self.loop]
            self.mark(f"{state} {self.loop.get('reason', '')}".strip(), state, str(last[-1].get("version") or ""))
        self._changed.set()
