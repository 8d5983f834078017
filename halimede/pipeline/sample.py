"""A sample in the pipeline, and its conclusion."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from halimede.inference import Array
from halimede.messages import Frame, Prediction, Reply
from halimede.pipeline.inference import InferenceOutcome
from halimede.pipeline.upload_policy.policy import UploadDecision
from halimede.topic import Address
from halimede.tracing import FrameRecord

if TYPE_CHECKING:
    from halimede.pipeline.escalation import Escalation
    from halimede.pipeline.model_slot import LoadedModel
    from halimede.pipeline.observer import IntakeMetrics

#: decision for a sample that is not escalated
KEPT = UploadDecision(ask=False, hard=False)


class Conclusion(Struct, eq=False):
    """The outcome of a sample, from which its responder makes the answer.

    Attributes:
        outcome: of this worker's model or of a peer's.
        decision: whether the next tier was requested, and why.
        reply: the next tier's reply; None: the outcome is the answer.
        reason: why the outcome is the answer although the sample is hard.
        sent: the sample was uploaded.
        mixed: the fusion of both answers, if there is one; ``overruled``: its label differs from the reply's.
        requested_at: loop time of the request to the next tier, ``replied_at``: of its end; 0: no request.

    """

    outcome: InferenceOutcome
    decision: UploadDecision = KEPT
    reply: Reply | None = None
    reason: str = ""
    sent: bool = False
    mixed: Prediction | None = None
    overruled: bool = False
    requested_at: float = 0.0
    replied_at: float = 0.0


class Sample(Struct, eq=False):
    """An accepted sample. Times are loop times; those of its trace are monotonic.

    Attributes:
        intake: accepted the sample, and has its responder.
        accepted: when it was accepted; ``until``: its deadline; infinite if none is set.
        stale_at: when it is too old for a call of the model; infinite if its age does not matter.
        size: bytes that it takes until it is answered; ``pixels``: decoded ones among them.
        queued: when it was queued for the model, ``began``: when it arrived (monotonic).
        input: the model's input, if it was prepared before acceptance, for ``model``; ``scale``: the sides of its
            picture were divided by that when it was decoded.
        version: of the model that ran it; ``on_trial``: that model was a canary.
        mined: whether mining applies to it.
        reply_to, correlation: topic and correlation data of the reply to a request.
        patient: it occupies one of the few slots of samples whose source can wait.
        peer: the other edge worker whose model answered it; ``stays``: no further peer may be requested.
        decision: the decision before inference, if mining judges samples.
        uploaded: size of the upload in bytes, if the sample was encoded again for it.

    """

    frame: Frame
    intake: Intake
    trace: FrameRecord
    accepted: float
    until: float
    queued: float
    began: float = 0.0
    size: int = 0
    pixels: int = 0
    stale_at: float = math.inf
    input: Array | None = None
    scale: int = 1
    model: LoadedModel | None = None
    version: str = ""
    on_trial: bool = False
    mined: bool = False
    reply_to: Address[Reply] | None = None
    correlation: bytes = b""
    patient: bool = False
    peer: str = ""
    stays: bool = True
    decision: UploadDecision | None = None
    uploaded: int = 0


class Outbox(Protocol):
    """Holds answers until the broker acknowledges them (``AckedPublisher``)."""

    @property
    def immediate(self) -> bool:
        """Whether the next answer is sent at once."""

    @property
    def ready(self) -> bool:
        """Whether it has capacity for one more answer."""

    async def wait_ready(self) -> None:
        """Wait until it has capacity for one more answer."""


class Responder(Protocol):
    """Gives each sample its one answer without waiting. A full ``outbox`` pauses the pipeline."""

    @property
    def outbox(self) -> Outbox:
        """Holds answers until the broker acknowledges them."""

    @property
    def return_s(self) -> float:
        """Seconds of a sample's deadline to reserve for sending its answer."""

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Answer a sample. Called once for each sample."""


class Intake(Protocol):
    """An entry of samples into the pipeline: it counts and bounds the samples without an answer.

    Attributes:
        responder: answers its samples. ``escalation``: requests the next tier; None: there is no next tier.
        metrics: what is recorded of its samples.
        drops_late: whether samples are dropped after their deadline.
        gathers: whether several samples may arrive in one iteration of the event loop, to be run in one batch.

    """

    drops_late: bool
    gathers: bool

    @property
    def responder(self) -> Responder:
        """See the attributes of the class."""

    @property
    def escalation(self) -> Escalation | None:
        """See the attributes of the class."""

    @property
    def metrics(self) -> IntakeMetrics:
        """See the attributes of the class."""

    async def prepare(self, sample: Sample) -> None:
        """Make the model's input from a sample before it is queued for the model. Raises DecodeError."""

    def release_input(self, sample: Sample) -> None:
        """Release the prepared input of a sample."""

    def leave(self, sample: Sample) -> None:
        """Release a sample that has its answer, or needs none."""

    def expire(self, sample: Sample, *, hopeless: bool) -> None:
        """Drop a sample whose deadline is over, or (``hopeless``) too close for the model."""
