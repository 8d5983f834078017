"""The other process of ``bench.hops``: camera, consumer and operator, so that none of their calls are counted.

It reads one JSON line a request on its standard input and prints one JSON line when that is done. It ends with its
standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.children import child
from halimede import log, topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.cli.client import Client as Api
from halimede.frames import new_frame, pack
from halimede.messages import Result, StatusDocument, WorkerInfo

SERVICES = "jointinferenceservices"
NAMESPACE, SERVICE, CAMERA = "default", "hops", "hops"
SHAPE = (224, 224, 3)
#: grey levels of a frame whose two classes are alike, and of one whose are not: see ``bench.hops_frames``
GREY = {"hard": 128, "easy": 0}
#: seconds: until connected, until one answer has come, for the process to start
CONNECT, ANSWER, START = 10.0, 30.0, 60.0


class ClientError(Exception):
    """The other process ended, failed, or did not answer in time."""


@dataclass(slots=True)
class Client:
    """The other process, as the benchmark has it."""

    process: asyncio.subprocess.Process

    async def request(self, timeout_s: float = ANSWER + 5, **fields: Any) -> dict[str, Any]:
        """Send one request and return what became of it. Raises ClientError."""
        self.notify(**fields)
        return await self.reply(timeout_s)

    def notify(self, **fields: Any) -> None:
        """Send a line."""
        assert self.process.stdin is not None  # for the type checker
        self.process.stdin.write(json.dumps(fields).encode() + b"\n")

    async def reply(self, timeout_s: float) -> dict[str, Any]:
        """Return the next line. Raises ClientError."""
        assert self.process.stdout is not None  # for the type checker
        try:
            async with asyncio.timeout(timeout_s):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise ClientError(f"the client did not answer within {timeout_s:g} s") from None
        if not line:
            raise ClientError(f"the client ended with {await self.process.wait()}: see above")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ClientError(reply["error"])
        return reply


@contextlib.asynccontextmanager
async def client(part: str, url: str) -> AsyncIterator[Client]:
    """Run the other process within the block."""
    async with child("bench.hops_client", part, url) as process:
        made = Client(process)
        await made.reply(START)
        yield made


async def lines() -> AsyncIterator[dict[str, Any]]:
    """Yield the requests of standard input as they come."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


def answer(**fields: Any) -> None:
    """Print a reply."""
    print(json.dumps(fields), flush=True)


class Camera:
    """Publishes one frame at a time and waits for its result."""

    def __init__(self, bus: MqttBus) -> None:
        self._bus = bus
        self._sequence = 0
        self._results: dict[str, asyncio.Future[Result]] = {}

    async def start(self) -> None:
        """Subscribe to the results."""
        await self._bus.subscribe(topics.RESULT.filter(ns=NAMESPACE, service=SERVICE), self._on_result)

    async def frame(self, kind: str) -> Result:
        """Publish a frame and return its result. Raises TimeoutError."""
        self._sequence += 1
        pixels = np.full(SHAPE, GREY[kind], np.uint8)
        frame = new_frame(pixels, camera=CAMERA, sequence=self._sequence)
        arrived: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._results[frame.id.hex()] = arrived
        try:
            async with asyncio.timeout(ANSWER):
                # nobody is subscribed until the edge worker has started
                while not await self._bus.publish(topics.CAMERA_FRAME.at(ns=NAMESPACE, camera=CAMERA), pack(frame)):
                    await asyncio.sleep(0.1)
                return await arrived
        finally:
            del self._results[frame.id.hex()]

    async def _on_result(self, delivery: Delivery[Result]) -> None:
        waiting = self._results.get(delivery.body.id)
        if waiting and not waiting.done():
            waiting.set_result(delivery.body)


async def cameras(url: str) -> None:
    """Serve requests for frames."""
    async with MqttBus("hops.camera", url) as bus:
        await bus.wait_connected(CONNECT)
        camera = Camera(bus)
        await camera.start()
        answer(ready=True)
        async for request in lines():
            try:
                result = await camera.frame(request["frame"])
            except TimeoutError:
                answer(error=f"no result of a frame within {ANSWER:g} s")
                return
            answer(by=result.by, hard=result.hard, degraded=result.degraded, reason=result.reason)


async def operator(url: str) -> None:
    """Serve requests to apply and to delete resources; report the workers that were started as running."""
    bus = MqttBus("hops.operator", url)
    async with Api(bus) as api:
        phases: dict[str, asyncio.Event] = {}

        async def on_status(delivery: Delivery[StatusDocument]) -> None:
            if delivery.body.status.phase == "Running":
                phases.setdefault(delivery.names["name"], asyncio.Event()).set()

        async def apply(body: dict[str, Any]) -> None:
            """Apply a resource; of a service, wait until it runs."""
            try:
                async with asyncio.timeout(ANSWER):
                    await api.apply(body)
                    if body["kind"] == "JointInferenceService":
                        await phases.setdefault(body["metadata"]["name"], asyncio.Event()).wait()
            except TimeoutError:
                answer(error=f"{body['metadata']['name']} does not run within {ANSWER:g} s")
            else:
                answer(applied=body["metadata"]["name"])

        await bus.subscribe(topics.STATUS.filter(ns=NAMESPACE), on_status)
        answer(ready=True)
        async with asyncio.TaskGroup() as group:
            async for request in lines():
                if body := request.get("apply"):
                    group.create_task(apply(body))
                elif name := request.get("delete"):
                    await api.delete(SERVICES, name, NAMESPACE)
                    answer(deleted=name)
                else:
                    await bus.publish(topics.WORKER_INFO.at(**request["at"]), WorkerInfo(**request["info"]))


PARTS: dict[str, Callable[[str], Awaitable[None]]] = {"camera": cameras, "operator": operator}

if __name__ == "__main__":
    log.configure("WARNING")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(PARTS[sys.argv[1]](sys.argv[2]))  # type: ignore[arg-type]
