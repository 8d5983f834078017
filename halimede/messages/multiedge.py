"""Bodies of multi-edge inference: online workers, objects that cameras saw, joint answers, and cameras (JSON).

The edge workers of a multi-edge service share their frames. One worker of the service, the joint, brings their findings
together: it gives an object that several cameras see one identity, or makes one answer of several.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from halimede.errors import hide_secrets
from halimede.messages.base import Finite, Label, Message, Millis, Name, NonNegative, Short, Text, Uid
from halimede.messages.samples import Box, Load


class Peer(Message, kw_only=True):
    """One worker of a service, as it publishes itself to the service's other workers."""

    #: one more than the highest rank when it connected; without a cloud worker the lowest rank runs the joint
    rank: NonNegative
    #: tells its process from others of its name
    life: Short
    node: Short = ""
    #: client id of its connection for frames: a worker that takes its place continues that session
    intake: Short = ""
    #: client ids of the sessions of failed workers that it continues
    holds: Annotated[list[Short], Meta(max_length=64)] = []
    #: it stops, and has answered all that it accepted
    leaving: bool = False
    #: its capacity for frames of other workers; null: it accepts none
    share: Load | None = None
    #: the same for their findings
    join: Load | None = None


class Sighting(Message, kw_only=True):
    """One object seen by one camera at one time."""

    camera: Label
    #: seconds since 1970 by the clock of the frame's creator
    time: Finite
    box: Box
    #: id of its frame
    frame: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    #: cosine similarity to the known features of the object, in -1..1; 1 for a new one
    similarity: Finite = 1.0
    # the edge worker that answered the frame, and its node
    worker: Short = ""
    node: Short = ""


class Track(Message, kw_only=True):
    """An object that was seen: its identity across all cameras of the service, and the latest sighting."""

    identity: Uid
    sighting: Sighting
    # this is the first sighting
    new: bool = False
    #: number of sightings
    count: NonNegative = 1
    # the cameras that saw it
    cameras: Annotated[list[Label], Meta(max_length=64)] = []
    #: the mean of its features, of length 1 (float16, little endian), by which workers recognise it
    embedding: Annotated[bytes, Meta(max_length=16_384)] = b""


class IdentityQuery(Message, kw_only=True):
    """Asks where an object was seen: without ``identity`` and ``embedding``, for all objects."""

    identity: Annotated[str, Meta(max_length=64)] = ""
    #: features (float16, little endian) of which the most similar objects are the answer
    embedding: Annotated[bytes, Meta(max_length=16_384)] = b""
    # only sightings of this camera; empty: of all
    camera: Short = ""
    #: only sightings between both times, in seconds since 1970; 0: no bound
    since: Finite = 0.0
    #: only sightings between both times, in seconds since 1970; 0: no bound
    until: Finite = 0.0
    #: most sightings of one object, or most objects
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class Identity(Message, kw_only=True):
    """One object and where it was seen, the latest first."""

    identity: Uid
    # number of sightings
    count: NonNegative = 0
    # the cameras that saw it
    cameras: Annotated[list[Label], Meta(max_length=64)] = []
    # when it was seen first and last, in seconds since 1970
    first: Finite = 0.0
    last: Finite = 0.0
    #: cosine similarity to the requested features, -1..1, if any
    similarity: Finite | None = None
    sightings: Annotated[list[Sighting], Meta(max_length=1000)] = []


class IdentityAnswer(Message, kw_only=True):
    """The answer to an IdentityQuery."""

    # the worker that runs the joint
    worker: Name
    # why there is no answer; empty: there is one
    error: Text = ""
    identities: Annotated[list[Identity], Meta(max_length=1000)] = []


class CameraStatus(Message, kw_only=True):
    """The state of one camera, as the process that reads it publishes it, with counts since that process started."""

    camera: Label
    # ``connecting``: the source is being opened, ``stalled``: it sends no frames, ``failed``: it cannot be read,
    # ``stopped``: it is no longer read, ``gone``: the broker reports that the process has lost its connection
    state: Literal["connecting", "running", "stalled", "failed", "stopped", "gone"]
    #: its URL without secrets
    source: Text = ""
    #: one word: Unreachable, Unauthorized, Garbage, Stalled, Ended, Invalid, ...
    reason: Short = ""
    # the same in words
    error: Text = ""
    # the format of the source, such as h264; empty: unknown
    codec: Short = ""
    # sides of its pictures in pixels; 0: unknown
    width: NonNegative = 0
    height: NonNegative = 0
    # published frames per second
    fps: Finite = 0.0
    #: configured frames per second; 0: all
    wanted_fps: Finite = 0.0
    # published frames
    frames: NonNegative = 0
    #: dropped for newer ones, or above ``wanted_fps``
    skipped: NonNegative = 0
    #: too large or unreadable
    refused: NonNegative = 0
    #: how often the source was opened again
    reconnects: NonNegative = 0
    # bytes of the published frames
    bytes: NonNegative = 0
    #: when the last frame was taken (RFC 3339)
    last_frame: Short = ""
    #: to read and publish the last frame
    latency_ms: Millis = 0.0
    # the node of the process
    node: Short = ""
    # when the process started
    started: Short = ""

    def without_secrets(self) -> CameraStatus:
        """Return a copy with hidden secrets in its texts: other programs may publish addresses as they are."""
        texts = {name: hide_secrets(getattr(self, name)) for name in ("source", "reason", "error")}
        return structs.replace(self, **texts)


class FusedFrom(Message, kw_only=True):
    """The prediction for one camera's picture of an instant that several cameras saw."""

    camera: Short
    # the worker that answered the picture
    worker: Short = ""
    label: str | None = None
    score: Finite | None = None
    #: milliseconds between its picture and the middle of the instant
    offset_ms: Finite = 0.0


class Fused(Message, kw_only=True):
    """One instant that several cameras saw, and their joint answer."""

    # seconds since 1970, the middle of the pictures' times
    instant: Finite
    # how the predictions were combined, such as ``product``
    rule: Short
    # label and score (0..1) of the joint answer; null: it has none
    label: str | None = None
    score: Finite | None = None
    # the predictions that were combined
    sources: Annotated[list[FusedFrom], Meta(max_length=64)] = []
    #: cameras whose predictions did not arrive in time
    missing: Annotated[list[Short], Meta(max_length=64)] = []
    # the best classes and their joint probabilities, the highest first
    value: Any = None
