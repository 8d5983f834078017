"""Publishes pictures as a camera at a fixed rate and counts what becomes of each frame.

It runs in a pod of the cluster, in halimede's worker image: no client has to reach the broker from outside. Its last
line on standard output is the outcome in JSON; SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import HalimedeError
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame, Result

NAMESPACE = os.environ.get("NAMESPACE", "default")
SERVICE, CAMERA = "digits", "cam0"
#: frames that wait for the broker at a time: half a minute at 25 a second
WINDOW = 750
#: seconds for which a frame is published again while the broker is not reachable
PATIENCE_S = 30.0
#: seconds in which answers are waited for after the last frame: longer than any frame is published again
REST_S = 40.0


@dataclass
class Tally:
    """What became of the frames, by their ids. Times are seconds since the first frame."""

    began: float = 0.0
    first_at: float | None = None
    sent: set[str] = field(default_factory=set)
    #: never published, because the window was full: they are not among those sent
    dropped: int = 0
    #: told at once: the broker had nobody for it
    unheard: set[str] = field(default_factory=set)
    #: told at once: not accepted by the broker
    refused: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    answers: dict[str, str] = field(default_factory=dict)
    degraded: int = 0
    repeated: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    workers: dict[str, int] = field(default_factory=dict)

    def gaps(self) -> list[tuple[float, float]]:
        """Return the longest times without an answer, and when each began."""
        marks = [0.0, *self.times]
        return sorted(((b - a, a) for a, b in itertools.pairwise(marks)), reverse=True)[:5]

    def outcome(self) -> dict[str, object]:
        """Return all counts: each frame sent is in exactly one of the five after ``sent``."""
        left = self.sent - self.answers.keys()
        told = {"unheard": left & self.unheard, "refused": left & self.refused, "unanswered": left & self.accepted}
        return {
            "sent": len(self.sent),
            "answered": len(self.answers),
            **{name: len(frames) for name, frames in told.items()},
            # still on their way to the broker
            "open": len(left.difference(*told.values())),
            "dropped": self.dropped,
            "degraded": self.degraded,
            "repeated": self.repeated,
            "by": self.workers,
            "errors": self.errors,
            # by the machine's clock: a second process may have seen what came before
            "first_at": self.first_at,
            "gaps": [[round(gap, 2), round(at, 2)] for gap, at in self.gaps()],
            "seconds": round(time.monotonic() - self.began, 2) if self.began else 0.0,
        }


class Load:
    """One camera and one consumer."""

    def __init__(self, settings: MqttSettings, pictures: list[bytes], fps: float) -> None:
        self.tally = Tally()
        self._camera, self._consumer = MqttBus("load-camera", settings), MqttBus("load-consumer", settings)
        self._pictures, self._pause = pictures, 1.0 / fps
        self._open: set[asyncio.Task[None]] = set()

    async def run(self, end: asyncio.Event) -> None:
        """Publish until ``end``, then wait for the answers that are still to come."""
        async with self._consumer, self._camera:
            await self._consumer.wait_connected(120)
            await self._consumer.subscribe(topics.RESULT.filter(ns=NAMESPACE, service=SERVICE), self._on_result)
            await self._camera.wait_connected(120)
            self.tally.began = due = time.monotonic()
            for number in itertools.count():
                if end.is_set():
                    break
                self._send(number)
                due += self._pause
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            rest = time.monotonic() + REST_S
            while time.monotonic() < rest and (self._open or self.tally.accepted - self.tally.answers.keys()):
                await asyncio.sleep(0.1)

    def _send(self, number: int) -> None:
        if len(self._open) >= WINDOW:
            self.tally.dropped += 1
            return
        picture = self._pictures[number % len(self._pictures)]
        frame = Frame(id=new_id(), camera=CAMERA, sequence=number, encoding="png", data=memoryview(picture))
        self.tally.sent.add(frame.id.hex())
        task = asyncio.create_task(self._publish(frame))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _publish(self, frame: Frame) -> None:
        address, end = topics.CAMERA_FRAME.at(ns=NAMESPACE, camera=CAMERA), time.monotonic() + PATIENCE_S
        while True:
            try:
                heard = await self._camera.publish(address, pack(frame))
            except HalimedeError as error:
                name = type(error).__name__
                self.tally.errors[name] = self.tally.errors.get(name, 0) + 1
                if time.monotonic() > end:
                    self.tally.refused.add(frame.id.hex())
                    return
                await asyncio.sleep(0.2)
                continue
            (self.tally.accepted if heard else self.tally.unheard).add(frame.id.hex())
            return

    async def _on_result(self, delivery: Delivery[Result]) -> None:
        result = delivery.body
        # an earlier load's frame may be answered late
        if result.id not in self.tally.sent:
            return
        if result.id in self.tally.answers:
            self.tally.repeated += 1
            return
        self.tally.first_at = self.tally.first_at or time.time()
        self.tally.answers[result.id] = result.by
        self.tally.degraded += result.degraded
        self.tally.workers[result.by] = self.tally.workers.get(result.by, 0) + 1
        self.tally.times.append(time.monotonic() - self.tally.began)


async def main(folder: str, fps: float) -> None:
    """Run with all pictures of a folder."""
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    settings = MqttSettings.from_url(os.environ["HALIMEDE_BROKER"], credentials=os.environ["HALIMEDE_CREDENTIALS"])
    load = Load(settings, [path.read_bytes() for path in sorted(Path(folder).glob("*.png"))], fps)
    running = asyncio.create_task(load.run(end))
    while not running.done():
        await asyncio.wait({running}, timeout=1.0)
        if not running.done():
            print(json.dumps({"running": True, **load.tally.outcome()}), flush=True)
    await running
    print(json.dumps({"running": False, **load.tally.outcome()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
