"""Bodies about the hard samples that edge workers store: requests for them, pages of them, and single samples.

A request goes to all edge workers, or to one. Easy samples that were audited (answered by the next tier as well, to
measure accuracy) are stored and requested in the same way. ``v`` is the version of the form of a reply or a stored
sample.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from halimede.messages.base import FileName, Finite, Message, Name, NonNegative, Short, Text
from halimede.messages.samples import MAX_LABEL_TEXT, LabelText, Prediction, Result

#: the id of a frame: 16 bytes in hexadecimal
FrameId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
#: most entries of one page
PAGE = 256
#: most persons that label one sample
MOST_LABELS = 16


class KeptImage(Message, kw_only=True):
    """The file of a stored sample."""

    # ``npy`` (NumPy's format) if the sample is no picture
    form: Literal["png", "jpeg", "npy"]
    # bytes of the file
    size: NonNegative
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    #: pixels; 0: it is no picture
    width: NonNegative = 0
    #: pixels; 0: it is no picture
    height: NonNegative = 0
    #: the name of the file that the frame was made of
    file: FileName = ""


class PersonLabel(Message, kw_only=True):
    """The label that a person gave a stored sample."""

    label: Annotated[str, Meta(min_length=1, max_length=MAX_LABEL_TEXT)]
    # the name of the person
    by: Annotated[str, Meta(min_length=1, max_length=256)]


class KeptSample(Message, kw_only=True):
    """A stored sample with all predictions; features are left out of them.

    It is an easy sample if ``result.audit`` is set: ``result`` then has the next tier's answer.
    """

    v: Literal[1] = 1
    id: FrameId
    namespace: Short = ""
    #: when it was stored: nanoseconds since 1970 by the node's clock
    kept_ns: NonNegative
    # the final answer; ``result.model`` is the version of the model that gave it
    result: Result
    #: the small model's; null: it failed
    edge: Prediction | None = None
    #: labels that persons gave it, one of each
    labels: Annotated[list[PersonLabel], Meta(max_length=MOST_LABELS)] = []
    #: the version of the small model
    edge_model: Short = ""
    # the SHA-256 of the small model
    edge_digest: Short = ""
    #: the share of easy samples that was audited
    audit_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    image: KeptImage


class KeptEntry(Message, kw_only=True):
    """A stored sample without its predictions."""

    id: FrameId
    #: orders a worker's samples: a newer one has a higher number
    number: NonNegative
    # when it was stored: nanoseconds since 1970 by the node's clock
    kept_ns: NonNegative
    camera: Short = ""
    # who gave the final answer, as in ``Result``
    by: Short = ""
    # why that worker answered, as in ``Result``
    reason: Short = ""
    # label of the small model's answer, and of the final one; empty: it has none
    edge_label: LabelText = ""
    label: LabelText = ""
    # the next tier should have answered, and did not
    degraded: bool = False
    # the number by which mining judged the sample, and the number from which it is hard
    hardness: Finite | None = None
    cut: Finite | None = None
    # score of the small model's answer, and of the final one
    edge_score: Finite | None = None
    score: Finite | None = None
    # labels that persons gave the sample
    labels: Annotated[list[PersonLabel], Meta(max_length=MOST_LABELS)] = []
    image: KeptImage


class KeptRequest(Message, kw_only=True):
    """Asks edge workers for one page of stored samples, the newest first, or with ``id`` for one sample.

    An empty field matches all samples.
    """

    #: the sample to send; empty: a page
    id: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""
    # only workers of this namespace, service, name and node answer
    namespace: Short = ""
    service: Short = ""
    worker: Short = ""
    node: Short = ""
    camera: Short = ""
    #: of the small model's answer or the final one, or of their boxes
    label: LabelText = ""
    # who gave the final answer, as in ``Result``
    by: Short = ""
    # why that worker answered, as in ``Result``
    reason: Short = ""
    # only samples to which both models gave different labels
    disagree: bool = False
    #: hard, or audited easy ones
    stratum: Literal["", "hard", "easy"] = ""
    #: only later ones: nanoseconds since 1970 by the node's clock
    since_ns: NonNegative = 0
    #: only lower numbers: the ``next`` of the page before; 0: all
    before: NonNegative = 0
    #: with ``id``: a label to store, in the place of the person's earlier one; the reply has no file
    person: PersonLabel | None = None
    # most samples of the page
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = PAGE


class KeptReply(Message, kw_only=True, omit_defaults=False):
    """The answer of one worker: a page, or one sample with its file."""

    v: Literal[1] = 1
    worker: Name
    namespace: Short = ""
    service: Short = ""
    node: Short = ""
    # number of all samples of the worker, and bytes of disk space that they take
    samples: NonNegative = 0
    room: NonNegative = 0
    # the page
    entries: Annotated[list[KeptEntry], Meta(max_length=PAGE)] = []
    #: ``before`` of a request for the following page; 0: there is none
    next: NonNegative = 0
    #: why there is no result
    error: Text = ""
    # the requested sample, and the content of its file
    sample: KeptSample | None = None
    data: Annotated[bytes, Meta(max_length=16_777_216)] = b""
