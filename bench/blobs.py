"""A file over the bus, against the same fetcher taking it over HTTP, and what others at the broker notice of it.

    python -m bench.blobs                     200 MB, five rounds of each in turn
    python -m bench.blobs --megabytes 20      the same in short

One node's process gives, another's fetches (write, hash, fsync, all that it takes), through a Mosquitto of our own.
The HTTP server is aiohttp with a static file, in a process of its own too. Meanwhile two further connections exchange
small QoS 1 messages; what counts is the time from publish to the other's handler, or to the acknowledgement if that is
longer. Ends with 1 when the bus has less than half the speed of HTTP, or when control messages take 50 ms (p99).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from aiohttp import web

from bench.children import ROOT, child
from halimede import log
from halimede.blobs import with_fallback
from halimede.blobs.uris import url
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.models import Cache, fetch
from services.broker import MosquittoProcess
from services.lc.app import NodeBlobs, client_id
from tests.ports import free_port

WRITTEN = ROOT / "build" / "bench" / "blobs.json"
TOPIC = "bench/control"
#: seconds: between two control messages, for a child to be there, for one download
EVERY, START, LONGEST = 0.005, 30.0, 600.0
RATIO, P99_MS = 0.5, 50.0


class Control:
    """Small messages between two connections, one after the other."""

    def __init__(self, broker: str) -> None:
        self.times: list[float] = []
        self._here, self._there = (MqttBus(f"control-{side}", broker) for side in ("here", "there"))
        self._came = asyncio.Event()

    async def run(self, counting: asyncio.Event) -> None:
        """Exchange messages until cancelled; times count while ``counting`` is set."""
        async with self._here, self._there:
            await self._here.wait_connected(START)
            await self._there.listen(TOPIC, 1, self._heard, 100)
            await self._there.wait_connected(START)
            while True:
                self._came.clear()
                began = time.perf_counter()
                await self._here.send(Packet(TOPIC, b"x" * 256))
                await self._came.wait()
                if counting.is_set():
                    self.times.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(EVERY)

    async def _heard(self, _: Packet) -> None:
        self._came.set()


async def give(broker: str, folder: Path) -> None:
    """Be the node that has the file, until the standard input ends."""
    work = asyncio.create_task(NodeBlobs("giver", MqttBus(client_id("giver"), broker), Cache(folder)).run())
    await asyncio.to_thread(sys.stdin.buffer.read)
    work.cancel()
    await asyncio.wait([work])


async def serve(port: str, folder: Path) -> None:
    """Be the HTTP server that has the file, until the standard input ends."""
    application = web.Application()
    application.router.add_static("/", folder)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(port)).start()
    await asyncio.to_thread(sys.stdin.buffer.read)


async def take(broker: str, folder: Path, at: str, digest: str) -> None:
    """Be the node that fetches it; print the seconds that it took."""
    blobs = NodeBlobs("taker", MqttBus(client_id("taker"), broker), Cache(folder))
    work = asyncio.create_task(blobs.run())
    await asyncio.sleep(0)
    await blobs.bus.wait_connected(START)
    began = time.perf_counter()
    found = await with_fallback(fetch, at, digest, Cache(folder), openers={"bus": blobs.opener})
    took = time.perf_counter() - began
    if found.digest != digest:
        raise SystemExit(f"it got {found.digest}")
    print(took)
    work.cancel()
    await asyncio.wait([work])


def part(*arguments: object) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run a part of this bench as a process of its own."""
    return child("bench.blobs", *map(str, arguments), env={"HALIMEDE_FETCH_ALLOW": "loopback"})


async def timed(broker: str, folder: Path, at: str, digest: str) -> float:
    """Fetch once into a new cache; return the seconds."""
    async with part("take", broker, folder, at, digest) as process:
        async with asyncio.timeout(LONGEST):
            said, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"the download from {at} failed")
    await asyncio.to_thread(shutil.rmtree, folder)
    return float(said)


async def bench(megabytes: int, rounds: int, folder: Path) -> dict[str, object]:
    """Return what was measured."""
    data = os.urandom(1_000_000) * megabytes
    digest = hashlib.sha256(data).hexdigest()
    file = Cache(folder / "giver").path(digest)
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    ways: dict[str, list[float]] = {"http": [], "bus": []}
    port = free_port()
    async with (
        MosquittoProcess(folder / "broker", port=free_port()) as broker,
        part("give", broker.url, folder / "giver"),
        part("serve", port, file.parent),
    ):
        control, counting = Control(broker.url), asyncio.Event()
        work = asyncio.create_task(control.run(counting))
        places = {"http": f"http://127.0.0.1:{port}/{digest}", "bus": url("giver", digest)}
        for at in places.values():  # once before it counts: both have the file in memory then
            await timed(broker.url, folder / "taker", at, digest)
        for _ in range(rounds):
            for way, at in places.items():
                if way == "bus":
                    counting.set()
                ways[way].append(await timed(broker.url, folder / "taker", at, digest))
                counting.clear()
        if work.done():
            work.result()
        work.cancel()
        await asyncio.wait([work])
    speeds = {way: megabytes / statistics.median(times) for way, times in ways.items()}
    points = statistics.quantiles(control.times, n=100)
    ratio = speeds["bus"] / speeds["http"]
    return {
        "megabytes": megabytes,
        "seconds": {way: [round(each, 3) for each in times] for way, times in ways.items()},
        "mb_per_s": {way: round(speed, 1) for way, speed in speeds.items()},
        "ratio": round(ratio, 3),
        "control": {
            "messages": len(control.times),
            "p50_ms": round(points[49], 2),
            "p99_ms": round(points[98], 2),
            "max_ms": round(max(control.times), 2),
        },
        "targets": {"ratio": RATIO, "control_p99_ms": P99_MS},
        "met": ratio >= RATIO and points[98] < P99_MS,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the figures; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.blobs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="halimede-bench-") as folder:
        found = asyncio.run(bench(options.megabytes, options.rounds, Path(folder)))
    text = json.dumps(found, indent=2)
    WRITTEN.parent.mkdir(parents=True, exist_ok=True)
    WRITTEN.write_text(text + "\n")
    print(text)
    return 0 if found["met"] else 1


if __name__ == "__main__":
    log.configure("WARNING")
    role, *rest = sys.argv[1:] or [""]
    if role == "give":
        asyncio.run(give(rest[0], Path(rest[1])))
    elif role == "serve":
        asyncio.run(serve(rest[0], Path(rest[1])))
    elif role == "take":
        asyncio.run(take(rest[0], Path(rest[1]), rest[2], rest[3]))
    else:
        sys.exit(main())
