"""One sample at a cloud worker, from its arrival to its reply, and the steps that its trace and the times get."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import msgspec

from halimede.bus import Delivery
from halimede.frames.compute import Outcome
from halimede.messages import Frame, Prediction, Reply
from halimede.tracing import CloudTimes, Record
from halimede.tracing.steps import ARRIVE, COMPUTE, DECODE, QUEUE, REPLY

#: who asked, by its reply topic, and the frame's id
Key = tuple[str, bytes]


@dataclass(slots=True, eq=False)
class Job:
    """One sample in the queue or in the model. A resend replaces ``delivery``: the latest correlation is answered.

    ``size`` and ``pixels`` are its bytes as it came, and decoded; ``began`` and ``queued`` are monotonic.
    """

    delivery: Delivery[Frame]
    until: float
    arrived: float
    size: int
    pixels: int
    trace: Record
    began: float
    queued: float

    def received(self) -> None:
        """Note its arrival."""
        frame = self.delivery.body
        self.trace.step(ARRIVE, self.began, self.queued, frame.worker, self.size, frame.encoding)

    def computed(self, batched: float, outcome: Outcome, times: CloudTimes) -> None:
        """Note that it waited until ``batched`` and what the model made of it."""
        trace = self.trace
        trace.step(QUEUE, self.queued, batched)
        times.queue.record((batched - self.queued) * 1000)
        if outcome.decoded:
            trace.step(DECODE, *outcome.decoded)
            times.decode.record((outcome.decoded[1] - outcome.decoded[0]) * 1000)
        if outcome.batch:
            trace.step(COMPUTE, outcome.began, outcome.began + outcome.ms / 1000, outcome.batch)

    def replied(self, began: float, reply: Reply, times: CloudTimes, *, heard: bool) -> None:
        """Note that its reply, handed over at ``began``, was taken by the broker, or was not."""
        now = time.monotonic()
        self.trace.step(REPLY, began, now, reply.error, heard)
        times.total.record((now - self.began) * 1000)


def weight(prediction: Prediction | None) -> int:
    """Return about how many bytes of memory a prediction takes; without end for one that cannot be written."""
    if prediction is None:
        return 0
    try:
        value = len(msgspec.msgpack.encode(prediction.value)) * 4 if prediction.value is not None else 0
    except (TypeError, ValueError, OverflowError, RecursionError):
        return sys.maxsize
    vectors = len(prediction.embeddings or b"")
    return 32 * len(prediction.probabilities or []) + 256 * len(prediction.boxes or []) + vectors + value
