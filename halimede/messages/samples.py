"""Bodies of the sample path: frames and replies are msgpack, results and load are JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from halimede.messages.base import Finite, Message, Millis, Name, NonNegative, Short, Text

Vector = Annotated[list[Finite], Meta(max_length=100_000)]


class Box(Message, array_like=True):
    """One detection: corners in pixels of the frame, score in 0..1, class index or name."""

    x1: Finite
    y1: Finite
    x2: Finite
    y2: Finite
    score: Finite
    label: int | str = 0


class Prediction(Message, kw_only=True):
    """What a model says of one sample: class probabilities, boxes, or any JSON value of a user's own estimator."""

    label: Annotated[str, Meta(max_length=1024)] | None = None
    score: Finite | None = None
    probabilities: Vector | None = None
    boxes: Annotated[list[Box], Meta(max_length=10_000)] | None = None
    #: features of the boxes in their order (of the whole picture where there are none): vectors of equal length, one
    #: after the other, float16, little endian
    embeddings: Annotated[bytes, Meta(max_length=1_048_576)] | None = None
    value: Any = None


class Frame(Message, kw_only=True, omit_defaults=False):
    """One sample on its way: camera to edge, or edge to cloud. ``data`` comes last, so that it is not copied.

    ``id`` is 128 bits, chosen by whoever makes the frame, the same on every resend. ``deadline_ms`` is the time left
    when it was sent: clocks of two machines are never compared. ``shape`` and ``dtype`` describe ``raw`` data
    (C order, little endian); for ``jpeg`` and ``png`` they may be left out.
    """

    v: Literal[1] = 1
    id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    service: Short = ""
    worker: Short = ""
    camera: Short = ""
    sequence: NonNegative = 0
    #: when the picture was taken: nanoseconds since 1970 by the clock of whoever took it; 0: not known
    captured_ns: NonNegative = 0
    deadline_ms: Millis = 0.0
    encoding: Literal["raw", "jpeg", "png"]
    dtype: Annotated[str, Meta(max_length=16)] = ""
    shape: Annotated[list[Annotated[int, Meta(ge=1, le=65_535)]], Meta(max_length=4)] = []
    edge: Prediction | None = None
    data: memoryview


class Reply(Message, kw_only=True, omit_defaults=False):
    """A cloud worker's answer to one frame: a prediction or an error, never both."""

    v: Literal[1] = 1
    id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    worker: Name
    prediction: Prediction | None = None
    #: ``expired``, ``overloaded``, ``invalid``, ``quarantined`` or ``failed``
    error: Short = ""
    message: Text = ""
    queue_ms: Millis = 0.0
    compute_ms: Millis = 0.0
    batch: NonNegative = 0
    #: the version of the model that answered, where it is known
    model: Short = ""
    #: of a service with tiers, the one whose model answered; empty: the one that was asked
    tier: Short = ""
    #: the worker whose model answered, where a further tier's did; empty: ``worker``, which is who was asked
    by: Annotated[str, Meta(max_length=253)] = ""
    #: why a tier answered itself what it found hard, if it did
    reason: Short = ""


class Result(Message, kw_only=True):
    """The final answer to one frame. Exactly one leaves for each accepted id; a consumer drops repeated ids."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    service: Name
    camera: Short = ""
    sequence: NonNegative = 0
    captured_ns: NonNegative = 0
    #: of multi-edge inference: ``peer`` is another edge worker, ``joint`` what several of them say together
    by: Literal["edge", "cloud", "peer", "joint"]
    #: True = mining asked for the cloud
    hard: bool = False
    #: hard, but answered by the edge all the same; ``reason`` says why
    degraded: bool = False
    #: of a degraded answer; ``edge-failed`` in another one: the edge's own model failed on the sample
    reason: Short = ""
    label: str | None = None
    score: Finite | None = None
    prediction: Prediction
    #: what the small model said, where the cloud gave the answer
    edge: Prediction | None = None
    #: whose answer it is
    worker: Name
    #: the node of the edge worker that took the frame, whoever answered it
    node: Short = ""
    #: the version of the model that gave the answer, where it is known
    model: Short = ""
    #: of a service with tiers, the one whose model answered
    tier: Short = ""
    #: why the edge asked, or did not: hardness (the higher, the harder) and the cut that it was compared with
    hardness: Finite | None = None
    cut: Finite | None = None
    #: an easy sample that was sent up all the same, to measure how good easy ones are
    audit: bool = False
    #: ``prediction`` is a calibrated mixture of what ``edge`` and the next tier said
    mixed: bool = False
    #: from acceptance to result, and the parts spent in the small model and in the offload
    total_ms: Millis = 0.0
    edge_ms: Millis = 0.0
    offload_ms: Millis = 0.0


class Load(Message, kw_only=True):
    """What a cloud worker can take now: free places in its queue, and the time one sample takes it.

    ``leaving``: it stops in good order, and answers what it has; without that word before it is gone, it has died.
    """

    credits: NonNegative
    service_ms: Millis = 0.0
    #: samples that it has and has not answered yet
    queued: NonNegative = 0
    leaving: bool = False
    #: of a service with tiers, the one that it is of: only the tier before it asks it
    tier: Short = ""


class HardSample(Message, kw_only=True, omit_defaults=False):
    """A hard sample as a small picture, for people who want to see what the small model is unsure of.

    ``data`` is a JPEG or PNG thumbnail. It is a glimpse, at most one a second from a worker, never a record.
    """

    v: Literal[1] = 1
    id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    camera: Short = ""
    worker: Name
    node: Short = ""
    by: Literal["edge", "cloud", "peer", "joint"]
    degraded: bool = False
    reason: Short = ""
    edge_label: Annotated[str, Meta(max_length=1024)] = ""
    edge_score: Finite = 0.0
    label: Annotated[str, Meta(max_length=1024)] = ""
    score: Finite = 0.0
    data: Annotated[bytes, Meta(max_length=65_536)]


class TraceRequest(Message, kw_only=True):
    """Ask every worker what it remembers of one frame."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class Span(Message, kw_only=True):
    """One step of a frame's way through a worker: an OpenTelemetry span in short.

    ``start_ns`` is that worker's wall clock (nanoseconds since 1970), for show: clocks of machines differ. Within a
    worker steps are in order; ``duration_ns`` is from a monotonic clock.
    """

    name: Short
    start_ns: NonNegative
    duration_ns: NonNegative
    attributes: Annotated[dict[Short, str | int | float | bool], Meta(max_length=32)] = {}


class TraceReply(Message, kw_only=True):
    """What one worker remembers of a frame: nothing is said by one that knows nothing of it."""

    worker: Name
    role: Literal["edge", "cloud"]
    namespace: Short = ""
    service: Short = ""
    node: Short = ""
    spans: Annotated[list[Span], Meta(max_length=64)] = []
