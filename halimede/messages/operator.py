"""Bodies for operators and their tools (JSON): the status of resources, and requests to GM and nodes over the bus.

GM writes a ``Status`` for each resource. Without Kubernetes, ``ApiRequest`` is how clients apply and read resources.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from halimede.messages.base import Label, Message, Name, NonNegative, ResourceBody, Short, Text, Time, Uid
from halimede.messages.control import CodeDigests, Output, WorkerRole
from halimede.messages.counters import TaskInfo
from halimede.messages.file_facts import DatasetFacts, Digest, ModelFacts

#: type of the condition that the next tier of a service takes fewer samples than are hard
OVERLOAD = "Overload"


class Condition(Message, kw_only=True, omit_defaults=False):
    """A statement about a resource, in the form of Sedna and of Kubernetes. The current one is last in a list."""

    type: Annotated[Short, Meta(description="What is stated, such as Running or NameConflict.")]
    status: Annotated[Literal["True", "False", "Unknown"], Meta(description="Whether it holds.")] = "True"
    observed_generation: Annotated[NonNegative, Meta(description="The generation of the spec that it is about.")] = 0
    last_heartbeat_time: Annotated[Time, Meta(description="When GM last checked it: at least every five minutes.")] = ""
    last_transition_time: Annotated[Time, Meta(description="When its status last changed.")] = ""
    reason: Annotated[Short, Meta(description="Why, in one word.")] = ""
    message: Annotated[Text, Meta(description="Why, in words, with names and what to do.")] = ""


class Metric(Message, kw_only=True):
    """A count or ratio as text, as in Sedna's status."""

    key: Annotated[Short, Meta(description="What is counted, such as inferenceNumber or uploadCloudRatio.")]
    value: Annotated[Short, Meta(description="The number as text.")]


class NodeSummary(Message, kw_only=True):
    """One node's share of a service."""

    node: Annotated[Name, Meta(description="The node's name.")]
    online: Annotated[bool, Meta(description="Whether its LC is connected.")]
    phase: Annotated[Short, Meta(description="How the service fares there.")] = ""
    reason: Annotated[Short, Meta(description="Why, in one word.")] = ""
    message: Annotated[Text, Meta(description="Why, in words.")] = ""
    workers: Annotated[NonNegative, Meta(description="Workers of the service there.")] = 0
    task_info: Annotated[TaskInfo | None, Meta(description="What its workers have done.")] = None
    code: Annotated[
        CodeDigests, Meta(description="The Python files that it names, each with the begin of its SHA-256 there.")
    ] = {}


class WorkerSummary(Message, kw_only=True):
    """One worker of a service in which several have one role."""

    name: Annotated[Name, Meta(description="What it is called within the service.")]
    role: Annotated[WorkerRole, Meta(description="Whether it is an edge worker, or one that others ask.")]
    node: Annotated[Short, Meta(description="Where it runs; empty: nowhere yet.")] = ""
    phase: Annotated[Short, Meta(description="How it fares.")]
    reason: Annotated[Short, Meta(description="Why, in one word.")] = ""
    message: Annotated[Text, Meta(description="Why, in words.")] = ""
    output: Annotated[Output | None, Meta(description="The models that it uses, and what it has done.")] = None


class ServedVersion(Message, kw_only=True):
    """A version of a model that has been served."""

    version: Annotated[Short, Meta(description="Its name; without one the beginning of its digest.")]
    url: Annotated[Text, Meta(description="Where it came from, without secrets.")] = ""
    digest: Annotated[Digest, Meta(description="SHA-256 of its content.")] = ""
    since: Annotated[Time, Meta(description="When it was first served.")] = ""


class ChosenModel(Message, kw_only=True):
    """The Model that a worker's selector has selected."""

    worker: Annotated[Short, Meta(description="The worker: edge or cloud.")]
    model: Annotated[Short, Meta(description="The Model's name; empty: none fits.")] = ""
    changes: Annotated[
        NonNegative, Meta(description="How often another one was chosen: nodes count it as an edit.")
    ] = 0


class TrainingStatus(Message, kw_only=True):
    """The progress of a TrainingModel, and the version of its Model that the training made."""

    run: Annotated[Short, Meta(description="Identifies the training: it changes with what begins it anew.")] = ""
    state: Annotated[Short, Meta(description="waiting, open, done, or failed.")] = "waiting"
    round: Annotated[NonNegative, Meta(description="The present round.")] = 0
    rounds: Annotated[NonNegative, Meta(description="Rounds of training.")] = 0
    trainers: Annotated[NonNegative, Meta(description="Trainers that run.")] = 0
    samples: Annotated[NonNegative, Meta(description="Samples of all trainers.")] = 0
    evaluated: Annotated[NonNegative, Meta(description="The round whose weights have these metrics.")] = 0
    metrics: Annotated[
        list[Metric], Meta(max_length=64, description="Metrics of held-out samples, as text: the mean of all trainers.")
    ] = []
    dropped: Annotated[
        list[Metric], Meta(max_length=64, description="Updates that did not count, by reason, as text.")
    ] = []
    bytes: Annotated[NonNegative, Meta(description="Bytes of tensors that the aggregator has sent and received.")] = 0
    digest: Annotated[Digest, Meta(description="SHA-256 of the trained model.")] = ""
    size: Annotated[NonNegative, Meta(description="Its bytes.")] = 0
    version: Annotated[Short, Meta(description="The version of the Model that it is.")] = ""
    reason: Annotated[Short, Meta(description="Why the training ended, in one word.")] = ""
    withheld: Annotated[Text, Meta(description="Why the Model does not get a version of it.")] = ""


class Status(Message, kw_only=True, omit_defaults=False):
    """GM's view of a resource. Fields that begin with "Of a ..." have their default for other kinds."""

    phase: Annotated[Short, Meta(description="How it fares: Pending, Running, Degraded, Failed, ...")] = "Pending"
    observed_generation: Annotated[NonNegative, Meta(description="The generation of the spec that this is about.")] = 0
    conditions: Annotated[
        list[Condition], Meta(max_length=16, description="Statements on it; the present one is last and alone True.")
    ] = []
    start_time: Annotated[Time, Meta(description="When GM accepted it.")] = ""
    active: Annotated[NonNegative, Meta(description="Workers that run; of a Model or Dataset: nodes that have it.")] = 0
    failed: Annotated[NonNegative, Meta(description="Workers that have failed.")] = 0
    metrics: Annotated[list[Metric], Meta(max_length=64, description="Counts and latencies, as text.")] = []
    nodes: Annotated[
        list[NodeSummary],
        Meta(
            max_length=10_000,
            extra={"crd": {"maxItems": 100}},
            description="Each node's share: of 100 nodes at most, those with trouble first.",
        ),
    ] = []
    workers: Annotated[
        list[WorkerSummary],
        Meta(
            max_length=10_000,
            extra={"crd": {"maxItems": 100}},
            description="Of a service in which several workers have one role: each of them, 100 at most.",
        ),
    ] = []
    output: Annotated[
        Output | None,
        Meta(description="Of such a service: the models in use, and what its workers have done together."),
    ] = None
    model: Annotated[ModelFacts | None, Meta(description="Of a Model: its content, as the nodes have verified it.")] = (
        None
    )
    dataset: Annotated[DatasetFacts | None, Meta(description="Of a Dataset: what is in it.")] = None
    number_of_samples: Annotated[NonNegative | None, Meta(description="Of a Dataset: its samples.")] = None
    update_time: Annotated[Short | None, Meta(description="Of a Model or Dataset: when this last changed.")] = None
    url: Annotated[Short | None, Meta(description="Of an InferenceModel: where it is served.")] = None
    serving_version: Annotated[Short | None, Meta(description="Of an InferenceModel: the version that answers.")] = None
    chosen: Annotated[
        list[ChosenModel], Meta(max_length=8, description="Of a service that selects its models: those that it has.")
    ] = []
    training: Annotated[TrainingStatus | None, Meta(description="Of a TrainingModel: its progress and result.")] = None
    loop: Annotated[
        dict[str, Any] | None,
        Meta(description="Of a TrainingModel with a loop: its state, its candidate, and the last rounds."),
    ] = None
    versions: Annotated[
        list[ServedVersion],
        Meta(
            max_length=10, description="Versions that have been served, the latest first: what rollback goes back to."
        ),
    ] = []

    @property
    def overload(self) -> str:
        """Reason and message of the present condition ``Overload``; empty: the next tier takes all hard samples."""
        present = (c for c in self.conditions if c.type == OVERLOAD and c.status == "True")
        return next((f"{condition.reason}: {condition.message}" for condition in present), "")


class StatusDocument(Message, kw_only=True):
    """The status of one resource, which GM publishes as a retained message for monitoring."""

    api_version: Short
    kind: Short
    namespace: Label
    name: Name
    uid: Uid
    generation: NonNegative
    status: Status


class Event(Message, kw_only=True):
    """An event of a resource or a node, stored in GM's event log."""

    # orders the events of the log
    sequence: NonNegative = 0
    # when it happened
    time: Short
    type: Literal["Normal", "Warning"] = "Normal"
    # what happened, in one word
    reason: Short
    #: ``<namespace>/<plural>/<name>``, ``node/<node>`` or ``gm``
    about: Text
    message: Text = ""
    #: number of consecutive occurrences
    count: NonNegative = 1


class NodeInfo(Message, kw_only=True):
    """A node as GM sees it."""

    name: Name
    # its local controller is connected, and Kubernetes does not report it as not ready
    online: bool
    # the number of its local controller's connection
    epoch: NonNegative = 0
    # its version of halimede
    version: Short = ""
    # processors of the node
    cpus: NonNegative = 0
    # memory of the node
    memory_bytes: NonNegative = 0
    labels: Annotated[dict[Short, Short], Meta(max_length=64)] = {}
    #: services that it runs, or should run
    resources: NonNegative = 0
    #: workers in its last report, including stopping ones
    workers: NonNegative = 0
    #: an operator drains it: no workers are placed here
    drained: bool = False
    #: some resources that it holds and GM does not know, because GM has lost its store
    unknown: Annotated[list[Text], Meta(max_length=20)] = []
    # address of its health and metrics
    http: Short = ""
    #: a problem that its local controller cannot solve, such as a full disk
    trouble: Text = ""
    #: filters and topics that the broker refuses to its local controller
    refused: Annotated[list[Text], Meta(max_length=20)] = []


class ApiRequest(Message, kw_only=True):
    """A client's request to the standalone GM, which answers with an ``ApiReply``.

    ``apply`` needs ``object``; with ``metadata.resourceVersion`` in it, an outdated version is refused.
    ``apply-dry-run`` is checked and answered as ``apply``, without the object, and changes nothing. ``get`` and
    ``delete`` need ``plural`` and ``name``; ``list`` needs ``plural`` (empty namespace: all); ``events`` takes
    ``after``, ``before`` (0: no end) and ``about``; ``nodes`` takes ``name``, or nothing for all; ``delete-node``
    needs the ``name`` of an offline node; ``drain`` and ``uncordon`` need the ``name`` of a node.
    """

    op: Literal[
        "apply",
        "apply-dry-run",
        "get",
        "list",
        "delete",
        "events",
        "nodes",
        "delete-node",
        "drain",
        "uncordon",
        "version",
    ]
    # the kind of the resources in the plural, such as ``models``
    plural: Short = ""
    # ``list``: empty for all namespaces
    namespace: Short = ""
    # ``nodes``: empty for all nodes
    name: Short = ""
    # the resource to apply
    object: ResourceBody | None = None
    # only events after this sequence number
    after: NonNegative = 0
    # only events before this sequence number; 0: no end
    before: NonNegative = 0
    # only events about this, as in ``Event``; empty: all
    about: Text = ""
    # most events, resources or nodes of the reply
    limit: Annotated[int, Meta(ge=1, le=1000)] = 500


class ApiError(Message, kw_only=True):
    """Why a request was refused."""

    reason: Literal["Invalid", "NotFound", "Conflict", "NotAllowed", "Internal"]
    # the reason in words, with what to do
    message: Text
    #: the invalid field, such as ``spec.url``, if there is one
    field: Text = ""


class ApiReply(Message, kw_only=True):
    """The answer to an ``ApiRequest``: an error, or the fields that belong to the operation."""

    error: ApiError | None = None
    #: created, configured, unchanged, deleted, drained or uncordoned
    outcome: Short = ""
    # ``get``, ``apply`` and ``delete``: the resource; ``delete``: null if only nodes had it
    object: ResourceBody | None = None
    # ``list``: the resources
    items: Annotated[list[ResourceBody], Meta(max_length=10_000)] = []
    events: Annotated[list[Event], Meta(max_length=1000)] = []
    nodes: Annotated[list[NodeInfo], Meta(max_length=10_000)] = []
    #: there are more resources or nodes than the reply has
    truncated: bool = False
    # the result of other operations: ``version``, ``drain``, ``uncordon``
    value: Any = None


class LogsRequest(Message, kw_only=True):
    """Asks a node for a part of the log of one of its workers.

    The receiver checks the names, so that a request with an invalid name gets an answer.
    """

    namespace: Short
    worker: Short
    #: where the part begins, in bytes; a negative number counts from the end
    offset: int = -65_536
    # most bytes of the part
    limit: Annotated[int, Meta(ge=1, le=1_048_576)] = 262_144


class LogsReply(Message, kw_only=True):
    """A part of a worker's log, or the reason why there is none."""

    # why there is no text; empty: there is some, or the log has not grown
    error: Text = ""
    text: str = ""
    #: the start of the next part; below the requested one if the log was rotated
    offset: NonNegative = 0
