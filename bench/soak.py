"""A long run in which everything dies: where does every frame go, and does any process grow?

    python -m bench.soak                      200,000 frames, five kills of the broker, two of GM, two of each worker
    python -m bench.soak --frames 5000        the same in short

A camera sends small frames as fast as the system answers them (a window of unanswered ones), so the rate is what the
system sustains. Kills are SIGKILL, spread evenly over the frames. What the edge workers' ledgers say is set beside what
the camera sent and what a consumer saw who drops repeated ids. Ends with 1 when a figure breaks a promise.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.errors import BusError
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame, Result
from tests.e2e.running import DIGITS, System, digits, running

WRITTEN = Path(__file__).parent.parent / "build" / "soak.json"
NODES = "edge0,edge1,cloud0"
VICTIMS = ("broker", "gm", "worker:digits-edge-edge0", "worker:digits-edge-edge1", "worker:digits-cloud-cloud0")
KILLS = {"broker": 5, "gm": 2, VICTIMS[2]: 2, VICTIMS[3]: 2, VICTIMS[4]: 2}
#: frames that may be unanswered at a time; a frame without an answer after this many seconds no longer counts as one
WINDOW, GIVEN_UP = 256, 5.0
#: seconds: until a killed process is back, after the last frame, a process is warm, between looks at memory
BACK, SETTLE, WARM, LOOK = 60.0, 20.0, 20.0, 1.0
FLAT = 0.10


@dataclass(slots=True)
class Memory:
    """One process from its first warm second to its last: resident bytes."""

    name: str
    pid: int
    first_seen: float
    start: int = 0
    end: int = 0
    looks: int = 0

    @property
    def growth(self) -> float:
        """Share by which it grew."""
        return self.end / self.start - 1 if self.start else 0.0


@dataclass(slots=True)
class Soak:
    """What happens in one run."""

    system: System
    frames: int
    sent: int = 0
    open: dict[str, float] = field(default_factory=dict)
    seen: dict[str, str | None] = field(default_factory=dict)
    repeated: int = 0
    contradicted: int = 0
    kills: list[tuple[float, str, float]] = field(default_factory=list)
    memory: dict[int, Memory] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    room: asyncio.Event = field(default_factory=asyncio.Event)

    async def on_result(self, delivery: Delivery[Result]) -> None:
        """A consumer that drops repeated ids."""
        id_ = delivery.body.id
        if id_ in self.seen:
            self.repeated += 1
            self.contradicted += self.seen[id_] != delivery.body.label
            return
        self.seen[id_] = delivery.body.label
        if self.open.pop(id_, None) is not None:
            self.room.set()

    async def camera(self, name: str, bus: MqttBus, pictures: Sequence[bytes], numbers: itertools.count[int]) -> None:
        """Send until all frames are sent; what the broker did not take, or had nobody for, is sent again."""
        address = topics.CAMERA_FRAME.at(ns="default", camera=name)
        while (number := next(numbers)) < self.frames:
            while len(self.open) >= WINDOW:
                self.room.clear()
                try:
                    async with asyncio.timeout(0.5):
                        await self.room.wait()
                except TimeoutError:
                    self.give_up()
            picture = pictures[number % len(pictures)]
            frame = Frame(id=new_id(), camera=name, sequence=number, encoding="png", data=memoryview(picture))
            payload = pack(frame)
            self.open[frame.id.hex()] = time.monotonic()
            while True:
                try:
                    if await bus.publish(address, payload):
                        break  # otherwise no edge worker was there
                except BusError:
                    pass
                await asyncio.sleep(0.1)
            self.sent += 1

    def give_up(self) -> None:
        """Let go of frames that died with the broker or the worker that had them in hand."""
        now = time.monotonic()
        for id_ in [id_ for id_, sent in self.open.items() if now - sent > GIVEN_UP]:
            del self.open[id_]

    async def kill(self) -> None:
        """Kill everything as often as it should be, evenly spread, the broker between the others."""
        others = [name for name, times in KILLS.items() for _ in range(times) if name != "broker"]
        others = others[::2] + others[1::2]
        plan = list(itertools.chain.from_iterable(itertools.zip_longest(others, ["broker"] * KILLS["broker"])))
        plan = [name for name in plan if name]
        for index, name in enumerate(plan, 1):
            due = self.frames * index // (len(plan) + 1)
            while self.sent < due:
                await asyncio.sleep(0.05)
            old = (await self.find(name)).pid
            psutil.Process(old).kill()
            killed = time.monotonic()
            await asyncio.sleep(0.05)
            while (await self.find(name)).pid == old:
                await asyncio.sleep(0.1)
            back = time.monotonic() - killed
            self.kills.append((killed - self.began, name, back))
            say(f"{self.sent:>7} sent, {len(self.seen):>7} seen: killed {name}, a new one after {back:.1f} s")

    async def find(self, name: str) -> psutil.Process:
        """Return a process of the system by name, waiting for it."""
        until = time.monotonic() + BACK
        while True:
            if found := (await asyncio.to_thread(self.system.processes)).get(name):
                return found
            if time.monotonic() > until:
                raise RuntimeError(f"{name} did not come back within {BACK:g} s")
            await asyncio.sleep(0.1)

    async def watch(self) -> None:
        """Look at every process's memory: its start is when it is warm, its end the last look."""
        while True:
            now = time.monotonic()
            for name, process in (await asyncio.to_thread(self.system.processes)).items():
                known = self.memory.setdefault(process.pid, Memory(name, process.pid, now))
                try:
                    resident = process.memory_info().rss
                except psutil.Error:
                    continue
                if now - known.first_seen >= WARM:
                    known.start = known.start or resident
                    known.end = resident
                    known.looks += 1
            await asyncio.sleep(LOOK)

    def report(self, seconds: float) -> dict[str, Any]:
        """Return all figures."""
        task = self.system.status.status if self.system.status else None
        metrics = {m.key: int(float(m.value)) for m in (task.metrics if task else []) if m.value.isdigit()}
        answered, lost = metrics.get("inferenceNumber", 0), metrics.get("lost", 0)
        return {
            "frames": self.frames,
            "seconds": round(seconds, 1),
            "perSecond": round(self.frames / seconds, 1),
            "sent": self.sent,
            "accepted": answered + lost,
            "answered": answered,
            "byCloud": metrics.get("cloudInferenceNumber", 0),
            "degraded": metrics.get("degraded", 0),
            "lostInKilledWorkers": lost,
            "neverAccepted": self.sent - answered - lost,
            "seenByConsumer": len(self.seen),
            "takenByTheBrokerAndNotSeen": answered - len(self.seen),
            "repeatedAndDropped": self.repeated,
            "duplicatesAtConsumer": max(len(self.seen) - self.sent, 0),
            "repeatedWithAnotherLabel": self.contradicted,
            "kills": [{"at": round(at, 1), "what": what, "newAfter": round(back, 2)} for at, what, back in self.kills],
            "memory": [asdict(m) | {"growth": round(m.growth, 4)} for m in self.memory.values() if m.looks > 1],
        }


async def soak(frames: int, home: Path) -> dict[str, Any]:
    """Run a system through all of it."""
    pictures = digits()
    async with running(home, NODES) as system:
        await system.apply(DIGITS)
        await system.follow("digits")
        await system.until("Running", lambda: system.phase == "Running")
        run = Soak(system, frames)
        await system.bus.unsubscribe(topics.RESULT.filter(ns="default", service="digits"))
        await system.bus.subscribe(topics.RESULT.filter(ns="default", service="digits"), run.on_result, queue=20_000)
        numbers = itertools.count()
        watching = asyncio.create_task(run.watch(), name="memory")
        saying = asyncio.create_task(progress(run), name="progress")
        async with asyncio.TaskGroup() as group:
            group.create_task(run.kill(), name="kills")
            for name in ("cam0", "cam1"):
                group.create_task(send(run, name, system, pictures, numbers), name=name)
        seconds = time.monotonic() - run.began
        say(f"all sent after {seconds:.0f} s; letting it settle")
        await settle(run)
        for task in (watching, saying):
            task.cancel()
        return run.report(seconds)


async def send(run: Soak, name: str, system: System, pictures: Sequence[bytes], numbers: itertools.count[int]) -> None:
    """Send as one camera with a connection of its own, several frames under way at a time."""
    async with MqttBus(f"soak-{name}-{secrets.token_hex(4)}", system.settings) as bus:
        await bus.wait_connected(30)
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(run.camera(name, bus, pictures, numbers))


async def settle(run: Soak) -> None:
    """Wait until nothing comes any more, and the status says what was counted last."""
    quiet, before = time.monotonic(), -1
    while time.monotonic() - quiet < SETTLE:
        if len(run.seen) != before:
            quiet, before = time.monotonic(), len(run.seen)
        await asyncio.sleep(0.5)


async def progress(run: Soak) -> None:
    """Say every ten seconds how far it is."""
    while True:
        await asyncio.sleep(10)
        rate = run.sent / (time.monotonic() - run.began)
        say(f"{run.sent:>7} sent, {len(run.seen):>7} seen, {rate:.0f}/s")


def broken(report: dict[str, Any], *, flat: bool) -> list[str]:
    """Return the promises that a report breaks."""
    problems = []
    if report["sent"] != report["frames"]:
        problems.append(f"{report['sent']} of {report['frames']} frames were sent")
    if report["duplicatesAtConsumer"]:
        problems.append("the consumer saw more results than there were frames")
    if report["neverAccepted"] < 0:
        problems.append("more frames were counted than were sent")
    if report["seenByConsumer"] > report["accepted"]:
        problems.append("results were seen of frames that nobody counted")
    for what, times in KILLS.items():
        if (done := sum(kill["what"] == what for kill in report["kills"])) != times:
            problems.append(f"{what} was killed {done} times, not {times}")
    if report["repeatedWithAnotherLabel"]:
        problems.append("one frame got two different answers")
    grown = [m for m in report["memory"] if m["growth"] > FLAT] if flat else []
    problems += [f"{m['name']} ({m['pid']}) grew by {m['growth']:.0%}" for m in grown]
    return problems


def table(report: dict[str, Any]) -> str:
    """Return the report for people."""
    rows = [f"{key:<30}{value:>12}" for key, value in report.items() if not isinstance(value, list)]
    rows += ["", f"{'process':<34}{'pid':>8}{'start MB':>10}{'end MB':>10}{'growth':>9}"]
    for m in report["memory"]:
        sizes = f"{m['start'] / 1e6:>10.1f}{m['end'] / 1e6:>10.1f}{m['growth']:>8.1%}"
        rows.append(f"{m['name']:<34}{m['pid']:>8}{sizes}")
    return "\n".join(rows)


def say(text: str) -> None:
    """Tell whoever waits."""
    print(text, flush=True)


def main() -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--frames", type=int, default=200_000, metavar="N", help="frames to send (default: %(default)s)"
    )
    frames = parser.parse_args().frames
    with tempfile.TemporaryDirectory(prefix="halimede-soak-") as folder:
        report = asyncio.run(soak(frames, Path(folder) / "home"))
    WRITTEN.parent.mkdir(exist_ok=True)
    problems = broken(report, flat=frames >= 100_000)
    WRITTEN.write_text(json.dumps(report | {"problems": problems}, indent=2) + "\n")
    say(table(report))
    for problem in problems:
        say(f"PROBLEM: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
