"""Bodies of multi-edge inference: online workers, findings of the joint, and status of cameras (JSON)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from halimede.errors import hide_secrets
from halimede.messages.base import Finite, Label, Message, Millis, Name, NonNegative, Short, Text, Uid
from halimede.messages.samples import Box, Load


class Peer(Message, kw_only=True):
    """One worker of a service, as its other workers see it: retained, and cleared by its will.

    ``rank`` is one more than the highest rank that existed when the worker connected. The worker with the lowest
    rank is the oldest; without a cloud worker it runs the join. ``life`` differs between two processes of one name.
    ``intake`` is the client id of its connection for frames: a worker that takes over continues that session.
    ``holds`` are the sessions of failed workers that it continues; its successor continues them as well.
    ``leaving``: it stops, and has answered all that it accepted.
    """

    rank: NonNegative
    life: Short
    node: Short = ""
    intake: Short = ""
    holds: Annotated[list[Short], Meta(max_length=64)] = []
    leaving: bool = False
    #: its capacity for frames of other workers, and for their findings; None: it accepts none
    share: Load | None = None
    join: Load | None = None


class Sighting(Message, kw_only=True):
    """One object seen by one camera at one time."""

    camera: Label
    #: seconds since 1970 by the clock of the frame's creator
    time: Finite
    box: Box
    #: the frame with the object
    frame: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    #: cosine similarity to the known features of the object, in -1..1; 1 for a new one
    similarity: Finite = 1.0
    worker: Short = ""
    node: Short = ""


class Track(Message, kw_only=True):
    """An object that was seen: its identity across all cameras of the service, and the latest sighting.

    ``embedding`` is the mean of its features (float16, little endian, of length 1), with which other workers update
    their galleries.
    """

    identity: Uid
    sighting: Sighting
    new: bool = False
    #: number of sightings, and their cameras
    count: NonNegative = 1
    cameras: Annotated[list[Label], Meta(max_length=64)] = []
    embedding: Annotated[bytes, Meta(max_length=16_384)] = b""


class IdentityQuery(Message, kw_only=True):
    """Asks where an object was seen: by identity, by features (``embedding``, float16), or for all objects (neither).

    ``since`` and ``until`` are seconds since 1970; 0: no bound. ``limit`` bounds the number of sightings, or of
    identities.
    """

    identity: Annotated[str, Meta(max_length=64)] = ""
    embedding: Annotated[bytes, Meta(max_length=16_384)] = b""
    camera: Short = ""
    since: Finite = 0.0
    until: Finite = 0.0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class Identity(Message, kw_only=True):
    """One object and where it was seen, the latest first."""

    identity: Uid
    count: NonNegative = 0
    cameras: Annotated[list[Label], Meta(max_length=64)] = []
    first: Finite = 0.0
    last: Finite = 0.0
    #: cosine similarity to the requested features, if any
    similarity: Finite | None = None
    sightings: Annotated[list[Sighting], Meta(max_length=1000)] = []


class IdentityAnswer(Message, kw_only=True):
    """The answer to an IdentityQuery."""

    worker: Name
    error: Text = ""
    identities: Annotated[list[Identity], Meta(max_length=1000)] = []


class CameraStatus(Message, kw_only=True):
    """The state of one camera: retained, and replaced by the will of the process that reads it.

    ``source`` is its URL without secrets. ``frames`` were published, ``skipped`` were dropped for newer ones or
    above ``wanted_fps``, ``refused`` were too large or unreadable. ``reconnects`` is the number of times that the
    source was opened again.
    """

    camera: Label
    state: Literal["connecting", "running", "stalled", "failed", "stopped", "gone"]
    source: Text = ""
    #: one word: Unreachable, Unauthorized, Garbage, Stalled, Ended, Invalid, ...
    reason: Short = ""
    error: Text = ""
    codec: Short = ""
    width: NonNegative = 0
    height: NonNegative = 0
    fps: Finite = 0.0
    #: configured frames per second; 0: all
    wanted_fps: Finite = 0.0
    frames: NonNegative = 0
    skipped: NonNegative = 0
    refused: NonNegative = 0
    reconnects: NonNegative = 0
    bytes: NonNegative = 0
    #: when the last frame was taken, and milliseconds to read and publish it
    last_frame: Short = ""
    latency_ms: Millis = 0.0
    node: Short = ""
    started: Short = ""

    def without_secrets(self) -> CameraStatus:
        """Return it with hidden secrets: a program that is not halimede's may publish addresses as they are."""
        texts = {name: hide_secrets(getattr(self, name)) for name in ("source", "reason", "error")}
        return structs.replace(self, **texts)


class FusedFrom(Message, kw_only=True):
    """The prediction of one source for an instant that several saw."""

    camera: Short
    worker: Short = ""
    label: str | None = None
    score: Finite | None = None
    #: milliseconds between its picture and the middle of the instant
    offset_ms: Finite = 0.0


class Fused(Message, kw_only=True):
    """One instant that several sources saw, and their common answer."""

    instant: Finite
    rule: Short
    label: str | None = None
    score: Finite | None = None
    sources: Annotated[list[FusedFrom], Meta(max_length=64)] = []
    #: sources that did not arrive in time
    missing: Annotated[list[Short], Meta(max_length=64)] = []
    value: Any = None
