"""Publishes previews of hard samples: small pictures of samples that the small model is unsure of.

It makes at most one preview a second, in the decoder's thread after the sample was answered, and sends it only while
the bus is connected. Late, excess or large previews are dropped. No other part waits for a preview.
"""

from __future__ import annotations

import asyncio
import io

import numpy as np
import structlog
from PIL import Image

from halimede import topics
from halimede.bus import Bus
from halimede.errors import BusError, DecodeError, TooLargeError
from halimede.frames.encodings import Pixels, decode, measure
from halimede.messages import Frame, HardSample, Prediction, Result
from halimede.pipeline.executor import ModelThread
from halimede.worker.settings import WorkerSettings

log = structlog.get_logger()
#: seconds between two previews: the least; the multiple of the last one's transfer time, because a narrow connection is
#: for answers; the most
EVERY_S, SPARED, MOST_S = 1.0, 20, 60.0
#: most characters of a label
LABEL = 1024
_Seen = tuple[Frame, Prediction | None, Result]
#: pixels of the longer side, bytes of the file, and most bytes of the decoded frame that a thumbnail is made from
SIDE, BYTES = 160, 32 * 1024
MOST_PIXELS = 32 * 1024 * 1024
QUALITIES = (80, 50, 25)


class PreviewPublisher:
    """Publishes previews of one edge worker, in ``run``."""

    def __init__(self, bus: Bus, decoder: ModelThread, settings: WorkerSettings) -> None:
        self._bus = bus
        self._decoder = decoder
        self._settings = settings
        self._address = topics.HARD_SAMPLE.at(ns=settings.namespace, service=settings.service)
        self._next: _Seen | None = None
        self._wanted = asyncio.Event()
        self._due = 0.0

    def offer(self, frame: Frame, edge: Prediction | None, result: Result) -> None:
        """Queue an answered hard sample for a preview, if one is due."""
        if self._next is None and self._bus.connected and asyncio.get_running_loop().time() >= self._due:
            self._next = (frame, edge, result)
            self._wanted.set()

    async def run(self) -> None:
        """Publish queued previews until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._due = asyncio.get_running_loop().time() + EVERY_S
            if self._next:
                await self._publish(*self._next)
            self._next = None

    async def _publish(self, frame: Frame, edge: Prediction | None, result: Result) -> None:
        try:
            data = await self._decoder.call(thumbnail, frame)
            if data:
                await self._send(self._sample(frame, edge, result, data))
        except (BusError, TooLargeError) as error:
            log.debug("preview not sent", error=str(error))
        except Exception:
            # an unexpected error in a preview must not end the worker
            log.exception("hard sample preview not made", frame=result.id)

    async def _send(self, sample: HardSample) -> None:
        clock = asyncio.get_running_loop()
        began = clock.time()
        try:
            await self._bus.publish(self._address, sample)
        finally:
            self._due = began + min(MOST_S, max(EVERY_S, SPARED * (clock.time() - began)))

    def _sample(self, frame: Frame, edge: Prediction | None, result: Result, data: bytes) -> HardSample:
        said = edge or Prediction()
        return HardSample(
            id=frame.id,
            camera=result.camera,
            worker=self._settings.worker,
            node=self._settings.node,
            by=result.by,
            degraded=result.degraded,
            reason=result.reason,
            edge_label=(said.label or "")[:LABEL],
            edge_score=said.score or 0.0,
            label=(result.label or "")[:LABEL],
            score=result.score or 0.0,
            data=data,
        )


def thumbnail(frame: Frame) -> bytes | None:
    """Return a PNG (small frames, lossless) or JPEG of at most 160 pixels a side; None for other samples."""
    try:
        if measure(frame) > MOST_PIXELS:
            return None
        image = _as_picture(decode(frame))
    except DecodeError:
        return None
    if image is None:
        return None
    image.thumbnail((SIDE, SIDE))
    exact = _save(image, "PNG")
    if len(exact) <= BYTES // 8:
        return exact
    return next((data for quality in QUALITIES if len(data := _save(image, "JPEG", quality)) <= BYTES), None)


def _save(image: Image.Image, form: str, quality: int = 0) -> bytes:
    out = io.BytesIO()
    image.save(out, format=form, **({"quality": quality} if quality else {}))
    return out.getvalue()


def _as_picture(pixels: Pixels) -> Image.Image | None:
    """Return grey or RGB pixels as a picture. Numbers other than bytes are scaled from minimum to maximum."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 and not (pixels.ndim == 3 and pixels.shape[2] == 3):
        return None
    step = max(1, max(pixels.shape) // (4 * SIDE))  # of a large frame a subset of the pixels is enough
    pixels = pixels[::step, ::step]
    if pixels.dtype != np.uint8:
        known = np.nan_to_num(pixels.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        low, high = known.min(), known.max()
        # halve first, so that the difference of two huge numbers is finite
        pixels = ((known / 2 - low / 2) * (255 / ((high / 2 - low / 2) or 1.0))).clip(0, 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels))
