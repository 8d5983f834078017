"""Bodies between GM, LCs and workers (JSON): presence, synchronization, reports of workers, statuses of resources.

``epoch`` orders messages: it is the number of GM's life, or of an LC's connection, and the highest is the present one.
``uid`` identifies a resource for its whole life, ``generation`` a version of its spec. A worker is a process that
answers samples or trains.
"""

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
    """GM's order to a node to remove one resource. The node keeps a resource of the same name with another ``uid``."""

    uid: Uid
    # the generation of the resource when it was deleted
    generation: NonNegative


class Synced(Message, kw_only=True):
    """GM has sent all resources that a node's ``Sync`` asked for."""

    # the epoch of GM
    epoch: NonNegative
    # resources that GM has sent for the sync
    count: NonNegative
    #: resources of the sync that GM has lost with its store: the node continues with them
    unknown: NonNegative = 0


class WorkerInfo(Message, kw_only=True, omit_defaults=False):
    """A worker's report to its LC."""

    name: Name
    namespace: Label
    # name and kind of the resource that the worker runs for
    owner_name: Name
    owner_kind: Short = "jointinferenceservice"
    # Sedna's word for what the worker does
    kind: Short = "inference"
    status: Literal["starting", "running", "completed", "failed"]
    # why the worker failed or what it lacks, in one word; empty: nothing
    reason: Short = ""
    # the same in words
    message: Text = ""
    # the worker's counts, also those before it was restarted
    task_info: TaskInfo | None = None
    # the same under Sedna's name
    owner_info: TaskInfo | None = None
    #: address of its health and metrics, such as http://127.0.0.1:40123
    http: Short = ""
    #: with `ownerUid` it identifies a worker whose name the LC did not choose
    role: Literal["edge", "cloud", "serve", ""] = ""
    # the uid of the resource that the worker runs for
    owner_uid: Annotated[str, Meta(max_length=64)] = ""
    #: its tier, in a service with tiers
    tier: Short = ""
    #: seconds within which it reports again, even without a change; 0: unknown
    period_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    #: its current model; a worker that reports one can change its model without a restart
    model: ModelInUse | None = None
    #: address of its inference protocol, if it serves it
    url: Short = ""
    # of a trainer or an aggregator
    training: TrainingProgress | None = None


class ModelOutput(Message, kw_only=True):
    """A model on a node."""

    format: Annotated[Short, Meta(description="Its format, such as onnx.")]
    url: Annotated[Text, Meta(description="Where it is, without secrets.")]


class Output(Message, kw_only=True, omit_defaults=False):
    """Sedna's ``output``: the models in use and the counts of the node."""

    models: Annotated[list[ModelOutput], Meta(max_length=64, description="The models in use.")] = []
    task_info: Annotated[TaskInfo | None, Meta(description="What has been done.")] = None


#: most Python files of one report; the files by path, each with the begin of its SHA-256
MAX_CODE = 64
CodeDigests = Annotated[dict[Text, Short], Meta(max_length=MAX_CODE)]


class WorkerReport(Message, kw_only=True):
    """One worker process as its LC sees it."""

    name: Name
    role: WorkerRole
    #: its name in the resource, for a service with several workers of one role
    part: Short = ""
    phase: Literal["Pending", "Running", "Failed"]
    # how often the LC has restarted it after it ended or hung
    restarts: NonNegative = 0
    # why it is in this phase, in one word
    reason: Short = ""
    # the same in words
    message: Text = ""
    # address of its health and metrics, such as http://127.0.0.1:40123
    http: Short = ""
    # the model that it uses, as it reports it
    model: ModelInUse | None = None
    # address of its inference protocol, if it serves it
    url: Short = ""
    #: its counts, for a service with several workers of one role
    task_info: TaskInfo | None = None
    # of a trainer or an aggregator
    training: TrainingProgress | None = None
    #: its last report, if it is overdue
    last_report: Short = ""


class NodeStatus(Message, kw_only=True):
    """One node's report on one resource: Sedna's phase, status and output, then what identifies the resource.

    Without ``uid``, as in Sedna, the report is about the resource that has the name now, and acknowledges no
    generation.
    """

    phase: Literal["Pending", "Running", "Failed", "Ready"]
    # the phase in Sedna's words
    status: Short = ""
    # the models in use and the counts of the node's workers
    output: Output | None = None
    uid: Annotated[str, Meta(max_length=64)] = ""
    # the generation of the spec that the node runs
    observed_generation: NonNegative = 0
    # why it is in this phase, in one word
    reason: Short = ""
    # the same in words
    message: Text = ""
    workers: Annotated[list[WorkerReport], Meta(max_length=256)] = []
    # facts about a Model, or about a Dataset
    model: ModelFacts | None = None
    dataset: DatasetFacts | None = None
    #: Python files of the service by path, with the begin of their SHA-256
    code: CodeDigests = {}


class Held(Message, kw_only=True):
    """One resource that an LC holds, since it is assigned to the LC's node."""

    # its kind in the plural, such as ``models``
    plural: Label
    namespace: Label
    name: Name
    uid: Uid
    generation: NonNegative
    #: a digest of its session key; null: the LC does not know these keys
    session: Short | None = None


class Sync(Message, kw_only=True):
    """An LC reports all resources that it holds, and asks for those that it should hold. ``Synced`` is the answer."""

    # the number of the LC's connection
    epoch: NonNegative
    #: the highest epoch of GM that the LC knows: it ignores messages of lower ones
    gm_epoch: NonNegative = 0
    #: generation 0: the LC's store was lost, but a worker runs
    holds: Annotated[list[Held], Meta(max_length=10_000)] = []
    #: uids that the LC deleted last: a GM that lost its store must not create them
    deleted: Annotated[list[Uid], Meta(max_length=1000)] = []


class Presence(Message, kw_only=True):
    """Whether an LC is online: the LC publishes it when it connects, and the broker (its will) when it is gone."""

    node: Name
    # the number of the LC's connection: the presence with the highest is the latest
    epoch: NonNegative
    online: bool
    # the LC's version of halimede
    version: Short = ""
    # processors of the node
    cpus: NonNegative = 0
    # memory of the node
    memory_bytes: NonNegative = 0
    # the node's labels, which selectors of resources match
    labels: Annotated[dict[Short, Short], Meta(max_length=64)] = {}
    #: identifies the LC's store: two LCs with the name of one node have two stores
    store: Short = ""
    #: address of its health and metrics
    http: Short = ""
    #: a problem for an operator: its store is full, or was damaged
    trouble: Text = ""
    #: filters and topics that the broker refuses to it
    refused: Annotated[list[Text], Meta(max_length=20)] = []


class GmPresence(Message, kw_only=True):
    """Whether GM is online: GM publishes it when it connects, and the broker (its will) when it is gone.

    A node follows the highest epoch that it has received.
    """

    # the number of GM's life: another GM, or a restarted one, has a higher one
    epoch: NonNegative
    online: bool
    # GM's version of halimede
    version: Short = ""
    #: identifies GM's store: only one GM may use a broker
    store: Short = ""
    #: address of its page, health and metrics
    http: Short = ""
    #: filters and topics that the broker refuses to it
    refused: Annotated[list[Text], Meta(max_length=20)] = []
    #: the number of its connection since its start: a node sends a sync on each one
    connection: NonNegative = 0


class DeadLetter(Message, kw_only=True):
    """A message that its receiver could not read."""

    # the client id of the receiver
    client: Short
    # the topic of the message
    topic: Text
    # why it could not be read
    reason: Text
    # bytes of the message
    size: NonNegative
    #: the first bytes, in hexadecimal
    head: Annotated[str, Meta(max_length=128)] = ""
