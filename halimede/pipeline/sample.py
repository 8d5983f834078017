"""A sample in the pipeline, its conclusion, and the interfaces of the intakes and responders that it has.

Loop time is the time of the event loop in seconds; monotonic time is that of ``time.monotonic``, in seconds.
"""

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
NOT_ESCALATED = UploadDecision(ask=False, hard=False)


class Conclusion(Struct, eq=False):
    """The outcome of a sample, from which its responder makes the answer.

    Attributes:
        outcome: of this worker's model or of a peer's.
        decision: whether the next tier was requested, and why.
        reply: the next tier's reply; None: the outcome is the answer.
        reason: why the outcome is the answer although the sample is hard; empty: it is easy, has a reply, or the model
            failed on it and no request was allowed.
        sent: the sample was uploaded.
        mixed: the fusion of the model's answer and the reply; None: there is none.
        overruled: the label of ``mixed`` differs from the reply's.
        requested_at: loop time of the request to the next tier; 0: no request.
        replied_at: loop time of the end of that request; 0: no request.

    """

    outcome: InferenceOutcome
    decision: UploadDecision = NOT_ESCALATED
    reply: Reply | None = None
    reason: str = ""
    sent: bool = False
    mixed: Prediction | None = None
    overruled: bool = False
    requested_at: float = 0.0
    replied_at: float = 0.0


class Sample(Struct, eq=False):
    """An accepted sample.

    Attributes:
        frame: as received, with its id and its data.
        intake: accepted the sample, and has its responder.
        trace: records the steps of its way.
        accepted: loop time of its acceptance.
        until: loop time of its deadline; infinite: none is set.
        queued: monotonic time at which it was queued for the model.
        began: monotonic time of its arrival; 0: not recorded.
        size: bytes of its data, which its intake counts until it is answered; 0: its intake counts none.
        pixels: bytes of its decoded pixels.
        stale_at: loop time from which it is too old for a call of the model; infinite: its age does not matter.
        input: the model's input, if it was prepared before acceptance; None: it is prepared in its batch.
        scale: the sides of its picture were divided by this when it was decoded for ``input``.
        model: the model for which ``input`` was prepared; None without ``input``.
        version: of the model that ran it; empty: none did, or it has no version.
        on_trial: the model that ran it was a canary.
        mined: mining applies to it.
        reply_to: the topic of the reply to a request; None: it is no request.
        correlation: the correlation data of that reply.
        patient: it occupies one of the few slots of samples whose source can wait.
        peer: the other edge worker whose model answered it; empty: none.
        stays: no further peer may be requested.
        decision: the decision before inference; None: mining judges predictions, or there is no mining.
        uploaded: bytes of the upload, if an encoder made it; 0: the frame's data are the upload, or there is none.

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
    """Holds answers until the broker acknowledges them; ``AckedPublisher`` is one."""

    @property
    def immediate(self) -> bool:
        """Whether the next answer is sent at once: no answer waits, and not too many are in flight."""

    @property
    def ready(self) -> bool:
        """Whether it has capacity for one more answer."""

    async def wait_ready(self) -> None:
        """Wait, without a deadline, until it has capacity for one more answer."""


class Responder(Protocol):
    """Gives each sample its one answer without waiting. While ``outbox`` is full, the pipeline runs no batch."""

    @property
    def outbox(self) -> Outbox:
        """Holds the answers until the broker acknowledges them."""

    @property
    def return_s(self) -> float:
        """Seconds of a sample's deadline to reserve for sending its answer."""

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Answer a sample by its conclusion. Called once for each sample. Does not wait."""


class Intake(Protocol):
    """An entry of samples into the pipeline: it accepts samples, and bounds those without an answer.

    Attributes:
        drops_late: samples are dropped after their deadline; else they are answered, however late.
        gathers: several samples may arrive in one iteration of the event loop, and are run in one batch then.

    """

    drops_late: bool
    gathers: bool

    @property
    def responder(self) -> Responder:
        """Answers its samples."""

    @property
    def escalation(self) -> Escalation | None:
        """Requests the next tier for its samples; None: there is no next tier."""

    @property
    def metrics(self) -> IntakeMetrics:
        """The distributions and the ledger in which its samples are recorded."""

    async def prepare(self, sample: Sample) -> None:
        """Set ``sample.input`` before the sample is queued, if this intake prepares samples. Raises DecodeError."""

    def release_input(self, sample: Sample) -> None:
        """Release the prepared input of a sample, if it has one, and the model that it was prepared for."""

    def leave(self, sample: Sample) -> None:
        """Free the room of a sample that has its answer, or needs none. Called once for each accepted sample."""

    def expire(self, sample: Sample, *, hopeless: bool) -> None:
        """Drop a sample that is too old or whose deadline is over, or (``hopeless``) too close for the model.

        This includes what ``leave`` does.
        """
