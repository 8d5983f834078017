"""Publishes previews of hard samples: small pictures for the dashboard, with the edge's answer and the final one.

At most one preview a second is made, in the decoder's thread after the sample was answered, and only while the bus is
connected. A preview that is large, or that took long to make or to send, delays the next one. Samples that come
meanwhile have no preview. No other part waits for a preview.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import structlog
from PIL import Image

from halimede import topics
from halimede.api.processing import Fit
from halimede.bus import Bus
from halimede.errors import BusError, DecodeError, TooLargeError
from halimede.frames.encodings import Pixels, decode, measure
from halimede.inference.coordinates import map_boxes
from halimede.inference.decoding import Decoding
from halimede.inference.geometry import frame_geometry
from halimede.messages import Box, Frame, HardSample, Prediction, Result
from halimede.pipeline.executor import ModelThread
from halimede.worker.settings import WorkerSettings

log = structlog.get_logger()
#: least and most seconds between two previews
MIN_PERIOD_S, MAX_PERIOD_S = 1.0, 60.0
#: so many times the time to make and send a preview must pass before the next one: time is for answers
PAUSE_FACTOR = 20
#: bytes of pictures that a worker sends in a second, on average
BYTES_PER_S = 8 * 1024
#: most characters of a label and of a box's label, and boxes of one answer
MAX_LABEL, MAX_BOX_LABEL, MAX_BOXES = 1024, 64, 32
#: a frame, the prediction of the worker's own model (None: it gave none), and the result
_AnsweredSample = tuple[Frame, Prediction | None, Result]
#: pixels of the longer side of a preview, and bytes of its file
MAX_SIDE, MAX_BYTES = 640, 48 * 1024
#: most bytes of a decoded frame of which a preview is made
MAX_FRAME_BYTES = 32 * 1024 * 1024
#: how a JPEG is decoded for a preview
PREVIEW_DECODING = Decoding(Fit(longest=MAX_SIDE))
#: a picture whose longer side has at most these pixels, and whose PNG file these bytes, is sent without loss
SMALL_SIDE, SMALL_BYTES = 160, 4 * 1024
#: quality and longer side of the JPEG files that are tried, until one has at most MAX_BYTES
ATTEMPTS = ((75, MAX_SIDE), (50, MAX_SIDE), (50, MAX_SIDE // 2), (25, SMALL_SIDE))


class Preview(NamedTuple):
    """The bytes of a picture file, and the width and height in pixels of the frame that it shows."""

    data: bytes
    width: int
    height: int


class PreviewPublisher:
    """Publishes previews of one edge worker, while ``run`` runs. ``decoder``: the thread that makes them."""

    def __init__(self, bus: Bus, decoder: ModelThread, settings: WorkerSettings) -> None:
        self._bus = bus
        self._decoder = decoder
        self._settings = settings
        self._address = topics.HARD_SAMPLE.at(ns=settings.namespace, service=settings.service)
        #: the sample whose preview is made, or is to be made; None: there is none
        self._next: _AnsweredSample | None = None
        self._offered = asyncio.Event()
        #: loop time from which the next sample gets a preview
        self._due = 0.0

    def offer(self, frame: Frame, edge: Prediction | None, result: Result) -> None:
        """Queue an answered hard sample for a preview, if the next preview is due; otherwise the sample gets none.

        ``edge``: the prediction of this worker's model; None: it gave none. ``result``: the final answer.
        """
        if self._next is None and self._bus.connected and asyncio.get_running_loop().time() >= self._due:
            self._next = (frame, edge, result)
            self._offered.set()

    async def run(self) -> None:
        """Publish queued previews until cancelled."""
        while True:
            await self._offered.wait()
            self._offered.clear()
            clock = asyncio.get_running_loop()
            began = clock.time()
            self._due = began + MIN_PERIOD_S
            if self._next:
                size = await self._publish(*self._next)
                pause_s = max(MIN_PERIOD_S, size / BYTES_PER_S, PAUSE_FACTOR * (clock.time() - began))
                self._due = began + min(MAX_PERIOD_S, pause_s)
            self._next = None

    async def _publish(self, frame: Frame, edge: Prediction | None, result: Result) -> int:
        """Make and send a preview; return the bytes of its picture; 0: the sample has no preview."""
        preview = None
        try:
            preview = await self._decoder.call(make_preview, frame)
            if preview:
                await self._bus.publish(self._address, self._sample(frame, edge or Prediction(), result, preview))
        except (BusError, TooLargeError) as error:
            log.debug("preview not sent", error=str(error))
        except Exception:
            # an unexpected error in a preview must not end the worker
            log.exception("hard sample preview not made", frame=result.id)
        return len(preview.data) if preview else 0

    def _sample(self, frame: Frame, edge: Prediction, result: Result, preview: Preview) -> HardSample:
        """Return the message with a preview."""
        final = result.prediction
        return HardSample(
            id=frame.id,
            data=preview.data,
            worker=self._settings.worker,
            node=self._settings.node,
            camera=result.camera,
            file=result.file,
            reason=result.reason,
            edge_label=shown_text(edge),
            label=shown_text(final),
            by=result.by,
            degraded=result.degraded,
            hardness=result.hardness,
            cut=result.cut,
            edge_score=edge.score or 0.0,
            score=result.score or 0.0,
            total_ms=result.total_ms,
            captured_ns=result.captured_ns,
            edge_count=len(edge.boxes or ()),
            count=len(final.boxes or ()),
            edge_boxes=None if edge.boxes is None else best_boxes(edge.boxes, preview),
            boxes=None if final.boxes is None else best_boxes(final.boxes, preview),
        )


def shown_text(prediction: Prediction) -> str:
    """Return the label of an answer, else its lines of text; empty if it has neither."""
    text = prediction.label or " / ".join(line.text for line in prediction.lines or ())
    return text[:MAX_LABEL]


def best_boxes(boxes: Sequence[Box], preview: Preview) -> list[Box]:
    """Return the MAX_BOXES best boxes, clipped to the frame, with coordinates in fractions of its width and height.

    Boxes outside of the frame are left out.
    """
    best = sorted(boxes, key=lambda box: -box.score)[:MAX_BOXES]
    size = (preview.width, preview.height)
    clipped = map_boxes(best, lambda points: np.clip(points / size, 0, 1).round(4))
    return [
        Box(box.x1, box.y1, box.x2, box.y2, round(box.score, 4), str(box.label)[:MAX_BOX_LABEL])
        for box in clipped
        if box.x1 != box.x2 and box.y1 != box.y2
    ]


def make_preview(frame: Frame) -> Preview | None:
    """Return a preview as PNG (of small frames) or JPEG; None for a frame that is no picture, or too large."""
    try:
        if measure(frame) > MAX_FRAME_BYTES:
            return None
        pixels = decode(frame, PREVIEW_DECODING)
    except DecodeError:
        return None
    image = _as_picture(pixels)
    if image is None:
        return None
    geometry = frame_geometry(pixels)
    data = _compress(image)
    return Preview(data, geometry.x.frame, geometry.y.frame) if data else None


def _compress(image: Image.Image) -> bytes | None:
    """Return the file of a picture within the limit of bytes; None if there is none."""
    if max(image.size) <= SMALL_SIDE and len(exact := _save(image, "PNG")) <= SMALL_BYTES:
        return exact
    for quality, side in ATTEMPTS:
        image.thumbnail((side, side))
        if len(data := _save(image, "JPEG", quality)) <= MAX_BYTES:
            return data
    return None


def _save(image: Image.Image, form: str, quality: int = 0) -> bytes:
    """Return a picture as a file; quality 0: the format's default."""
    out = io.BytesIO()
    image.save(out, format=form, **({"quality": quality} if quality else {}))
    return out.getvalue()


def _as_picture(pixels: Pixels) -> Image.Image | None:
    """Return ``(height, width)`` or ``(height, width, 1 or 3)`` pixels as a picture; None for other shapes.

    Numbers other than uint8 are scaled from their minimum to their maximum.
    """
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 and not (pixels.ndim == 3 and pixels.shape[2] == 3):
        return None
    step = max(1, max(pixels.shape) // (4 * MAX_SIDE))  # of a large frame a subset of the pixels is enough
    pixels = pixels[::step, ::step]
    if pixels.dtype != np.uint8:
        finite = np.nan_to_num(pixels.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        low, high = finite.min(), finite.max()
        # halve first, so that the difference of two huge numbers is finite; 255 over a tiny one is not
        shares = (finite / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
        pixels = (255 * shares).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels))
