"""What a run published and what came back, as an operator sees it on the bus: nothing here believes anybody's counts.

The demo listens to the cameras' own topics, so a frame that is published and never answered is seen, and is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from halimede import topics
from halimede.bus import Bus, Delivery
from halimede.errors import HalimedeError
from halimede.frames.payloads import open_payload
from halimede.messages import CameraStatus, Fused, Peer, Result, StatusDocument

NAMESPACE = "default"
SERVICES = ("street", "board", "belt")
PLURAL = "multiedgeinferenceservices"


@dataclass(frozen=True, slots=True)
class Sent:
    """A frame that a camera published: when it was taken, and its picture. Times are nanoseconds since 1970."""

    camera: str
    captured_ns: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """The first result of a frame, when it came, and the node of the worker that gave it."""

    result: Result
    at_ns: int
    node: str


class Recorder:
    """Keeps what is said on the topics of the demo."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.answers: dict[str, Answered] = {}
        self.repeated = 0
        self.fused: list[Fused] = []
        self.cameras: dict[str, CameraStatus] = {}
        self.services: dict[str, StatusDocument] = {}
        self._nodes: dict[str, str] = {}
        self._changed = asyncio.Event()

    async def listen(self, bus: Bus) -> None:
        """Subscribe."""
        await bus.subscribe(topics.CAMERA_FRAME.filter(ns=NAMESPACE), self._on_frame)
        await bus.subscribe(topics.CAMERA_STATUS.filter(ns=NAMESPACE), self._on_camera)
        for name in SERVICES:
            await bus.subscribe(topics.MULTI_RESULT.filter(ns=NAMESPACE, service=name), self._on_result)
            await bus.subscribe(topics.STATUS.filter(ns=NAMESPACE, plural=PLURAL, name=name), self._on_status)
            await bus.subscribe(topics.PEER.filter(ns=NAMESPACE, service=name), self._on_peer)
        await bus.subscribe(topics.FUSED.filter(ns=NAMESPACE, service="board"), self._on_fused)

    async def until(self, what: str, seconds: float, done: Callable[[], object]) -> None:
        """Wait until ``done()`` holds. Raises HalimedeError when it takes longer."""
        try:
            async with asyncio.timeout(seconds):
                while not done():
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.2):
                            await self._changed.wait()
        except TimeoutError:
            phases = {name: document.status for name, document in self.services.items()}
            raise HalimedeError(f"{what} did not happen within {seconds:.0f} s; last status: {phases}") from None

    def running(self) -> bool:
        """Whether all workers of all services run."""
        found = [self.services[name].status for name in SERVICES if name in self.services]
        return len(found) == len(SERVICES) and all(s.phase == "Running" and s.active == 3 for s in found)

    def waiting(self, service: str) -> int:
        """Count the frames for a service that have no answer yet."""
        return sum(key not in self.answers for key, sent in self.sent.items() if sent.camera.startswith(service))

    def metric(self, service: str, key: str) -> int:
        """Return a count of a service's status document."""
        metrics = self.services[service].status.metrics if service in self.services else []
        return next((int(float(m.value)) for m in metrics if m.key == key), 0)

    async def _on_frame(self, delivery: Delivery[bytes]) -> None:
        frame = open_payload(delivery.body, delivery.names["camera"])
        self.sent[frame.id.hex()] = Sent(frame.camera, frame.captured_ns, bytes(frame.data))
        self._changed.set()

    async def _on_result(self, delivery: Delivery[Result]) -> None:
        result = delivery.body
        if result.id in self.answers:
            self.repeated += 1
        node = self._nodes.get(result.worker, result.node)  # of a result it is where the frame came in
        self.answers.setdefault(result.id, Answered(result, time.time_ns(), node))
        self._changed.set()

    async def _on_peer(self, delivery: Delivery[Peer]) -> None:
        self._nodes[delivery.names["worker"]] = delivery.body.node

    async def _on_fused(self, delivery: Delivery[Fused]) -> None:
        self.fused.append(delivery.body)

    async def _on_camera(self, delivery: Delivery[CameraStatus]) -> None:
        self.cameras[delivery.body.camera] = delivery.body
        self._changed.set()

    async def _on_status(self, delivery: Delivery[StatusDocument]) -> None:
        self.services[delivery.body.name] = delivery.body
        self._changed.set()
