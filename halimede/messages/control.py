"""Bodies between GM, LCs and workers (JSON)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from halimede.messages.base import Label, Message, Name, NonNegative, Short, Text, Uid
from halimede.messages.counters import TaskInfo
from halimede.messages.file_facts import DatasetFacts, ModelFacts, ModelInUse
from halimede.messages.training import TrainingProgress

#: the function of a worker: small model, big model, or inference protocol
WorkerRole = Literal["edge", "cloud", "serve"]


class Delete(Message, kw_only=True):
    """GM tells a node to remove one resource. The uid protects a newer resource of the same name."""

    uid: Uid
    generation: NonNegative


class Synced(Message, kw_only=True):
    """GM has sent all resources that a sync asked for."""

    epoch: NonNegative
    count: NonNegative
    #: resources of the sync that GM has lost: the node goes on with them
    unknown: NonNegative = 0


class WorkerInfo(Message, kw_only=True, omit_defaults=False):
    """A worker's report to its LC (the seed's body; ``ownerInfo`` is Sedna's name for ``taskInfo``)."""

    name: Name
    namespace: Label
    owner_name: Name
    owner_kind: Short = "jointinferenceservice"
    kind: Short = "inference"
    status: Literal["starting", "running", "completed", "failed"]
    reason: Short = ""
    message: Text = ""
    task_info: TaskInfo | None = None
    owner_info: TaskInfo | None = None
    #: address of its health and metrics, such as http://127.0.0.1:40123
    http: Short = ""
    #: its role, and the uid of its owner: they identify workers whose names the LC did not choose
    role: Literal["edge", "cloud", "serve", ""] = ""
    owner_uid: Annotated[str, Meta(max_length=64)] = ""
    #: its tier, in a service with tiers
    tier: Short = ""
    #: seconds within which it reports again, even without a change; 0: unknown
    period_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    #: its current model; a worker that reports one can change its model without a restart
    model: ModelInUse | None = None
    #: address of its inference protocol, if it serves it
    url: Short = ""
    #: the progress of its training, if it trains
    training: TrainingProgress | None = None


class ModelOutput(Message, kw_only=True):
    """A model on a node."""

    format: Annotated[Short, Meta(description="Its format, such as onnx.")]
    url: Annotated[Text, Meta(description="Where it is, without secrets.")]


class Output(Message, kw_only=True, omit_defaults=False):
    """The seed's ``output``: the models in use and the counts of the node."""

    models: Annotated[list[ModelOutput], Meta(max_length=64, description="The models in use.")] = []
    task_info: Annotated[TaskInfo | None, Meta(description="What has been done.")] = None


#: Python files by path, each with the begin of its SHA-256; the most of one report
MAX_CODE = 64
CodeDigests = Annotated[dict[Text, Short], Meta(max_length=MAX_CODE)]


class WorkerReport(Message, kw_only=True):
    """One worker process as its LC sees it."""

    name: Name
    role: WorkerRole
    #: its name in the resource, for a service with several workers of one role
    part: Short = ""
    phase: Literal["Pending", "Running", "Failed"]
    restarts: NonNegative = 0
    reason: Short = ""
    message: Text = ""
    http: Short = ""
    model: ModelInUse | None = None
    url: Short = ""
    #: its counts, for a service with several workers of one role
    task_info: TaskInfo | None = None
    #: the progress of its training, if it trains
    training: TrainingProgress | None = None
    #: its last report, if it is overdue
    last_report: Short = ""


class NodeStatus(Message, kw_only=True):
    """One node's report on one resource: the seed's phase, status and output, then what identifies it.

    Without ``uid``, as in the seed, it is of the resource that has the name now, and acknowledges no generation.
    """

    phase: Literal["Pending", "Running", "Failed", "Ready"]
    status: Short = ""
    output: Output | None = None
    uid: Annotated[str, Meta(max_length=64)] = ""
    observed_generation: NonNegative = 0
    reason: Short = ""
    message: Text = ""
    workers: Annotated[list[WorkerReport], Meta(max_length=256)] = []
    #: facts about a Model, or about a Dataset
    model: ModelFacts | None = None
    dataset: DatasetFacts | None = None
    #: the SHA-256 of Python files of the service, by path
    code: CodeDigests = {}


class Held(Message, kw_only=True):
    """One resource that an LC holds. ``session``: a digest of its session key, from an LC that knows these keys."""

    plural: Label
    namespace: Label
    name: Name
    uid: Uid
    generation: NonNegative
    session: Short | None = None


class Sync(Message, kw_only=True):
    """An LC reports all resources that it holds, and asks for those that it should hold."""

    epoch: NonNegative
    #: the highest known epoch of GM: the node ignores lower ones
    gm_epoch: NonNegative = 0
    #: generation 0: its store was lost, but a worker runs
    holds: Annotated[list[Held], Meta(max_length=10_000)] = []
    #: uids that it deleted last: a GM that lost its store must not create them
    deleted: Annotated[list[Uid], Meta(max_length=1000)] = []


class Presence(Message, kw_only=True):
    """Birth (online) and will (offline) of an LC.

    Both carry the epoch of the connection, so that an old will is recognized. ``store`` identifies the LC's store:
    only one LC may use a node's name.
    """

    node: Name
    epoch: NonNegative
    online: bool
    version: Short = ""
    cpus: NonNegative = 0
    memory_bytes: NonNegative = 0
    labels: Annotated[dict[Short, Short], Meta(max_length=64)] = {}
    store: Short = ""
    #: address of its health and metrics
    http: Short = ""
    #: a problem for an operator: its store is full, or was damaged
    trouble: Text = ""
    #: filters and topics that the broker refuses to it
    refused: Annotated[list[Text], Meta(max_length=20)] = []


class GmPresence(Message, kw_only=True):
    """Birth and will of GM. A node follows the highest epoch that it has seen.

    ``store`` identifies GM's store: only one GM may use a broker.
    """

    epoch: NonNegative
    online: bool
    version: Short = ""
    store: Short = ""
    #: address of its page, health and metrics
    http: Short = ""
    #: filters and topics that the broker refuses to it
    refused: Annotated[list[Text], Meta(max_length=20)] = []
    #: the number of its connection since its start: a node sends a sync on each one
    connection: NonNegative = 0


class DeadLetter(Message, kw_only=True):
    """A message that could not be read. Its receiver acknowledged and counted it."""

    client: Short
    topic: Text
    reason: Text
    size: NonNegative
    #: the first bytes, in hexadecimal
    head: Annotated[str, Meta(max_length=128)] = ""
