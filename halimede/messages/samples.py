"""Bodies of the sample path: from a camera's ``Frame`` to its ``Result``, with the requests to further tiers between.

Bodies with pixels (``Frame``, ``HardSample``) and ``Reply`` are msgpack, others JSON. ``v`` is the version of a body's
form.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from halimede.messages.base import FileName, Finite, Label, Message, Millis, Name, NonNegative, Short, Text

#: numbers, such as the probabilities of classes
Vector = Annotated[list[Finite], Meta(max_length=100_000)]
#: most characters of an answer's label
MAX_LABEL_TEXT = 1024
#: name of a class, or a text that a model read
LabelText = Annotated[str, Meta(max_length=MAX_LABEL_TEXT)]


class Box(Message, array_like=True):
    """One detection: left, top, right and bottom in pixels of the frame, score in 0..1, index or name of the class."""

    x1: Finite
    y1: Finite
    x2: Finite
    y2: Finite
    score: Finite
    label: int | LabelText = 0


class PicturePoint(Message, array_like=True):
    """A point in pixels of the frame, from its top left corner."""

    x: Finite
    y: Finite


#: the points of one object
Landmarks = Annotated[list[PicturePoint], Meta(max_length=512)]


class TextLine(Message, kw_only=True):
    """A line of text that a model read."""

    text: Text = ""
    # 0..1; null: the model gives none
    score: Finite | None = None
    # four corners, clockwise from the text's top left; null: the place is unknown
    corners: Annotated[list[PicturePoint], Meta(min_length=4, max_length=4)] | None = None


class Prediction(Message, kw_only=True):
    """The output of a model for one sample. Fields that the kind of the model does not have are null."""

    # name of the best class, or a text
    label: LabelText | None = None
    # probability of the best class, or certainty of the text, 0..1
    score: Finite | None = None
    # probability of each class, in the order of the model's classes
    probabilities: Vector | None = None
    # detected objects
    boxes: Annotated[list[Box], Meta(max_length=10_000)] | None = None
    #: features of the boxes in order (of the whole picture without boxes): consecutive vectors of equal length,
    #: float16, little endian
    embeddings: Annotated[bytes, Meta(max_length=1_048_576)] | None = None
    #: points such as eyes, one list for each box in the same order
    landmarks: Annotated[list[Landmarks], Meta(max_length=10_000)] | None = None
    # lines of text that a model read
    lines: Annotated[list[TextLine], Meta(max_length=1000)] | None = None
    # any JSON value of a user's estimator
    value: Any = None


class Frame(Message, kw_only=True, omit_defaults=False):
    """One sample: from a camera to an edge worker, or from the edge to the cloud."""

    v: Literal[1] = 1
    #: 16 random bytes, chosen by the frame's creator, and the same on every resend
    id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    # of a request: the service and the edge worker that sends it
    service: Short = ""
    worker: Short = ""
    camera: Short = ""
    #: the name of the picture's file; the worker removes folders, and cuts it to 255 bytes
    file: Text = ""
    # the number of the frame among those of its camera
    sequence: NonNegative = 0
    #: time of the picture: nanoseconds since 1970 by the clock of the frame's creator; 0: unknown
    captured_ns: NonNegative = 0
    # 0: the sender sets no deadline
    #: time left when the frame was sent, since clocks of two machines are never compared
    deadline_ms: Millis = 0.0
    encoding: Literal["raw", "jpeg", "png"]
    #: element type of ``raw`` data, such as uint8
    dtype: Annotated[str, Meta(max_length=16)] = ""
    #: of ``raw`` data (C order, little endian)
    shape: Annotated[list[Annotated[int, Meta(ge=1, le=65_535)]], Meta(max_length=4)] = []
    # of a request: the small model's prediction, if the next tier needs it
    edge: Prediction | None = None
    # the file of a jpeg or png; of ``raw``: the elements in C order, little endian
    data: memoryview


class Reply(Message, kw_only=True, omit_defaults=False):
    """A cloud worker's answer to one frame. It has a prediction or an error, never both."""

    v: Literal[1] = 1
    # that of the frame
    id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    # the worker that sends the reply
    worker: Name
    prediction: Prediction | None = None
    #: ``expired``, ``overloaded``, ``invalid``, ``quarantined`` or ``failed``
    error: Short = ""
    # the error in words
    message: Text = ""
    # how long the sample waited for the model, and how long the model took
    queue_ms: Millis = 0.0
    compute_ms: Millis = 0.0
    # samples of the model's call
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

    Each accepted id is answered once. If its worker dies or hangs before it has acknowledged the frame to the broker,
    the id may be answered again, perhaps by another model: the first answer stands, and a consumer drops the others.
    """

    # that of the frame, hexadecimal
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    service: Name
    # camera, file, sequence number and time (nanoseconds since 1970; 0: unknown) of the frame
    camera: Short = ""
    file: FileName = ""
    sequence: NonNegative = 0
    captured_ns: NonNegative = 0
    #: in multi-edge inference ``peer`` is another edge worker, ``joint`` the fused answer of several
    by: Literal["edge", "cloud", "peer", "joint"]
    #: mining selected the sample for the cloud
    hard: bool = False
    #: hard, but answered by the edge; ``reason`` has the cause
    degraded: bool = False
    #: reason of a degraded answer, or ``budget``: held back; ``edge-failed``: the edge's own model failed
    reason: Short = ""
    # label and score of ``prediction``
    label: str | None = None
    score: Finite | None = None
    # the whole answer
    prediction: Prediction
    # width and height of the picture in pixels, if the answer has boxes and the service has ``occupancy``
    size: Annotated[list[Annotated[int, Meta(ge=1, le=65_535)]], Meta(min_length=2, max_length=2)] | None = None
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
    """The capacity of a cloud worker, which it publishes to the workers that send requests."""

    # how many requests it takes now: free places in its queue
    credits: NonNegative
    # the time that its model needs for one sample
    service_ms: Millis = 0.0
    #: samples without an answer
    queued: NonNegative = 0
    #: places in its queue, free or not; 0: unknown
    places: NonNegative = 0
    #: it stops, and answers what it accepted; a worker that disconnects without this has failed
    leaving: bool = False
    #: its tier, in a service with tiers: only the tier before it sends requests to it
    tier: Short = ""


class HardSample(Message, kw_only=True):
    """A small picture of a hard sample, for people who want to see what the small model is unsure of.

    ``data`` is a JPEG or PNG. The best boxes are sent, in shares of the picture's width and height. Other fields are
    those of the sample's ``Result``.
    """

    v: Literal[1] = 1
    id: Annotated[bytes, Meta(min_length=16, max_length=16)]
    # a JPEG or PNG
    data: Annotated[bytes, Meta(max_length=65_536)]
    # the edge worker that publishes the picture, unlike in ``Result``
    worker: Name
    node: Short = ""
    camera: Short = ""
    file: FileName = ""
    reason: Short = ""
    # label, or else the lines of text, of the small model's answer and of the final one; empty: it has neither
    edge_label: LabelText = ""
    label: LabelText = ""
    by: Literal["edge", "cloud", "peer", "joint"]
    degraded: bool = False
    hardness: Finite | None = None
    cut: Finite | None = None
    # score of the small model's answer, and of the final one
    edge_score: Finite = 0.0
    score: Finite = 0.0
    total_ms: Millis = 0.0
    captured_ns: NonNegative = 0
    # number of the small model's boxes, and of the final ones
    edge_count: NonNegative = 0
    count: NonNegative = 0
    # the best of these boxes, with corners as shares of the picture's width and height
    edge_boxes: Annotated[list[Box], Meta(max_length=64)] | None = None
    boxes: Annotated[list[Box], Meta(max_length=64)] | None = None


class PresentObjects(Message, kw_only=True):
    """The objects of one label and zone."""

    label: LabelText = ""
    # the zone; empty: the whole picture
    zone: Short = ""
    # how many
    count: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    # time of the frame with which the first of them entered, as in ``OccupancyEvent``
    since_ns: NonNegative


class OccupancyEvent(Message, kw_only=True):
    """An object has entered or left a camera's picture or zone, or their number has changed.

    Drop a second one of the same id.
    """

    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    # counts the events of the camera
    sequence: NonNegative
    # the first object has entered, the last one has left, or there are more or fewer
    type: Literal["entered", "left", "changed"]
    service: Name
    camera: Label
    label: LabelText = ""
    #: empty: the whole picture
    zone: Short = ""
    # objects there now, and before the event
    count: NonNegative
    before: NonNegative
    # time of the frame that caused the event: nanoseconds since 1970 by the camera's clock, or by the worker's if the
    # frame has no time; and of the frame with which the first object entered
    time_ns: NonNegative
    since_ns: NonNegative
    #: id of the best result since the last event
    frame: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""
    # the highest score of an object in it
    score: Finite = 0.0
    #: its objects, in shares of the picture's sides
    boxes: Annotated[list[Box], Meta(max_length=32)] = []
    #: all objects after the event
    present: Annotated[list[PresentObjects], Meta(max_length=256)] = []


class TraceRequest(Message, kw_only=True):
    """Asks every worker for the recorded steps of one frame."""

    # the frame's id; empty: the last answered frame, for which only edge workers reply
    id: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""
    # without an id: the namespace and the service of the frame; an empty service: any
    namespace: Short = ""
    service: Short = ""
    #: without an id: the last hard frame
    hard: bool = False


class Span(Message, kw_only=True):
    """One step of a frame in a worker: the essential part of an OpenTelemetry span."""

    name: Short
    #: by the worker's wall clock (nanoseconds since 1970), for display only, because clocks of machines differ
    start_ns: NonNegative
    #: by a monotonic clock
    duration_ns: NonNegative
    # facts about the step, such as the size of the batch
    attributes: Annotated[dict[Short, str | int | float | bool], Meta(max_length=32)] = {}


class TraceReply(Message, kw_only=True):
    """The steps of a frame that one worker has recorded. A worker without recorded steps does not answer."""

    worker: Name
    role: Literal["edge", "cloud"]
    namespace: Short = ""
    service: Short = ""
    node: Short = ""
    # in the order in which the worker recorded them
    spans: Annotated[list[Span], Meta(max_length=64)] = []
    #: the frame's id
    id: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""
