"""What becomes of a live system after a fault, and when: its frames, its answers, what `halimede status` shows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from halimede import topics
from halimede.errors import DisconnectedError
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame
from tests.e2e.running import DIGITS, ROOT, System

SERVICE = "digits"
#: cameras of the service, and frames a second of each
CAMERAS, FPS = ("cam0", "cam1"), 10


class StatusRun(NamedTuple):
    """One `halimede status`: when it began and ended, its exit code, what it printed."""

    began: float
    ended: float
    code: int
    text: str


class Timeline:
    """What happened when, in seconds since the fault."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.began = time.monotonic()
        self.sent_at: dict[str, float] = {}
        self.answered_at: dict[str, float] = {}
        self.reasons: list[tuple[float, str]] = []
        self.runs: list[StatusRun] = []

    def fault(self) -> None:
        """The fault is now: times count from here."""
        self.began = time.monotonic()
        self.reasons, self.runs = self.reasons[-1:], []

    def now(self) -> float:
        """Return the seconds since the fault."""
        return time.monotonic() - self.began

    async def watch(self) -> None:
        """Note when frames are sent and answered, and what the service's status says."""
        while True:
            now = time.monotonic()
            for id_ in self._system.sent.keys() - self.sent_at.keys():
                self.sent_at[id_] = now
            for id_ in self._system.results.keys() - self.answered_at.keys():
                self.answered_at[id_] = now
            status = self._system.status
            current = (
                next((c for c in reversed(status.status.conditions) if c.status == "True"), None) if status else None
            )
            shown = f"{current.type}/{current.reason}: {current.message}" if current else ""
            if shown and (not self.reasons or self.reasons[-1][1] != shown):
                self.reasons.append((now - self.began, shown))
            await asyncio.sleep(0.02)

    async def ask(self) -> None:
        """Run ``halimede status`` as an operator does, again and again."""
        command = [str(Path(sys.executable).with_name("halimede")), "status"]
        environment = {
            **os.environ, "HALIMEDE_HOME": str(self._system.home), "PYTHONPATH": str(ROOT), "COLUMNS": "1000",
        }  # fmt: skip
        while True:
            began = self.now()
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, env=environment, check=False
            )
            self.runs.append(StatusRun(began, self.now(), done.returncode, done.stdout + done.stderr))
            await asyncio.sleep(1)

    def first(self, word: str) -> float:
        """When the service's status had a word first."""
        return next((when for when, shown in self.reasons if word in shown), float("inf"))

    def failed(self, *words: str) -> float:
        """When the first `halimede status` after the fault ended non-zero and named all of these words."""
        return next(
            (run.ended for run in self.runs if run.ended > 0 and run.code and all(word in run.text for word in words)),
            float("inf"),
        )

    def named(self, word: str) -> bool:
        """Whether each `halimede status` that ran while the service's status had a word failed and named it."""
        shown = [(when, word in text) for when, text in [*self.reasons, (self.now(), "")]]
        times = [(began, ended) for (began, has), (ended, _) in itertools.pairwise(shown) if has]
        runs = [run for run in self.runs if any(began <= run.began and run.ended <= ended for began, ended in times)]
        return bool(times) and all(run.code and word in run.text for run in runs)

    def well(self) -> float:
        """When the first `halimede status` began since which all ended with 0; infinite where the last did not."""
        well = float("inf")
        for run in reversed(self.runs):
            if run.code or run.began < 0:
                break
            well = run.began
        return well

    def is_well_since(self, when: float) -> bool:
        """Whether a `halimede status` that began after ``when`` ended with 0, and none after it failed."""
        return self.well() < float("inf") and self.runs[-1].began > when

    @property
    def slowest_s(self) -> float:
        return max(self.answered_at.get(id_, float("inf")) - sent for id_, sent in self.sent_at.items())

    def unnamed(self) -> float:
        """Frames that the broker accepted and that nothing answered, and no counter has."""
        return len(self._system.sent) - len(self._system.results) - self._system.metric("lost")

    def row(self, fault: str, **times_s: float) -> str:
        """One row of the table, and under it what the service's status and `halimede status` showed."""
        system, lost = self._system, self._system.metric("lost")
        times = "".join(f", {name.replace('_', ' ')} {seconds:.1f} s" for name, seconds in times_s.items())
        head = (
            f"{fault}: sent {len(system.sent)}, answered {len(system.results)}, lost {lost:g}, "
            f"unnamed {self.unnamed():g}, copies {sum(system.copies.values()) - len(system.copies)}, "
            f"slowest answer {self.slowest_s:.1f} s{times}, "
            f"status failed from {self.failed():.1f} s, well from {self.well():.1f} s"
        )
        lines = [head, *(f"{when:7.1f} s  {shown}" for when, shown in self.reasons)]
        before = ""
        for run in self.runs:
            todo = run.text.partition("To do\n")[2] or run.text
            shown = "; ".join(line.strip() for line in todo.splitlines()[::2]) if run.code else "No problems found."
            if shown != before:
                lines.append(f"{run.ended:7.1f} s  status {run.code}: {shown}")
            before = shown
        return "\n".join(lines)


async def feed(system: System, pictures: list[bytes], camera: str, stop: asyncio.Event, fps: float = FPS) -> None:
    """Publish frames until ``stop``, as a patient camera does: each again until the broker has a subscriber for it."""
    sequence, due = 0, time.monotonic()
    while not stop.is_set():
        picture = pictures[sequence % len(pictures)]
        frame = Frame(id=new_id(), camera=camera, sequence=sequence, encoding="png", data=memoryview(picture))
        accepted = False
        while not accepted:
            try:
                accepted = await system.bus.publish(topics.CAMERA_FRAME.at(ns="default", camera=camera), pack(frame))
            except DisconnectedError:
                await asyncio.sleep(0.2)
        system.sent[frame.id.hex()] = sequence
        sequence += 1
        due = max(due + 1 / fps, time.monotonic() - 1)  # after an outage it catches up with a second
        await asyncio.sleep(due - time.monotonic())


@contextlib.asynccontextmanager
async def under_load(system: System, pictures: list[bytes], fps: float = FPS) -> AsyncIterator[Timeline]:
    """Apply the service, send it frames of two cameras, and watch; the block ends with all frames answered.

    ``fps``: frames a second of each camera.
    """
    await system.follow(SERVICE)
    await system.apply(DIGITS)
    await system.until("the service", lambda: system.phase == "Running")
    timeline, stop = Timeline(system), asyncio.Event()
    watching = [asyncio.create_task(timeline.watch()), asyncio.create_task(timeline.ask())]
    cameras = [asyncio.create_task(feed(system, pictures, camera, stop, fps)) for camera in CAMERAS]
    try:
        await asyncio.sleep(3)
        yield timeline
        stop.set()
        await asyncio.gather(*cameras)
        with contextlib.suppress(AssertionError):  # what is missing is counted, and named or not
            await system.until("all answers", lambda: system.sent.keys() <= system.results.keys(), 30)
        await asyncio.sleep(0.1)
    finally:
        for task in (*watching, *cameras):
            task.cancel()
        await asyncio.gather(*watching, *cameras, return_exceptions=True)
