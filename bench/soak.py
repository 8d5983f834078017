"""200,000 frames while processes are killed: where each frame goes, and whether a process grows.

    python -m bench.soak                      200,000 frames, five kills of the broker, two of GM, two of each worker
    python -m bench.soak --frames 5000        the same in short
    python -m bench.soak --frames 1000000 --large 20000

A camera sends small frames, and large ones among them (600 KB as they are), as fast as the system answers them (a
window of unanswered ones: see ``soak_traffic.py``), so the rate is what the system sustains. Kills are SIGKILL, spread
evenly over the frames. What the edge workers' ledgers say is set beside what the camera sent and what a consumer saw
who drops repeated ids. Ends with 1 when a figure breaks a promise.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench import results
from bench.results import ROOT
from bench.soak_traffic import WINDOW, Traffic
from halimede import topics
from halimede.pipeline.intake import EdgeLimits
from tests.e2e.running import DIGITS, System, digits, running

WRITTEN = ROOT / "build" / "soak.json"
NODES = "edge0,edge1,cloud0"
VICTIMS = ("broker", "gm", "worker:digits-edge-edge0", "worker:digits-edge-edge1", "worker:digits-cloud-cloud0")
KILLS = {"broker": 5, "gm": 2, VICTIMS[2]: 2, VICTIMS[3]: 2, VICTIMS[4]: 2}
#: seconds: until a killed process is back, after the last frame, a process is warm, between looks at memory
BACK, SETTLE, WARM, LOOK = 60.0, 20.0, 100.0, 1.0
#: seconds that counts may be behind the results at most, after the last frame
COUNTED = 60.0
#: looks of which the first ones' most and the last ones' middle are compared: a frame in hand is no growth
FIRST, LAST = 20, 15
FLAT, LEAST_MB = 0.10, 8.0
#: an edge worker remembers the ids of its last frames, which are 11 to 18 MB: it is warm once they are all there. Of
#: all frames it gets about half
EDGE, EDGE_WARM = "worker:digits-edge", int(2.3 * EdgeLimits().remembered)


@dataclass(slots=True)
class Memory:
    """One process from its first warm second to its last: resident bytes."""

    name: str
    pid: int
    first_seen: float
    first_sent: int
    start: int = 0
    looks: int = 0
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=LAST))

    def warm(self, now: float, sent: int) -> bool:
        """Whether it holds by now what it always will; ``sent``: frames that were sent in all."""
        frames = EDGE_WARM if self.name.startswith(EDGE) else 0
        return now - self.first_seen >= WARM and sent - self.first_sent >= frames

    def look(self, resident: int) -> None:
        """Take note of what it has now."""
        self.looks += 1
        if self.looks <= FIRST:
            self.start = max(self.start, resident)
        self.recent.append(resident)

    def told(self) -> dict[str, Any]:
        """Return its line of the report; ``growth`` is the share by which it grew."""
        end = int(median(self.recent))
        growth = round(end / self.start - 1, 4)
        return {
            "name": self.name, "pid": self.pid, "start": self.start, "end": end, "looks": self.looks, "growth": growth,
        }  # fmt: skip


@dataclass(slots=True)
class Soak:
    """What happens in one run."""

    system: System
    traffic: Traffic
    kills: list[tuple[float, str, float]] = field(default_factory=list)
    memory: dict[int, Memory] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    async def kill(self) -> None:
        """Kill everything as often as it should be, evenly spread, the broker between the others."""
        others = [name for name, times in KILLS.items() for _ in range(times) if name != "broker"]
        others = others[::2] + others[1::2]
        plan = list(itertools.chain.from_iterable(itertools.zip_longest(others, ["broker"] * KILLS["broker"])))
        plan = [name for name in plan if name]
        for index, name in enumerate(plan, 1):
            due = self.traffic.total * index // (len(plan) + 1)
            while self.traffic.sent < due:
                await asyncio.sleep(0.05)
            old = (await self.find(name)).pid
            psutil.Process(old).kill()
            killed = time.monotonic()
            await asyncio.sleep(0.05)
            while (await self.find(name)).pid == old:
                await asyncio.sleep(0.1)
            back = time.monotonic() - killed
            self.kills.append((killed - self.began, name, back))
            say(
                f"{self.traffic.sent:>7} sent, {self.traffic.seen:>7} seen: killed {name}, a new one after {back:.1f} s"
            )

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
            found = await asyncio.to_thread(self.system.processes)
            for name, process in {**found, "this one": psutil.Process(os.getpid())}.items():
                known = self.memory.setdefault(process.pid, Memory(name, process.pid, now, self.traffic.sent))
                try:
                    resident = process.memory_info().rss
                except psutil.Error:
                    continue
                if known.warm(now, self.traffic.sent):
                    known.look(resident)
            await asyncio.sleep(LOOK)

    def metrics(self) -> dict[str, int]:
        """Return the counts of the service's last status."""
        task = self.system.status.status if self.system.status else None
        return {m.key: int(float(m.value)) for m in (task.metrics if task else []) if m.value.isdigit()}

    def report(self, seconds: float) -> dict[str, Any]:
        """Return all figures."""
        metrics, traffic = self.metrics(), self.traffic
        answered, lost = metrics.get("inferenceNumber", 0), metrics.get("lost", 0)
        return {
            "frames": traffic.small,
            "large": traffic.large,
            "seconds": round(seconds, 1),
            "perSecond": round(traffic.total / seconds, 1),
            "sent": traffic.sent,
            "accepted": answered + lost,
            "answered": answered,
            "byCloud": metrics.get("cloudInferenceNumber", 0),
            "degraded": metrics.get("degraded", 0),
            "lostInKilledWorkers": lost,
            # net figures: a frame that was accepted twice hides one that never was
            "neverAccepted": max(traffic.sent - answered - lost, 0),
            "acceptedTwice": max(answered + lost - traffic.sent, 0),
            "seenByConsumer": traffic.seen,
            "largeSeenByConsumer": traffic.seen_large,
            "takenByTheBrokerAndNotSeen": answered - traffic.seen,
            "repeatedAndDropped": traffic.repeated,
            "duplicatesAtConsumer": max(traffic.seen - traffic.sent, 0),
            "repeatedByAnotherModel": traffic.revised,
            "repeatedWithAnotherLabel": traffic.contradicted,
            "kills": [{"at": round(at, 1), "what": what, "newAfter": round(back, 2)} for at, what, back in self.kills],
            "memory": [known.told() for known in self.memory.values() if known.looks > FIRST],
        }


async def soak(frames: int, large: int, home: Path) -> dict[str, Any]:
    """Run a system through all of it."""
    pictures = digits()
    async with running(home, NODES) as system:
        await system.apply(DIGITS)
        await system.follow("digits")
        await system.until("Running", lambda: system.phase == "Running")
        run = Soak(system, Traffic(frames, large, pictures))
        await system.bus.unsubscribe(topics.RESULT.filter(ns="default", service="digits"))
        await system.bus.subscribe(topics.RESULT.filter(ns="default", service="digits"), run.traffic.hear, queue=20_000)
        watching = asyncio.create_task(run.watch(), name="memory")
        saying = asyncio.create_task(progress(run), name="progress")
        async with asyncio.TaskGroup() as group:
            group.create_task(run.kill(), name="kills")
            for name in ("cam0", "cam1"):
                group.create_task(run.traffic.camera(name, system.settings), name=name)
        seconds = time.monotonic() - run.began
        say(f"all sent after {seconds:.0f} s; letting it settle")
        await settle(run)
        for task in (watching, saying):
            task.cancel()
        return run.report(seconds)


async def settle(run: Soak) -> None:
    """Wait until nothing comes any more and the counts stand still.

    A process whose connection ended often within seconds pauses up to 40 s (``halimede/bus/reconnect.py``), so
    counts that are behind the results get ``COUNTED`` seconds to come.
    """
    began = quiet = time.monotonic()
    before: tuple[int, int] | None = None
    while time.monotonic() - quiet < SETTLE:
        metrics = run.metrics()
        counted = metrics.get("inferenceNumber", 0) + metrics.get("lost", 0)
        behind = counted < run.traffic.seen and time.monotonic() - began < COUNTED
        if behind or (run.traffic.seen, counted) != before:
            quiet, before = time.monotonic(), (run.traffic.seen, counted)
        await asyncio.sleep(0.5)


async def progress(run: Soak) -> None:
    """Say every ten seconds how far it is."""
    while True:
        await asyncio.sleep(10)
        rate = run.traffic.sent / (time.monotonic() - run.began)
        say(f"{run.traffic.sent:>7} sent, {run.traffic.seen:>7} seen, {rate:.0f}/s")


def broken(report: dict[str, Any], *, flat: bool) -> list[str]:
    """Return the promises that a report breaks."""
    problems = []
    wanted = report["frames"] + report["large"]
    if report["sent"] != wanted:
        problems.append(f"{report['sent']} of {wanted} frames were sent")
    if report["duplicatesAtConsumer"]:
        problems.append("the consumer saw more results than there were frames")
    # a frame is answered again if its worker was killed before the broker had its acknowledgement (ADR 16)
    edge_kills = sum(kill["what"].startswith(EDGE) for kill in report["kills"])
    if report["acceptedTwice"] > WINDOW * edge_kills:
        problems.append(
            f"{report['acceptedTwice']} more frames were counted than sent, after {edge_kills} killed workers"
        )
    # each kill may cost what was under way just then, and nothing else may be missing anywhere
    under_way = WINDOW * len(report["kills"])
    problems += [
        f"{what}: {report[what]}, and no more than {under_way} were under way at kills"
        for what in ("lostInKilledWorkers", "neverAccepted", "takenByTheBrokerAndNotSeen")
        if report[what] > under_way
    ]
    if report["seenByConsumer"] > report["accepted"]:
        problems.append("results were seen of frames that nobody counted")
    for what, times in KILLS.items():
        if (done := sum(kill["what"] == what for kill in report["kills"])) != times:
            problems.append(f"{what} was killed {done} times, not {times}")
    if report["repeatedWithAnotherLabel"]:
        problems.append("one frame got two different answers of one model")
    grown = (
        [m for m in report["memory"] if m["growth"] > FLAT and m["end"] - m["start"] > LEAST_MB * 1e6] if flat else []
    )
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
    parser.add_argument(
        "--large", type=int, default=0, metavar="N", help="large frames to send among them (default: %(default)s)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="halimede-soak-") as folder:
        report = asyncio.run(soak(args.frames, args.large, Path(folder) / "home"))
    problems = broken(report, flat=args.frames + args.large >= 100_000)
    results.write(WRITTEN, report | {"problems": problems})
    say(table(report))
    for problem in problems:
        say(f"PROBLEM: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
