"""Bodies of federated training (JSON): the round of an aggregator, and the state of a trainer.

A training job has one aggregator, which opens rounds and makes the next weights, and several trainers, which send
updates (the difference that their training makes). Tensors are in files, which a digest identifies; their pieces travel
as those of a blob (``BlobRequest``, ``BlobChunk``) on topics of the job.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from halimede.messages.base import Finite, Message, Millis, Name, NonNegative, Short, Text, Uid
from halimede.messages.blobs import Digest

#: most trainers of one job, and most tensors of one model
MOST_TRAINERS, MOST_TENSORS = 256, 4096
#: reason of a trainer that gets less processor time than its job promises: it takes part, slowly
STARVED = "Starved"
#: element types of tensors: plain numbers of little-endian machines
Dtype = Literal["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
#: numbers by name, such as accuracy and loss
Metrics = Annotated[dict[str, Finite], Meta(max_length=64)]
#: JSON within a body
Document = Annotated[str, Meta(max_length=65_536)]


class TensorSpec(Message, kw_only=True):
    """Name, element type and shape of one tensor. The trainer gives the names, such as ``layer1.weight``."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    dtype: Dtype
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=2**31)]], Meta(max_length=8)]


class TensorFile(Message, kw_only=True):
    """A file of tensors, or the model made of them, with its bytes. Its publisher serves it on the job's topics."""

    digest: Digest
    size: NonNegative


class Compression(Message, kw_only=True, frozen=True):  # type: ignore[misc]  # a default of a field must be frozen
    """How updates and changes of the weights are encoded. What is not sent is added to those of the next round."""

    # error feedback: Karimireddy et al. 2019, arXiv 1901.09847

    dtype: Annotated[
        Literal["float32", "float16"], Meta(description="Element type of floats in updates and changes.")
    ] = "float32"
    top_k: Annotated[
        float,
        Meta(ge=1e-6, le=1, description="Share of the values of each tensor that are sent, the largest ones; 1: all."),
    ] = 1.0

    @property
    def is_lossy(self) -> bool:
        """Whether an update differs from what the training made: fewer values, or less precise ones."""
        return self.top_k < 1 or self.dtype == "float16"


class TrainingRound(Message, kw_only=True):
    """The state of a job, retained: its current round, who is invited, and the weights that trainers begin with.

    An update counts only if it names ``epoch`` and ``number`` of the round, and its trainer is in ``invited``.
    """

    # identifies the job
    job: Uid
    #: counts the processes of the aggregator
    epoch: NonNegative
    #: counts its rounds, from 1 on
    number: NonNegative
    state: Literal["waiting", "open", "done", "failed"] = "waiting"
    # why the job waits or ended, in one word
    reason: Short = ""
    # what the job waits for; empty: nothing
    message: Text = ""
    #: name of the aggregator: the source of the weights
    source: Name
    # the weights of the round
    weights: TensorFile | None = None
    #: with compression: makes ``weights`` of those with the digest ``base``; a trainer without them fetches ``weights``
    change: TensorFile | None = None
    base: Short = ""
    # the tensors of the weights
    specs: Annotated[list[TensorSpec], Meta(max_length=MOST_TENSORS)] = []
    # names of the trainers that take part in the round
    invited: Annotated[list[Name], Meta(max_length=MOST_TRAINERS)] = []
    #: trainers whose updates arrived: the acknowledgement
    received: Annotated[list[Name], Meta(max_length=MOST_TRAINERS)] = []
    #: trainers whose updates were refused, with the reason
    refused: Annotated[dict[Name, Short], Meta(max_length=MOST_TRAINERS)] = {}
    #: trainers whose updates made the weights of this round from those of the round before
    counted: Annotated[list[Name], Meta(max_length=MOST_TRAINERS)] = []
    #: the weights are evaluated, and not trained
    only_evaluate: bool = False
    #: until the round ends, from the publication on
    remaining_ms: Millis = 0.0
    # the seed of the round's random numbers
    seed: NonNegative = 0
    #: for the trainers, such as ``mu`` of FedProx
    parameters: Metrics = {}
    # how trainers encode their updates
    compression: Compression = Compression()
    #: of the latest weights that trainers have evaluated; ``evaluated``: their round
    metrics: Metrics = {}
    evaluated: NonNegative = 0
    #: updates that did not count so far, by reason; ``clipped`` ones counted
    dropped: Annotated[dict[Short, NonNegative], Meta(max_length=64)] = {}
    #: of a job that is done: its model
    model: TensorFile | None = None


class TrainingProgress(Message, kw_only=True):
    """The progress of a training, in the report of one of its workers; GM sums it up in ``status.training``."""

    #: identifies the training
    run: Annotated[str, Meta(max_length=80)] = ""
    # the state of the aggregator's round
    state: Literal["waiting", "open", "done"] = "waiting"
    # the present round, and how many there will be
    round: NonNegative = 0
    rounds: NonNegative = 0
    # why the training waits or ended, or why the trainer does not take part, in one word
    reason: Short = ""
    # of a trainer: those of its last training
    #: of the latest evaluated weights; ``evaluated``: their round
    metrics: Metrics = {}
    evaluated: NonNegative = 0
    # updates that did not count, by reason
    dropped: Annotated[dict[Short, NonNegative], Meta(max_length=64)] = {}
    #: of tensors that the worker has sent and received
    bytes: NonNegative = 0
    #: the exported model of a training that is done, which the worker serves
    model: TensorFile | None = None
    #: of the trainer
    samples: NonNegative = 0
    #: in a learning loop: digest of the model that the trainer has compared with the present one. ``evidence`` is the
    #: result for the gate, ``calibration`` the calibration of that model
    compared: Short = ""
    # the result of that comparison for the gate, and the calibration of that model
    evidence: Document = ""
    calibration: Document = ""


class TrainerState(Message, kw_only=True):
    """One trainer of a job: its samples, and its update for a round. The broker clears it when the trainer is gone."""

    # identifies the job
    job: Uid
    # differs between two processes of one trainer
    life: Short
    # samples to train on
    samples: NonNegative
    #: samples that are held out of the training
    held_out: NonNegative = 0
    #: tensors of a trainer that has weights of its own to begin with: those of a script of Sedna
    specs: Annotated[list[TensorSpec], Meta(max_length=MOST_TENSORS)] = []
    #: shape of one sample
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=2**31)]], Meta(max_length=8)] = []
    # the round of ``update``, ``metrics`` and ``evaluation``: numbers of its ``TrainingRound``
    epoch: NonNegative = 0
    number: NonNegative = 0
    #: the difference between its weights and those of the round, as ``Compression`` encodes it
    update: TensorFile | None = None
    #: of its training
    metrics: Metrics = {}
    #: of the round's weights, on its held-out samples
    evaluation: Metrics = {}
    #: why it does not take part, in one word, such as ``DatasetEmpty``
    reason: Short = ""
    # the same in words
    message: Text = ""
