"""Bodies of the sample path: frames and replies are msgpack, results and load are JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from halimede.messages.base import FileName, Finite, Message, Millis, Name, NonNegative, Short, Text

Vector = Annotated[list[Finite], Meta(max_length=100_000)]
#: most characters of an answer's label
MAX_LABEL_TEXT = 1024
LabelText = Annotated[str, Meta(max_length=MAX_LABEL_TEXT)]


class Box(Message, array_like=True):
    """One detection: corners in pixels of the frame, score in 0..1, class index or name."""

    x1: Finite
    y1: Finite
    x2: Finite
    y2: Finite
    score: Finite
    label: int | LabelText = 0


class PicturePoint(Message, array_like=True):
    """A point in pixels of the frame."""

    x: Finite
    y: Finite


Landmarks = Annotated[list[PicturePoint], Meta(max_length=512)]


class TextLine(Message, kw_only=True):
    """A line of text, its score in 0..1, and its corners, clockwise from the text's top left."""

    text: Text = ""
    score: Finite | None = None
    corners: Annotated[list[PicturePoint], Meta(min_length=4, max_length=4)] | None = None


class Prediction(Message, kw_only=True):
    """The output of a model for one sample: class probabilities, boxes, or any JSON value of a user's estimator."""

    label: LabelText | None = None
    score: Finite | None = None
    probabilities: Vector | None = None
    boxes: Annotated[list[Box], Meta(max_length=10_000)] | None = None
    #: features of the boxes in order (of the whole picture without boxes): consecutive vectors of equal length,
    #: float16, little endian
    embeddings: Annotated[bytes, Meta(max_length=1_048_576)] | None = None
    #: points such as eyes, in the same order
    landmarks: Annotated[list[Landmarks], Meta(max_length=10_000)] | None = None
    lines: Annotated[list[TextLine], Meta(max_length=1000)] | None = None
    value: Any = None


class Frame(Message, kw_only=True, omit_defaults=False):
    """One sample: from a camera to an edge worker, or from the edge to the cloud.

    ``id`` is 128 random bits, chosen by the frame's creator, and the same on every resend. ``deadline_ms`` is the
    time left when the frame was sent, because clocks of two machines are never compared. ``shape`` and ``dtype``
    describe ``raw`` data (C order, little endian); for ``jpeg`` and ``png`` they may be left out. ``data`` comes
    last, so that it is not copied.
    """

    v: Literal[1] = 1
    id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    service: Short = ""
    worker: Short = ""
    camera: Short = ""
    #: the name of the picture's file; the worker removes folders, and cuts it to 255 bytes
    file: Text = ""
    sequence: NonNegative = 0
    #: time of the picture: nanoseconds since 1970 by the clock of the frame's creator; 0: unknown
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
    #: the version of the model that answered, if known
    model: Short = ""
    #: in a service with tiers, the tier whose model answered; empty: the requested one
    tier: Short = ""
    #: the worker whose model answered, if it belongs to a further tier; empty: ``worker``, the requested one
    by: Annotated[str, Meta(max_length=253)] = ""
    #: why a tier answered a hard sample itself, if it did
    reason: Short = ""


class Result(Message, kw_only=True):
    """The final answer to one frame.

    Each accepted id is answered once. It is answered again, perhaps by another model, only if its worker dies or hangs
    before the broker has the acknowledgement: the first answer stands, and a consumer drops repeated ids.
    """

    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    service: Name
    camera: Short = ""
    file: FileName = ""
    sequence: NonNegative = 0
    captured_ns: NonNegative = 0
    #: in multi-edge inference ``peer`` is another edge worker, ``joint`` the fused answer of several
    by: Literal["edge", "cloud", "peer", "joint"]
    #: True = mining selected the sample for the cloud
    hard: bool = False
    #: hard, but answered by the edge; ``reason`` has the cause
    degraded: bool = False
    #: reason of a degraded answer, or ``budget``: held back; ``edge-failed``: the edge's own model failed
    reason: Short = ""
    label: str | None = None
    score: Finite | None = None
    prediction: Prediction
    #: the small model's prediction, if the cloud answered
    edge: Prediction | None = None
    #: the worker that answered
    worker: Name
    #: the node of the edge worker that received the frame
    node: Short = ""
    #: the version of the model that answered, if known
    model: Short = ""
    #: in a service with tiers, the tier whose model answered
    tier: Short = ""
    #: the edge's measure of the sample: the higher, the harder
    hardness: Finite | None = None
    #: the threshold that ``hardness`` was compared with
    cut: Finite | None = None
    #: an easy sample that was uploaded as well, to measure the accuracy of easy ones
    audit: bool = False
    #: ``prediction`` is a calibrated mixture of ``edge`` and the next tier's answer
    mixed: bool = False
    #: from acceptance to result
    total_ms: Millis = 0.0
    #: in the small model
    edge_ms: Millis = 0.0
    #: from the request to the next tier to its reply
    offload_ms: Millis = 0.0


class Load(Message, kw_only=True):
    """The capacity of a cloud worker: free places in its queue, and the time that it needs for one sample.

    ``leaving``: it stops, and answers what it has accepted. A worker that disconnects without this has failed.
    """

    credits: NonNegative
    service_ms: Millis = 0.0
    #: samples without an answer
    queued: NonNegative = 0
    #: places in its queue, free or not; 0: unknown
    places: NonNegative = 0
    leaving: bool = False
    #: its tier, in a service with tiers: only the tier before it sends requests to it
    tier: Short = ""


class HardSample(Message, kw_only=True):
    """A small picture of a hard sample, for people who want to see what the small model is unsure of.

    ``data`` is a JPEG or PNG. A worker publishes at most one a second: it is no record of all hard samples. Of
    ``count`` boxes the best are sent, in shares of the picture's width and height.
    """

    v: Literal[1] = 1
    id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    data: Annotated[bytes, Meta(max_length=65_536)]
    worker: Name
    node: Short = ""
    camera: Short = ""
    file: FileName = ""
    reason: Short = ""
    edge_label: LabelText = ""
    label: LabelText = ""
    by: Literal["edge", "cloud", "peer", "joint"]
    degraded: bool = False
    hardness: Finite | None = None
    cut: Finite | None = None
    edge_score: Finite = 0.0
    score: Finite = 0.0
    total_ms: Millis = 0.0
    captured_ns: NonNegative = 0
    edge_count: NonNegative = 0
    count: NonNegative = 0
    edge_boxes: Annotated[list[Box], Meta(max_length=64)] | None = None
    boxes: Annotated[list[Box], Meta(max_length=64)] | None = None


class TraceRequest(Message, kw_only=True):
    """Asks every worker for the recorded steps of one frame: that of the id, or without one the last that it answered.

    Without an id only edge workers answer, and only for the last frame of the namespace, of the service if there is
    one, and hard if ``hard``.
    """

    id: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""
    namespace: Short = ""
    service: Short = ""
    hard: bool = False


class Span(Message, kw_only=True):
    """One step of a frame in a worker: the essential part of an OpenTelemetry span.

    ``start_ns`` is the worker's wall clock (nanoseconds since 1970), for display only, because clocks of machines
    differ. Within a worker steps are in order; ``duration_ns`` is from a monotonic clock.
    """

    name: Short
    start_ns: NonNegative
    duration_ns: NonNegative
    attributes: Annotated[dict[Short, str | int | float | bool], Meta(max_length=32)] = {}


class TraceReply(Message, kw_only=True):
    """The steps of a frame that one worker has recorded. A worker without any does not answer."""

    worker: Name
    role: Literal["edge", "cloud"]
    namespace: Short = ""
    service: Short = ""
    node: Short = ""
    spans: Annotated[list[Span], Meta(max_length=64)] = []
    #: the frame's id
    id: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""
