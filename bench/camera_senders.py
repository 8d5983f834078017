"""Cameras of bench.camera that send JPEG, and the consumer of all results: one process.

    python -m bench.camera_senders mqtt|qos0|http|film FOLDER BROKER SERVICE CAMERA ...

``mqtt``: cameras publish to the broker, as ``halimede camera`` does: at most two pictures of a camera are on their way,
and a further one is dropped. ``qos0``: the same without acknowledgements, so that broker and worker may drop pictures.
``http``: each camera is a server of MJPEG, whose addresses the first line has; pictures
are dropped while the reader takes no more bytes. ``film``: ``halimede camera`` plays a film without end, and the frames
of a round are those that were due in it. It prints ``ready`` once all cameras have results, and then a JSON
line for each round that it reads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.camera_frames import written_jpegs
from bench.camera_live import LiveRound, Tally
from halimede import log, topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.cameras.address import name_of, parse
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame, Result
from tests.cameras import MjpegCamera, Viewer

NAMESPACE = "default"
#: pictures of a camera on their way; frames a second until a round begins, and answers of each camera before it does
WINDOW, WARM_FPS, WARM = 2, 3.0, 3
#: seconds: until all cameras have answers; without any further answer at the end of a round
START_S, SILENT_S = 90.0, 5.0
#: seconds for which answers to a film may be late, and nanoseconds after a round whose answers end it
FILM_S, AFTER_NS = 30.0, 500_000_000
LATE, BUSY = "dropped by the camera: two are on their way", "dropped by the camera: its reader is busy"
UNREAD = "dropped by the camera: nobody reads it"


class Senders(ABC):
    """Cameras by name. ``deliver`` sends one picture."""

    busy = LATE

    def __init__(self, files: Sequence[bytes], cameras: Sequence[str], bus: MqttBus) -> None:
        self.files = files
        self.cameras = cameras
        self.bus = bus
        self.servers: dict[str, MjpegCamera] = {}
        self.tally = Tally()
        #: begin and end of the round, in the time of captures
        self.from_ns = self.until_ns = 0
        #: cameras by the names that workers give them
        self.names: dict[str, str] = {}
        self._answers: dict[str, int] = {}
        self._under_way: dict[str, int] = {}

    @abstractmethod
    async def deliver(self, camera: str, number: int) -> None:
        """Send a picture; return once the next may follow."""

    def ready(self) -> bool:
        """Whether each camera has had enough answers."""
        return all(self._answers.get(camera, 0) >= WARM for camera in self.cameras)

    async def on_result(self, delivery: Delivery[Result]) -> None:
        """Count an answer."""
        result, now_ns = delivery.body, time.time_ns()
        camera = self.names.get(result.camera, result.camera)
        self._answers[camera] = self._answers.get(camera, 0) + 1
        if self.belongs(result.captured_ns):
            self.tally.add(camera, (now_ns - result.captured_ns) / 1e9, in_time=now_ns <= self.until_ns)
        else:
            self.tally.processed += 1

    def belongs(self, captured_ns: int) -> bool:  # noqa: ARG002  # senders of their own frames send none but theirs
        """Whether a frame is one of the present round."""
        return True

    async def run(self, live: LiveRound) -> None:
        """Let all cameras send for a round."""
        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for camera in live.cameras:
                group.create_task(self._camera(camera, live, start, group))

    async def _camera(self, camera: str, live: LiveRound, start: float, group: asyncio.TaskGroup) -> None:
        for number in range(live.ticks):
            await asyncio.sleep(start + number / live.fps - time.monotonic())
            self.tally.offered += 1
            if self._under_way.get(camera, 0) >= WINDOW:
                self.tally.dropped[self.busy] += 1
                continue
            self._under_way[camera] = self._under_way.get(camera, 0) + 1
            group.create_task(self._one(camera, number))

    async def _one(self, camera: str, number: int) -> None:
        try:
            await self.deliver(camera, number)
        finally:
            self._under_way[camera] -= 1

    async def answered(self) -> None:
        """Wait until each picture has its answer, or no answer came for a while."""
        tally, last, silent_since = self.tally, -1, time.monotonic()
        while tally.answered.total() + tally.dropped.total() < tally.offered:
            if tally.answered.total() != last:
                last, silent_since = tally.answered.total(), time.monotonic()
            elif time.monotonic() - silent_since > SILENT_S:
                return
            await asyncio.sleep(0.05)


class Publishers(Senders):
    """Cameras that publish."""

    qos = 1

    async def deliver(self, camera: str, number: int) -> None:
        """Publish a picture, until the broker has it."""
        data = memoryview(self.files[number % len(self.files)])
        capture = {"camera": camera, "sequence": number, "captured_ns": time.time_ns()}
        frame = Frame(id=new_id(), encoding="jpeg", data=data, **capture)
        await self.bus.publish(topics.CAMERA_FRAME.at(ns=NAMESPACE, camera=camera), pack(frame), qos=self.qos)


class UnacknowledgedPublishers(Publishers):
    """Cameras that publish without acknowledgements."""

    qos = 0


class Servers(Senders):
    """Cameras that a worker reads over HTTP."""

    busy = BUSY

    def __init__(self, files: Sequence[bytes], cameras: Sequence[str], bus: MqttBus) -> None:
        super().__init__(files, cameras, bus)
        self._viewers: dict[str, Viewer] = {}
        self.servers = {camera: MjpegCamera(self._shown(camera)) for camera in cameras}

    def _shown(self, camera: str) -> Any:
        async def show(viewer: Viewer) -> None:
            self._viewers[camera] = viewer
            await asyncio.Event().wait()  # pictures come from ``deliver``

        return show

    async def deliver(self, camera: str, number: int) -> None:
        """Write a picture to who reads the camera, until the connection takes more."""
        viewer = self._viewers.get(camera)
        try:
            if viewer is None:
                raise ConnectionError
            await viewer.picture(self.files[number % len(self.files)])
        except ConnectionError:
            self.tally.dropped[UNREAD] += 1


class Films(Senders):
    """Cameras that another process plays."""

    latest_ns = 0

    async def deliver(self, camera: str, number: int) -> None:
        """Nothing to do: the film is played."""

    def belongs(self, captured_ns: int) -> bool:
        """Whether a frame was due in the present round."""
        self.latest_ns = max(self.latest_ns, captured_ns)
        return self.from_ns <= captured_ns < self.until_ns

    async def run(self, live: LiveRound) -> None:
        """Wait until the round is over."""
        self.tally.offered = live.ticks * len(live.cameras)
        await asyncio.sleep(live.seconds)

    async def answered(self) -> None:
        """Wait until frames from after the round are answered."""
        until = time.monotonic() + FILM_S
        while self.latest_ns < self.until_ns + AFTER_NS and time.monotonic() < until:
            await asyncio.sleep(0.05)


KINDS: dict[str, type[Senders]] = {"mqtt": Publishers, "qos0": UnacknowledgedPublishers, "http": Servers, "film": Films}


async def main(kind: str, folder: str, broker: str, service: str, *cameras: str) -> None:
    """Be the process until standard input ends."""
    files = written_jpegs(Path(folder))
    async with MqttBus(f"{service}-senders", broker) as bus:
        senders = KINDS[kind](files, cameras, bus)
        await bus.wait_connected(START_S)
        await bus.subscribe(topics.RESULT.filter(ns=NAMESPACE, service=service), senders.on_result)
        for server in senders.servers.values():
            await server.__aenter__()
        urls = {name: server.url() for name, server in senders.servers.items()}
        senders.names = {name_of(parse(url)): name for name, url in urls.items()}
        print(json.dumps(urls), flush=True)
        async with asyncio.timeout(START_S):
            while not senders.ready():
                await senders.run(LiveRound(list(cameras), WARM_FPS, 1.0))
        await senders.answered()
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            live = LiveRound(**json.loads(line))
            senders.tally = Tally()
            senders.from_ns = time.time_ns()
            senders.until_ns = senders.from_ns + round(live.seconds * 1e9)
            await senders.run(live)
            await senders.answered()
            print(json.dumps(senders.tally.summary(live)), flush=True)


if __name__ == "__main__":
    log.configure("WARNING")
    asyncio.run(main(*sys.argv[1:]))
