"""Environment variables of aggregators and trainers, in addition to those of every worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from halimede.api.trainingmodel import CPU_SHARE, KIND, MetricTarget, ShareOfCore, TrainingLimits
from halimede.environment import require
from halimede.errors import InvalidFieldError
from halimede.messages import Compression
from halimede.messages.base import Name, NonNegative
from halimede.messages.training import MOST_TRAINERS
from halimede.worker.settings import WorkerSettings, read, read_json

#: kind of the resource that is the owner of the workers
OWNER_KIND = KIND
#: the kinds of workers of a training job
Program = Literal["aggregator", "trainer"]


class JobSettings(Struct, rename="camel", kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A training job, as all its workers know it: the JSON in the variable TRAINING.

    Attributes:
        trainers: the node of each worker that may take part, by the worker's name.
        entry: the user's trainer: ``Perceptron``, an installed one, ``module:Class`` or ``file.py:Class``.
        parameters: the trainer's parameters.
        initial_weights: path of a file of tensors on the aggregator's node to begin with; empty: those of the trainer.
        aggregation: name of the algorithm that makes new weights of the updates.
        aggregation_parameters: its parameters.
        compression: of updates and of the changes of weights.
        rounds: the number of rounds.
        clients_per_round: trainers that are drawn for each round; 0: all.
        min_clients: updates that a round needs.
        round_deadline_s: seconds for the updates of a round.
        target: the metric at which the job ends earlier; None: it has none.
        run: identifies a training within the life of its resource: another run begins from the start.
        seed: determines all random numbers of the job.
        limits: of each step of the trainer, and the hours at which it may train.
        cpu_share: the share of a core (0..1) that each worker is promised; 0: none.
        since_s: in a learning loop: kept samples of services count from this time on, in seconds since 1970.
        base: in a learning loop: the version of the present model. If an earlier training of this job made it, its
            weights are the first ones.
        compares: in a learning loop: trainers compare the trained model with that of MODEL_URL.

    """

    trainers: Annotated[dict[Name, Name], Meta(min_length=1, max_length=MOST_TRAINERS)]
    entry: Annotated[str, Meta(min_length=1, max_length=256)] = "Perceptron"
    parameters: dict[str, str] = {}
    initial_weights: Annotated[str, Meta(max_length=4096)] = ""
    aggregation: str = "FedAvg"
    aggregation_parameters: dict[str, str] = {}
    compression: Compression = Compression()
    rounds: Annotated[int, Meta(ge=1, le=10_000)] = 20
    clients_per_round: Annotated[int, Meta(ge=0, le=MOST_TRAINERS)] = 0
    min_clients: Annotated[int, Meta(ge=1, le=MOST_TRAINERS)] = 1
    round_deadline_s: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    target: MetricTarget | None = None
    run: Annotated[str, Meta(max_length=16, pattern="^[a-z0-9]*$")] = ""
    seed: NonNegative = 0
    limits: TrainingLimits = msgspec.field(default_factory=TrainingLimits)
    cpu_share: ShareOfCore = CPU_SHARE
    since_s: Annotated[float, Meta(ge=0)] = 0.0
    base: str = ""
    compares: bool = False


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The settings of one worker of a training job.

    Attributes:
        worker: the settings that every worker has.
        job: the settings of the job.
        data: path of a trainer's samples: a data set, or the folder of the samples that a service keeps; ``Path()``:
            none, for an aggregator or a script, which has its samples itself.
        archive: path of the file with the trainer's class; empty: it is installed.
        reference: path of the first data set, if ``data`` are samples that a service keeps; empty: there is none.

    """

    worker: WorkerSettings
    job: JobSettings
    data: Path = Path()
    archive: str = ""
    reference: str = ""

    @property
    def identity(self) -> str:
        """What identifies the training: the uid of its resource, and its run."""
        return f"{self.worker.uid}.{self.job.run}" if self.job.run else self.worker.uid


def read_training(program: Program, environ: Mapping[str, str]) -> TrainingSettings:
    """Return the settings in ``environ`` of an aggregator or a trainer. Raises InvalidFieldError."""
    require(environ, "TRAINING")
    job = read_json(environ, "TRAINING", JobSettings)
    if job.min_clients > len(job.trainers):
        fix = f"write at most the number of trainers, {len(job.trainers)}"
        raise InvalidFieldError("TRAINING.minClients", job.min_clients, fix)
    if 0 < job.clients_per_round < job.min_clients:
        raise InvalidFieldError("TRAINING.clientsPerRound", job.clients_per_round, "write at least minClients, or 0")
    role: Literal["edge", "cloud"] = "cloud" if program == "aggregator" else "edge"
    worker = read(role, environ, own_estimator=True, mines=False)
    require(environ, "SERVICE_UID")
    archive = environ.get("ARCHIVE_URL", "")
    if program == "aggregator":
        first = environ.get("INITIAL_URL") or job.initial_weights
        return TrainingSettings(worker, msgspec.structs.replace(job, initial_weights=first), archive=archive)
    if job.trainers.get(worker.worker) != worker.node:
        raise InvalidFieldError("WORKER_NAME", worker.worker, "use a name of TRAINING.trainers, on its node")
    data, reference = Path(require(environ, "TRAIN_DATASET_URL")), environ.get("TRAIN_REFERENCE_URL", "")
    return TrainingSettings(worker, job, data, archive, reference)
