"""A sample in the pipeline, and its conclusion."""

from __future__ import annotations

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

#: of a sample that the next tier is not asked about
KEPT = UploadDecision(ask=False, hard=False)


class Conclusion(Struct, eq=False):
    """The outcome of a sample, from which its responder makes the answer.

    Attributes:
        outcome: of the model here, or of a peer's.
        decision: whether the next tier was asked, and why.
        reply: the next tier's; None: the outcome stands.
        reason: why the outcome stands although the sample is hard.
        sent: the sample went up.
        mixed: the mixture of both answers, where one was made; ``overruled``: it names another label than the reply.
        requested_at: the loop's time when the next tier was requested, ``replied_at``: when that ended; 0: it was not.

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
    """An accepted sample. Times are the loop's, but for those that belong to its trace, which are monotonic.

    Attributes:
        intake: where it came from, and who is to be answered.
        accepted: when it was accepted; ``until``: when its answer is of no more use; infinite where no deadline is set.
        size: bytes that it takes while it is inside; ``pixels``: those of it decoded.
        queued: when it began to wait for the model, ``began``: when it arrived (monotonic).
        input: the model's input, where it was prepared before it was accepted, for ``model``.
        version: of the model that has seen it; ``mined``: whether mining judges it.
        reply_to, correlation: where the answer to a request goes.
        patient: it holds one of the few slots of samples that could wait at their source.
        peer: the other edge worker whose model answered it; ``stays``: no peer may be asked any more.
        decision: what was decided before the model has seen it, where mining judges samples.
        uploaded: bytes that went up, of one that was encoded anew for that.

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
    input: Array | None = None
    model: LoadedModel | None = None
    version: str = ""
    mined: bool = False
    reply_to: Address[Reply] | None = None
    correlation: bytes = b""
    patient: bool = False
    peer: str = ""
    stays: bool = True
    decision: UploadDecision | None = None
    uploaded: int = 0


class Outbox(Protocol):
    """Where answers wait for the broker (``AckedPublisher``)."""

    @property
    def immediate(self) -> bool:
        """Whether the next answer leaves at once."""

    @property
    def ready(self) -> bool:
        """Whether one more answer can be taken."""

    async def wait_ready(self) -> None:
        """Wait until one more answer can be taken."""


class Responder(Protocol):
    """Gives each sample its one answer without waiting. A full ``outbox`` pauses the pipeline."""

    @property
    def outbox(self) -> Outbox:
        """Where answers wait for the broker."""

    @property
    def return_s(self) -> float:
        """Seconds of a sample's deadline to reserve for sending its answer."""

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Answer a sample. Called once for each."""


class Intake(Protocol):
    """An entry of samples into the pipeline: it counts and bounds the open ones.

    Attributes:
        responder: answers its samples. ``escalation``: asks the next tier about them; None: nobody does.
        metrics: what is noted of them.
        drops_late: whether samples are dropped that nobody waits for any more.
        gathers: whether several may arrive in one turn of the loop, to be run in one batch.

    """

    drops_late: bool
    gathers: bool

    @property
    def responder(self) -> Responder:
        """See above."""

    @property
    def escalation(self) -> Escalation | None:
        """See above."""

    @property
    def metrics(self) -> IntakeMetrics:
        """See above."""

    async def prepare(self, sample: Sample) -> None:
        """Make a sample the model's input before it waits for the model. Raises DecodeError."""

    def release_input(self, sample: Sample) -> None:
        """Release the prepared input of a sample."""

    def leave(self, sample: Sample) -> None:
        """Release a sample that has its answer, or needs none."""

    def expire(self, sample: Sample, *, hopeless: bool) -> None:
        """Drop a sample whose deadline is over, or (``hopeless``) too close for the model."""
