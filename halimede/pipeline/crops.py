"""Samples that are crops: a detector finds boxes in a frame, and the crop of each box is a sample.

There are two pipelines. The first runs the detector on frames, from a ``FrameIntake``. For each frame,
``CropRecognition`` submits the crops of its boxes to the second pipeline, which runs the small model: there each crop
passes mining, budget, audits and escalation as any sample does. When all crops of a frame have their answers,
``FrameResponder`` publishes one result with all of them.

Crops count as samples. A frame without boxes, or one that the detector failed on, counts as one sample.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import structlog

from halimede.api.jointinference import Detector
from halimede.bus.acked_publisher import Done
from halimede.bus.message import SUCCESS
from halimede.errors import DecodeError, describe_exception
from halimede.frames.encodings import Pixels, decode
from halimede.inference import SampleError
from halimede.inference.crops import best, pixels
from halimede.messages import Box, Count, Frame, PicturePoint, Prediction, Result, TextLine
from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.inference import Inference, InferenceOutcome
from halimede.pipeline.intake import EdgeLimits
from halimede.pipeline.model_queue import MemoryBudget
from halimede.pipeline.model_slot import ModelSlot
from halimede.pipeline.observer import IntakeMetrics, Observer
from halimede.pipeline.pipeline import Pipeline
from halimede.pipeline.responders import ResultOutbox, ResultResponder
from halimede.pipeline.sample import Conclusion, Responder, Sample
from halimede.topic import Address
from halimede.tracing import TraceBuffer
from halimede.tracing.steps import CROPS

log = structlog.get_logger()

#: most crops without an answer: fewer than the requests that an ``OffloadClient`` takes, so that hard crops wait here
MAX_CROPS = 64
#: most bytes of crops without an answer, and of decoded frames that crops are cut from; a larger one is admitted alone
CROP_BYTES = FRAME_BYTES = 64 * 1024 * 1024
#: the small model's task, by which the result has the answers to crops: as lines of text, or as labels of boxes
Task = Literal["text", "classification"]


class CropAnswer(msgspec.Struct, eq=False):
    """The answer to a crop.

    Attributes:
        box: of the crop, in the frame, as the detector gives it.
        result: of the crop.
        count: counts the crop; called with a reason code when the result of the frame is published.

    """

    box: Box
    result: Result
    count: Done


class FrameConclusion(Conclusion, kw_only=True):
    """The ``Conclusion`` (sample) of a frame: the detector's outcome, and ``crops``, the answers to all its crops."""

    crops: Sequence[CropAnswer] = ()


class CropOutbox:
    """A ``ResultOutbox`` (responders) that gives the results of crops to the tasks that wait for them."""

    immediate = ready = True
    waiting = 0

    def __init__(self) -> None:
        self._requests: dict[str, asyncio.Future[tuple[Result, Done]]] = {}

    def expect(self, crop: Frame) -> asyncio.Future[tuple[Result, Done]]:
        """Return the future of a crop's result and of the function that counts it; ``put`` sets it."""
        future = self._requests[crop.id.hex()] = asyncio.get_running_loop().create_future()
        return future

    def put(
        self,
        address: Address[Result],  # noqa: ARG002  # as of all outboxes: crops' results stay here
        body: Result,
        done: Done,
        *,
        properties: Mapping[str, str] | None = None,  # noqa: ARG002  # likewise
    ) -> None:
        """Give a result to the task that expects it."""
        future = self._requests.pop(body.id)
        if not future.done():  # its frame may have been cancelled
            future.set_result((body, done))

    async def wait_ready(self) -> None:
        """Return at once, because there is always capacity."""

    async def run(self) -> None:
        """Wait until cancelled, because nothing is sent."""
        await asyncio.get_running_loop().create_future()

    async def drain(self, timeout_s: float) -> Literal[True]:  # noqa: ARG002  # as of all outboxes
        """Return True, because no result has to be delivered."""
        return True


class CropIntake:
    """An ``Intake`` (sample) for crops: bounds those without an answer. It drops none."""

    drops_late = False
    gathers = True

    def __init__(self, responder: Responder, metrics: IntakeMetrics, escalation: Escalation | None) -> None:
        self.responder = responder
        self.metrics = metrics
        self.escalation = escalation
        self._slots = asyncio.Semaphore(MAX_CROPS)
        self._memory = MemoryBudget(CROP_BYTES)
        # crops have no trace of their own: the frame's has a step for all of them
        self._trace_buffer = TraceBuffer(size=MAX_CROPS)

    async def admit(self, crop: Frame, until: float) -> Sample:
        """Wait for a slot and memory, and return a crop as a sample with the deadline ``until`` (loop time)."""
        await self._slots.acquire()
        size = crop.data.nbytes
        try:
            await self._memory.take(size)
        except BaseException:
            self._slots.release()
            raise
        now = asyncio.get_running_loop().time()
        sample = Sample(crop, self, self._trace_buffer.begin(crop.id), now, until, time.monotonic())
        sample.size = sample.pixels = size
        sample.mined = self.escalation is not None
        return sample

    async def prepare(self, sample: Sample) -> None:
        """Do nothing, because crops are prepared in their batch."""

    def release_input(self, sample: Sample) -> None:
        """Do nothing, because crops have no prepared input."""

    def leave(self, sample: Sample) -> None:
        """Release the slot and the memory of a crop that has its answer."""
        self._memory.give(sample.size)
        self._slots.release()

    def expire(self, sample: Sample, *, hopeless: bool) -> None:
        """Do nothing, because crops are always answered, however late."""


@dataclass(frozen=True, slots=True)
class CropDetector:
    """The detector of an edge worker.

    Attributes:
        slot: its models.
        boxes: which boxes are cropped, and with which margin.
        task: of the small model, which answers the crops.
        responder: answers crops, to ``outbox``.

    """

    slot: ModelSlot
    boxes: Detector
    task: Task
    responder: ResultResponder
    outbox: CropOutbox

    def pipeline(
        self,
        crops: Pipeline,
        *,
        limits: EdgeLimits,
        metrics: IntakeMetrics,
        escalation: Escalation | None,
        decoder: ModelThread,
        trace_buffer: TraceBuffer,
    ) -> Pipeline:
        """Return the pipeline that runs the detector on frames, and gives their crops to the pipeline ``crops``.

        ``limits``: of the frames. ``metrics``, ``escalation``: of the crops. ``decoder``: the thread that decodes
        frames. ``trace_buffer``: has the traces of frames.
        """
        intake = CropIntake(self.responder, metrics, escalation)
        recognition = CropRecognition(self, crops, intake, decoder)
        rate = ServiceRate(queue=limits.inside, batch=limits.batch, horizon_s=limits.horizon_s)
        return Pipeline(self.slot, rate, Inference(limits.batch), Observer(rate, trace_buffer), crops=recognition)


class CropRecognition:
    """A ``CropRecognizer`` (pipeline): answers frames by their crops, which ``pipeline`` answers."""

    def __init__(self, detector: CropDetector, pipeline: Pipeline, intake: CropIntake, decoder: ModelThread) -> None:
        self._boxes, self._task, self._outbox = detector.boxes, detector.task, detector.outbox
        self._pipeline = pipeline
        self._intake = intake
        self._decoder = decoder
        self._memory = MemoryBudget(FRAME_BYTES)

    def select(self, outcome: InferenceOutcome) -> list[Box]:
        """Return the boxes of a detection that will be cropped, and make them the outcome's prediction.

        If there are none, the prediction becomes that of a frame without crops. If the prediction is not a detector's
        (``boxes`` is None), the outcome becomes an error.
        """
        detection = outcome.prediction
        if detection is None:
            return []
        if detection.boxes is None:
            outcome.prediction = None
            outcome.error = "the detector gives no boxes: set spec.postprocess.task of its Model to detection"
            return []
        chosen = best((box for box in detection.boxes if box.score >= self._boxes.min_score), self._boxes.max_boxes)
        outcome.prediction = Prediction(boxes=chosen) if chosen else combine_answers([], [], self._task)
        return chosen

    async def recognise(self, sample: Sample, outcome: InferenceOutcome, boxes: Sequence[Box]) -> Conclusion:
        """Return the conclusion with the answers to the crops of ``boxes``, which ``select`` returned, or an error.

        Waits for the answers to all crops, without a deadline of its own.
        """
        began = time.monotonic()
        try:
            crops = await self._answers(sample, boxes)
        except (DecodeError, SampleError) as error:
            return Conclusion(InferenceOutcome(error=str(error)))
        except Exception as error:
            # an unexpected error must not cost the frame its answer
            log.exception("frame not cropped", frame=sample.frame.id.hex())
            return Conclusion(InferenceOutcome(error=f"the frame was not cropped: {describe_exception(error)}"))
        if not crops:  # all boxes lie outside of the frame
            outcome.prediction = combine_answers([], [], self._task)
        hard, by_cloud = sum(crop.result.hard for crop in crops), sum(crop.result.by == "cloud" for crop in crops)
        sample.trace.step((CROPS, began, time.monotonic(), len(crops), hard, by_cloud))
        return FrameConclusion(outcome, crops=crops)

    async def _answers(self, sample: Sample, boxes: Sequence[Box]) -> list[CropAnswer]:
        """Return the answers to the crops of a frame, in the order of the boxes. Raises DecodeError, SampleError.

        The decoded picture is released when the crops are cut, before their answers come.
        """
        return [CropAnswer(box, *await request) for box, request in await self._submit(sample, boxes)]

    async def _submit(
        self, sample: Sample, boxes: Sequence[Box]
    ) -> list[tuple[Box, asyncio.Future[tuple[Result, Done]]]]:
        """Cut the crops of a frame and submit them; return the box and the future result of each.

        A box without a pixel of the frame is left out. Raises DecodeError, SampleError.
        """
        requests: list[tuple[Box, asyncio.Future[tuple[Result, Done]]]] = []
        await self._memory.take(sample.pixels)
        try:
            picture = await self._decoder.call(decode, sample.frame)
            if picture.ndim < 2:
                raise SampleError(f"a frame of the shape {list(picture.shape)} is no picture to crop")
            for number, box in enumerate(boxes):
                corners = pixels(box, picture, self._boxes.margin)
                if corners is None or pixels(box, picture) is None:
                    continue
                crop = crop_of(sample.frame, number, picture, corners)
                admitted = await self._intake.admit(crop, sample.until)
                requests.append((box, self._outbox.expect(crop)))
                self._pipeline.submit(admitted)
        finally:
            self._memory.give(sample.pixels)
        return requests


class FrameResponder(ResultResponder):
    """A ``ResultResponder`` that publishes one result for each frame, with the results of its crops.

    ``crops``: the responder of the crops, with which it shares counts and durations. ``outbox``: gets the results.
    ``task``: of the small model. ``sizes``: whether a result with boxes has the size of its picture.
    """

    def __init__(
        self, crops: ResultResponder, outbox: ResultOutbox, trace_buffer: TraceBuffer, task: Task, *, sizes: bool
    ) -> None:
        super().__init__(crops.origin, outbox, crops.address, crops.ledger, trace_buffer=trace_buffer, sizes=sizes)
        self.degraded, self.times = crops.degraded, crops.times
        self._task: Task = task

    def _result(self, sample: Sample, conclusion: Conclusion, now: float) -> Result:
        """Return the result of a frame, combined from those of its crops if it has any."""
        result = super()._result(sample, conclusion, now)
        crops = _crops_of(conclusion)
        return combine_results(result, crops, self._task) if crops else result

    def _count(self, sample: Sample, conclusion: Conclusion, result: Result, counts: list[Count]) -> None:
        """Count the crops of a frame as samples, or a frame without crops as one sample."""
        crops = _crops_of(conclusion)
        if not crops:
            super()._count(sample, conclusion, result, counts)
            return
        self.ledger.count(counts)
        self.ledger.add(Count.ACCEPTED, len(crops) - 1)  # the frame was counted as one accepted sample
        for crop in crops:
            crop.count(SUCCESS)


def _crops_of(conclusion: Conclusion) -> Sequence[CropAnswer]:
    """Return the answers to the crops of a frame; none for a frame without crops."""
    return conclusion.crops if isinstance(conclusion, FrameConclusion) else ()


def combine_results(frame_result: Result, crops: Sequence[CropAnswer], task: Task) -> Result:
    """Return the result of a frame with the answers to its crops, in the order of their boxes. There is at least one.

    ``frame_result``: by the detector's outcome. ``task``: of the small model. The frame counts as answered by the cloud
    if a crop is. It is hard, degraded, audited or mixed if a crop is. Its reason is that of the first degraded crop,
    else of the first crop with a reason. Its hardness is the highest.
    """
    boxes, results = [crop.box for crop in crops], [crop.result for crop in crops]
    by_cloud = next((result for result in results if result.by == "cloud"), None)
    reasons = sorted((result for result in results if result.reason), key=lambda result: not result.degraded)
    hardest = max(results, key=lambda result: -math.inf if result.hardness is None else result.hardness)
    answered = by_cloud or results[0]
    small = [result.edge or result.prediction for result in results]
    return msgspec.structs.replace(
        frame_result,
        by=answered.by,
        hard=any(result.hard for result in results),
        degraded=any(result.degraded for result in results),
        reason=reasons[0].reason if reasons else "",
        prediction=combine_answers(boxes, [result.prediction for result in results], task),
        edge=combine_answers(boxes, small, task) if by_cloud else None,
        worker=answered.worker,
        model=answered.model,
        tier=answered.tier,
        hardness=hardest.hardness,
        cut=hardest.cut,
        audit=any(result.audit for result in results),
        mixed=any(result.mixed for result in results),
        edge_ms=frame_result.edge_ms + max(result.edge_ms for result in results),
        offload_ms=max(result.offload_ms for result in results),
    )


def combine_answers(boxes: Sequence[Box], answers: Sequence[Prediction], task: Task) -> Prediction:
    """Return one prediction with the answers to the crops of boxes: lines of text, or boxes with the answers' labels.

    A box whose answer has no label stays as it is.
    """
    pairs = list(zip(boxes, answers, strict=True))
    if task == "text":
        return Prediction(lines=[TextLine(text=a.label or "", score=a.score, corners=_corners(b)) for b, a in pairs])
    return Prediction(boxes=[b if a.label is None else _label_box(b, a.label, a.score) for b, a in pairs])


def _label_box(box: Box, label: str, score: float | None) -> Box:
    """Return a box with another label and score; None: it keeps its score."""
    return msgspec.structs.replace(box, label=label, score=box.score if score is None else score)


def _corners(box: Box) -> list[PicturePoint]:
    """Return the corners of a box, clockwise from the upper left one."""
    (x1, x2), (y1, y2) = sorted((box.x1, box.x2)), sorted((box.y1, box.y2))
    return [PicturePoint(x, y) for x, y in ((x1, y1), (x2, y1), (x2, y2), (x1, y2))]


def crop_of(frame: Frame, number: int, picture: Pixels, corners: tuple[int, int, int, int]) -> Frame:
    """Return a crop of a frame, as a raw frame with a copy of the pixels.

    ``number``: of the crop in the frame; with the frame's id it determines the id of the crop. ``corners``: left, top,
    right and bottom in pixels of ``picture``, the decoded frame.
    """
    x1, y1, x2, y2 = corners
    part = picture[y1:y2, x1:x2].copy()  # a view would keep the whole picture in memory
    id_ = hashlib.blake2b(frame.id + number.to_bytes(2), digest_size=16).digest()
    return msgspec.structs.replace(
        frame, id=id_, encoding="raw", dtype=part.dtype.name, shape=list(part.shape), data=part.data.cast("B")
    )
