"""Bodies of federated training: the round of an aggregator, and the state of a trainer (JSON).

Tensors are in none of them. A tensor file is identified by its digest, and its pieces travel as those of a blob
(``BlobRequest``, ``BlobChunk``) on topics of the training job.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from halimede.messages.base import Finite, Message, Millis, Name, NonNegative, Short, Text, Uid
from halimede.messages.blobs import Digest

#: trainers of one job, and tensors of one model
MOST_TRAINERS, MOST_TENSORS = 256, 4096
#: reason of a worker of a training that gets less of a core than is promised: it takes part, slowly
STARVED = "Starved"
#: element types of tensors: plain numbers of little-endian machines
Dtype = Literal["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
Metrics = Annotated[dict[str, Finite], Meta(max_length=64)]
#: JSON within a body
Document = Annotated[str, Meta(max_length=65_536)]


class TensorSpec(Message, kw_only=True):
    """Name, element type and shape of one tensor. Names are those of the trainer, such as ``layer1.weight``."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    dtype: Dtype
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=2**31)]], Meta(max_length=8)]


class TensorFile(Message, kw_only=True):
    """A file of tensors, or the model made of them, that its publisher serves on the job's topics."""

    digest: Digest
    size: NonNegative


class Compression(Message, kw_only=True, frozen=True):  # type: ignore[misc]  # a default of a field must be frozen
    """How updates and changes of the weights are encoded: type of floats, and the share of values sent (1: all).

    What is not sent in one round is added to the next update or change (error feedback: Karimireddy et al. 2019,
    arXiv 1901.09847).
    """

    dtype: Annotated[
        Literal["float32", "float16"], Meta(description="Element type of floats in updates and changes.")
    ] = "float32"
    top_k: Annotated[
        float,
        Meta(ge=1e-6, le=1, description="Share of the values of each tensor that are sent, the largest ones; 1: all."),
    ] = 1.0

    @property
    def is_lossy(self) -> bool:
        """Whether an update leaves something out."""
        return self.top_k < 1 or self.dtype == "float16"


class TrainingRound(Message, kw_only=True):
    """The state of a job, retained: its current round, who is invited, and the weights that they begin with.

    ``epoch`` counts the processes of the aggregator, ``number`` its rounds from 1 on. An update counts only if it names
    both, and its trainer is in ``invited``. ``received`` and ``refused`` (with the reason) are the acknowledgements;
    ``counted``: whose updates made the weights of this round from those of the round before.
    ``change`` is there if weights are compressed: it makes ``weights`` of those with the digest ``base``. A trainer
    that has these fetches the change, every other one fetches ``weights``.
    ``seed`` is that of the round; ``parameters`` are for the trainers (``mu`` of FedProx).
    """

    job: Uid
    epoch: NonNegative
    number: NonNegative
    state: Literal["waiting", "open", "done", "failed"] = "waiting"
    reason: Short = ""
    message: Text = ""
    #: name of the aggregator: the source of the weights
    source: Name
    weights: TensorFile | None = None
    change: TensorFile | None = None
    base: Short = ""
    specs: Annotated[list[TensorSpec], Meta(max_length=MOST_TENSORS)] = []
    invited: Annotated[list[Name], Meta(max_length=MOST_TRAINERS)] = []
    received: Annotated[list[Name], Meta(max_length=MOST_TRAINERS)] = []
    refused: Annotated[dict[Name, Short], Meta(max_length=MOST_TRAINERS)] = {}
    counted: Annotated[list[Name], Meta(max_length=MOST_TRAINERS)] = []
    #: the weights are evaluated, and not trained
    only_evaluate: bool = False
    #: until the round ends, from the publication on
    remaining_ms: Millis = 0.0
    seed: NonNegative = 0
    parameters: Metrics = {}
    compression: Compression = Compression()
    #: of the latest weights that trainers have evaluated; ``evaluated``: their round
    metrics: Metrics = {}
    evaluated: NonNegative = 0
    #: updates that did not count so far, by reason; ``clipped`` ones counted
    dropped: Annotated[dict[Short, NonNegative], Meta(max_length=64)] = {}
    #: of a job that is done: its model
    model: TensorFile | None = None


class TrainingProgress(Message, kw_only=True):
    """The progress of a training, in the report of one of its workers; GM sums it up in ``status.training``.

    ``run`` identifies the training, ``state`` is that of the aggregator's round. ``bytes``: of tensors that the worker
    has sent and received. ``model``: the exported model of a training that is done, which the worker serves.
    ``samples`` are those of a trainer. A trainer of a learning loop that has compared the model with the present one
    reports ``compared``, its digest, with the evidence for the gate and the model's calibration (both JSON).
    """

    run: Annotated[str, Meta(max_length=80)] = ""
    state: Literal["waiting", "open", "done"] = "waiting"
    round: NonNegative = 0
    rounds: NonNegative = 0
    reason: Short = ""
    #: of the latest evaluated weights; ``evaluated``: their round
    metrics: Metrics = {}
    evaluated: NonNegative = 0
    dropped: Annotated[dict[Short, NonNegative], Meta(max_length=64)] = {}
    bytes: NonNegative = 0
    model: TensorFile | None = None
    samples: NonNegative = 0
    compared: Short = ""
    evidence: Document = ""
    calibration: Document = ""


class TrainerState(Message, kw_only=True):
    """One trainer of a job, retained and cleared by its will: its samples, and its update for a round.

    ``update`` is the file of the difference between its weights and those of the round ``epoch``, ``number``, as
    ``Compression`` encodes it. ``evaluation`` are metrics of the round's weights on the trainer's held-out samples,
    ``metrics`` those of its training.
    """

    job: Uid
    life: Short
    samples: NonNegative
    #: samples that are held out of the training
    held_out: NonNegative = 0
    #: tensors of a trainer that has weights of its own to begin with: those of a script of Sedna
    specs: Annotated[list[TensorSpec], Meta(max_length=MOST_TENSORS)] = []
    #: shape of one sample
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=2**31)]], Meta(max_length=8)] = []
    epoch: NonNegative = 0
    number: NonNegative = 0
    update: TensorFile | None = None
    metrics: Metrics = {}
    evaluation: Metrics = {}
    #: why it does not take part, such as ``DatasetEmpty``
    reason: Short = ""
    message: Text = ""
