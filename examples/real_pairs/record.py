"""What cameras published and what came back, as an operator sees it on the bus: no count of a worker is believed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from examples.real_pairs.rtsp_camera import split_jpeg
from halimede import topics
from halimede.bus import Bus, Delivery
from halimede.errors import HalimedeError
from halimede.frames.payloads import open_payload
from halimede.messages import Result, StatusDocument

NAMESPACE, PLURAL = "default", "jointinferenceservices"


@dataclass(frozen=True, slots=True)
class Published:
    """A frame on the topic of its camera: its picture by name, its bytes, and when it came (seconds, monotonic)."""

    picture: str
    camera: str
    size: int
    at_s: float


class Recorder:
    """Keeps frames and results of one service. ``pictures``: the names of all pictures by their compressed data.

    RTP carries only the compressed data of a JPEG, and a viewer writes the header anew. So a picture is found again by
    that data, whichever way it came.
    """

    def __init__(self, service: str, pictures: dict[bytes, str]) -> None:
        self.service = service
        self.published: dict[str, Published] = {}
        self.results: dict[str, tuple[Result, float]] = {}
        self.repeated = 0
        self.unknown = 0
        self.status: StatusDocument | None = None
        self._pictures = pictures
        self._changed = asyncio.Event()

    async def listen(self, bus: Bus) -> None:
        """Subscribe."""
        await bus.subscribe(topics.CAMERA_FRAME.filter(ns=NAMESPACE), self._on_frame)
        await bus.subscribe(topics.RESULT.filter(ns=NAMESPACE, service=self.service), self._on_result)
        await bus.subscribe(topics.STATUS.filter(ns=NAMESPACE, plural=PLURAL, name=self.service), self._on_status)

    async def until(self, what: str, seconds: float, is_done: Callable[[], object]) -> None:
        """Wait until ``is_done()``. Raises HalimedeError if nothing new has come for so many seconds."""
        progress, deadline = self._progress(), time.monotonic() + seconds
        while not is_done():
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await self._changed.wait()
            if self._progress() != progress:
                progress, deadline = self._progress(), time.monotonic() + seconds
            elif time.monotonic() > deadline:
                phase = self.status.status if self.status else "no status yet"
                raise HalimedeError(f"{what} did not happen: nothing came for {seconds:.0f} s; last status: {phase}")

    def _progress(self) -> tuple[int, int, int, str]:
        return len(self.published), len(self.results), self.metric("inferenceNumber"), self.phase

    @property
    def phase(self) -> str:
        """The phase of the service; empty: it has no status yet."""
        return self.status.status.phase if self.status else ""

    def unanswered(self) -> int:
        """Count the published frames without a result."""
        return len(self.published.keys() - self.results.keys())

    def metric(self, key: str) -> int:
        """Return a count of the status document."""
        metrics = self.status.status.metrics if self.status else []
        return next((int(float(metric.value)) for metric in metrics if metric.key == key), 0)

    async def _on_frame(self, delivery: Delivery[bytes]) -> None:
        frame = open_payload(delivery.body, delivery.names["camera"])
        name = self._pictures.get(picture_key(frame.data))
        if name is None:
            self.unknown += 1
        else:
            published = Published(name, delivery.names["camera"], frame.data.nbytes, time.monotonic())
            self.published.setdefault(frame.id.hex(), published)
        self._changed.set()

    async def _on_result(self, delivery: Delivery[Result]) -> None:
        self.repeated += delivery.body.id in self.results
        self.results.setdefault(delivery.body.id, (delivery.body, time.monotonic()))
        self._changed.set()

    async def _on_status(self, delivery: Delivery[StatusDocument]) -> None:
        self.status = delivery.body
        self._changed.set()


def picture_key(data: bytes | memoryview) -> bytes:
    """Return what identifies a JPEG whose header may have been written anew."""
    return split_jpeg(bytes(data)).scan[:4096]
