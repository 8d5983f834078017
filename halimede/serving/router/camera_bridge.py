"""Connects the router to the bus: camera frames become requests, and its answers become results.

The models must take pictures (input ``image``) and return predictions. Each accepted frame gets one result, in the form
of an edge worker's, or becomes a dead letter if neither model answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from halimede import topics
from halimede.bus import Bus, Delivery, Packet
from halimede.errors import DecodeError, InvalidFieldError
from halimede.frames import decode, encode_image, open_payload
from halimede.messages import Frame, Prediction, Result
from halimede.pipeline.responders import result_outbox
from halimede.serving.errors import ModelUnavailableError
from halimede.serving.loaded_model import IMAGE
from halimede.serving.rest_codec import HEADER_LENGTH
from halimede.serving.router.backend_client import UnreadableError
from halimede.serving.router.router import Routed, Router, best
from halimede.serving.tensors import BYTES, Tensor, objects, to_bytes
from halimede.system.lru import LruCache

log = structlog.get_logger()

#: most frames that are being answered at a time
INSIDE = 16
#: most frames of QoS 0 that wait because INSIDE frames are being answered
QUEUE = 16
#: ids of frames that are remembered, so that a repeated frame has no second result
REMEMBERED = 65_536


@dataclass(frozen=True, slots=True)
class RouterIdentity:
    """What results say of the router: its namespace, its name as a service and as a worker, its node."""

    namespace: str
    service: str
    worker: str
    node: str


class CameraBridge:
    """Answers the frames of ``cameras`` with a router: ``run`` in a task; at the end ``drain``, then cancel the task.

    ``names``: what results say of the router; frames are those of its namespace and service.
    """

    def __init__(self, bus: Bus, router: Router, names: RouterIdentity, cameras: Sequence[str]) -> None:
        self._bus = bus
        self._router = router
        self._names = names
        about = {"ns": names.namespace, "group": names.service}
        self._filters = [topics.CAMERA_FRAME.filter(camera=camera, **about) for camera in cameras]
        self._outbox = result_outbox(bus)
        self._address = topics.RESULT.at(ns=names.namespace, service=names.service)
        self._slots = asyncio.Semaphore(INSIDE)
        self._ids: LruCache[bytes, None] = LruCache(REMEMBERED)
        self._answering: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Take and answer frames until cancelled. Raises BusError when a subscription fails."""
        for filter_ in self._filters:
            await self._bus.subscribe(filter_, self._take, queue=QUEUE)
        await self._outbox.run()

    async def drain(self, timeout_s: float) -> None:
        """Take no more frames; wait until those in progress are answered, then until their results are published.

        Each wait takes at most ``timeout_s`` seconds.
        """
        for filter_ in self._filters:
            await self._bus.unsubscribe(filter_)
        if self._answering:
            await asyncio.wait(self._answering, timeout=timeout_s)
        await self._outbox.drain(timeout_s)

    async def _take(self, delivery: Delivery[bytes]) -> None:
        """Begin to answer a frame, once there is a slot. Raises DecodeError if it is not a picture.

        A frame whose id was taken before is ignored.
        """
        frame = open_payload(delivery.body, delivery.names["camera"])
        if frame.id in self._ids:
            return
        # a raw frame becomes a PNG: for one of 1920 x 1080 that takes hundreds of milliseconds
        body, headers = await asyncio.to_thread(request_of, frame)
        self._ids.put(frame.id, None)
        await self._slots.acquire()
        task = asyncio.get_running_loop().create_task(self._answer(frame, body, headers, delivery.packet), name="frame")
        self._answering.add(task)
        task.add_done_callback(self._free_slot)

    def _free_slot(self, task: asyncio.Task[None]) -> None:
        """Free the slot of an answered frame; a callback of its task."""
        self._answering.discard(task)
        self._slots.release()

    async def _answer(self, frame: Frame, body: bytes, headers: dict[str, str], packet: Packet) -> None:
        """Publish the result of a frame, whose request has this body, or a dead letter."""
        began = asyncio.get_running_loop().time()
        try:
            routed = await self._router.answer(body, headers)
            if routed.answer.status != 200:
                raise ModelUnavailableError(routed.answer.body[:200].decode(errors="replace"))
            final = self._final(routed)
        except (ModelUnavailableError, UnreadableError) as error:
            self._ids.pop(frame.id)
            await self._bus.dead_letter(packet, f"not answered: {error}")
            return
        took = asyncio.get_running_loop().time() - began
        await self._outbox.wait_ready()
        self._outbox.put(self._address, self._result(frame, routed, final, took))

    def _final(self, routed: Routed) -> Prediction:
        """Return the prediction of the model that answered. Raises UnreadableError."""
        if routed.by == "edge" and routed.edge:
            return best(routed.edge)
        return best(self._router.reader.read(routed.answer)[1])

    def _result(self, frame: Frame, routed: Routed, final: Prediction, took_s: float) -> Result:
        """Return the message for consumers. ``took_s``: seconds from the request to the answer."""
        cloud = routed.by == "cloud"
        return Result(
            id=frame.id.hex(),
            service=self._names.service,
            camera=frame.camera,
            file=frame.file,
            sequence=frame.sequence,
            captured_ns=frame.captured_ns,
            by="cloud" if cloud else "edge",
            hard=routed.hard,
            degraded=routed.degraded,
            reason=routed.reason,
            label=final.label,
            score=final.score,
            prediction=final,
            edge=best(routed.edge) if cloud and routed.edge else None,
            worker=self._names.worker,
            node=self._names.node,
            total_ms=took_s * 1000,
            edge_ms=routed.edge_s * 1000,
            offload_ms=routed.cloud_s * 1000,
        )


def request_of(frame: Frame) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of the request for a frame. Raises DecodeError if it is not a picture."""
    data = bytes(frame.data)
    if frame.encoding == "raw":
        try:
            pixels = decode(frame)
            data = encode_image(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels, "png")
        except InvalidFieldError as error:
            raise DecodeError(f"a raw frame has to be a picture here: {error}") from error
    packed = to_bytes(Tensor(IMAGE, BYTES, objects([data], [1])))
    tensor = {"name": IMAGE, "shape": [1], "datatype": BYTES, "parameters": {"binary_data_size": len(packed)}}
    head = msgspec.json.encode({"id": frame.id.hex(), "inputs": [tensor]})
    return head + packed, {HEADER_LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
