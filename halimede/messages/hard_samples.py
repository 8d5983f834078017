"""Bodies about hard samples that edge workers store: requests, lists and samples."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from halimede.messages.base import FileName, Finite, Message, Name, NonNegative, Short, Text
from halimede.messages.samples import MAX_LABEL_TEXT, LabelText, Prediction, Result

FrameId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
#: most entries of one page
PAGE = 256
#: most persons that label one sample
MOST_LABELS = 16


class KeptImage(Message, kw_only=True):
    """The file of a stored sample: PNG, JPEG, or ``npy`` (NumPy's format) for arrays that are no picture.

    ``size`` is in bytes, ``width`` and ``height`` are pixels; 0 if it is no picture. ``file`` is its frame's.
    """

    form: Literal["png", "jpeg", "npy"]
    size: NonNegative
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    width: NonNegative = 0
    height: NonNegative = 0
    file: FileName = ""


class PersonLabel(Message, kw_only=True):
    """The label that a person gave a stored sample; ``by`` names the person."""

    label: Annotated[str, Meta(min_length=1, max_length=MAX_LABEL_TEXT)]
    by: Annotated[str, Meta(min_length=1, max_length=256)]


class KeptSample(Message, kw_only=True):
    """A stored sample with all predictions. ``kept_ns``: nanoseconds since 1970 by the node's clock.

    ``result`` is the final answer, ``edge`` the small model's prediction, none if it failed. Features of predictions
    are left out. ``labels`` are those of persons, one of each. ``edge_model`` and ``edge_digest`` identify the small
    model's file, ``result.model`` the version of the model that gave the result. It is an easy sample if
    ``result.audit`` is set: then ``result`` has the next tier's answer, and ``audit_share`` is the share of the easy
    samples that was audited.
    """

    v: Literal[1] = 1
    id: FrameId
    namespace: Short = ""
    kept_ns: NonNegative
    result: Result
    edge: Prediction | None = None
    labels: Annotated[list[PersonLabel], Meta(max_length=MOST_LABELS)] = []
    edge_model: Short = ""
    edge_digest: Short = ""
    audit_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    image: KeptImage


class KeptEntry(Message, kw_only=True):
    """A stored sample without its predictions. ``number`` orders the samples of one worker by age."""

    id: FrameId
    number: NonNegative
    kept_ns: NonNegative
    camera: Short = ""
    by: Short = ""
    reason: Short = ""
    edge_label: LabelText = ""
    label: LabelText = ""
    degraded: bool = False
    hardness: Finite | None = None
    cut: Finite | None = None
    edge_score: Finite | None = None
    score: Finite | None = None
    labels: Annotated[list[PersonLabel], Meta(max_length=MOST_LABELS)] = []
    image: KeptImage


class KeptRequest(Message, kw_only=True):
    """Asks edge workers for stored samples: one page of matching ones, the newest first, or with ``id`` for one.

    An empty field matches all samples. ``label`` matches the label of either model, or the final one; ``since_ns``
    is a time of the node's clock; ``stratum`` selects hard samples, or audited easy ones. ``before`` selects lower
    numbers, as a page's ``next`` says. ``person`` with ``id`` stores the label of a person, in the place of an earlier
    one of the same person; the reply has the sample without its file.
    """

    id: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""
    namespace: Short = ""
    service: Short = ""
    worker: Short = ""
    node: Short = ""
    camera: Short = ""
    label: LabelText = ""
    by: Short = ""
    reason: Short = ""
    disagree: bool = False
    stratum: Literal["", "hard", "easy"] = ""
    since_ns: NonNegative = 0
    before: NonNegative = 0
    person: PersonLabel | None = None
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = PAGE


class KeptReply(Message, kw_only=True, omit_defaults=False):
    """The answer of one worker: the number and the bytes of its samples, a page, or one sample with its file.

    ``next``: where the following page begins, 0 after the last one. ``error``: why there is no result.
    """

    v: Literal[1] = 1
    worker: Name
    namespace: Short = ""
    service: Short = ""
    node: Short = ""
    samples: NonNegative = 0
    room: NonNegative = 0
    entries: Annotated[list[KeptEntry], Meta(max_length=PAGE)] = []
    next: NonNegative = 0
    error: Text = ""
    sample: KeptSample | None = None
    data: Annotated[bytes, Meta(max_length=16_777_216)] = b""
