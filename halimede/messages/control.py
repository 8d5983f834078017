"""Bodies between GM, LCs and workers (JSON)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from halimede.messages.base import Count, Label, Message, Name, Short, Text, Uid
from halimede.messages.facts import DatasetFacts, ModelFacts, ModelInUse

#: what a worker does: small model, big model, or answering by the inference protocol
WorkerRole = Literal["edge", "cloud", "serve"]


class Delete(Message, kw_only=True):
    """GM tells a node to forget one resource. The uid keeps it from hitting a re-created one of the same name."""

    uid: Uid
    generation: Count


class Synced(Message, kw_only=True):
    """GM has sent all that a sync asked for."""

    epoch: Count
    count: Count


#: the index of a histogram's bucket
Bucket = Annotated[str, Meta(pattern=r"^-?[0-9]{1,3}$(?!\n)")]


class Histogram(Message, kw_only=True):
    """A latency distribution that adds up across workers.

    ``buckets[i]`` counts values v with 1.05**(i-1) < v <= 1.05**i milliseconds, so every quantile read from it is
    within 5 % (DDSketch, Masson et al. 2019, arXiv 1908.10693). Index 0 holds everything up to 1 ms / 1.05**200.
    """

    buckets: Annotated[dict[Bucket, Count], Meta(max_length=512)] = {}


class TaskInfo(Message, kw_only=True, omit_defaults=False):
    """What a worker, a node or a service has done since its start. The first five fields are the seed's."""

    inference_number: Annotated[Count, Meta(description="Samples answered.")] = 0
    hard_example_number: Annotated[Count, Meta(description="Samples that the mining found hard.")] = 0
    upload_cloud_ratio: Annotated[float, Meta(ge=0, le=1, description="Share of samples that went to the cloud.")] = 0.0
    start_time: Annotated[Short, Meta(description="When the first worker started.")] = ""
    current_time: Annotated[Short, Meta(description="When this was counted.")] = ""
    update_time: Annotated[Short, Meta(description="The same under its other name.")] = ""
    edge_inference_number: Annotated[Count, Meta(description="Samples that the edge answered.")] = 0
    cloud_inference_number: Annotated[Count, Meta(description="Samples that the cloud answered.")] = 0
    degraded: Annotated[
        Count,
        Meta(description="Hard samples that the edge had to answer: no cloud worker, no answer in time, circuit open."),
    ] = 0
    skipped: Annotated[Count, Meta(description="Frames that a source passed over because a newer one was there.")] = 0
    lost: Annotated[Count, Meta(description="Frames accepted by a worker that died before it could answer.")] = 0
    rejected: Annotated[
        Count, Meta(description="Frames refused before they were accepted: malformed, oversized, of the wrong shape.")
    ] = 0
    late: Annotated[
        Count, Meta(description="Answers of the cloud that came after their deadline and were not used.")
    ] = 0
    unasked: Annotated[
        Count,
        Meta(
            description="Answers of the cloud that nobody had asked for, or of a worker that was not asked; not used."
        ),
    ] = 0
    mining_errors: Annotated[Count, Meta(description="Errors of the mining; the sample then counts as hard.")] = 0
    served: Annotated[Count, Meta(description="Samples that a cloud worker has answered.")] = 0
    batches: Annotated[Count, Meta(description="Calls of the model that a cloud worker made for them.")] = 0
    uploaded_bytes: Annotated[Count, Meta(description="Bytes of the samples that went to the next tier.")] = 0
    withheld: Annotated[
        Count,
        Meta(description="Hard samples that were not sent: over the upload budget, or too late to be back in time."),
    ] = 0
    audited: Annotated[
        Count, Meta(description="Samples of the edge's own answers that the next tier was asked about all the same.")
    ] = 0
    audit_agreed: Annotated[Count, Meta(description="Audited samples where both gave the same answer.")] = 0
    overruled: Annotated[
        Count, Meta(description="Samples where the mixture of both answers says otherwise than the next tier.")
    ] = 0
    deferred: Annotated[Count, Meta(description="Samples that a tier in between passed on to the next one.")] = 0
    drifting: Annotated[
        Count, Meta(description="Workers whose samples are no longer like those that they were calibrated for.")
    ] = 0
    edge_latency: Annotated[Histogram | None, Meta(description="Milliseconds until the edge's answer.")] = None
    offload_latency: Annotated[Histogram | None, Meta(description="Milliseconds until the cloud's answer.")] = None
    queued: Annotated[Count, Meta(description="Frames inside a worker now.")] = 0
    queue_latency: Annotated[
        Histogram | None, Meta(description="Milliseconds that samples waited for a cloud worker's model.")
    ] = None
    compute_latency: Annotated[
        Histogram | None, Meta(description="Milliseconds that the calls of a cloud worker's model took.")
    ] = None


class WorkerInfo(Message, kw_only=True):
    """A worker tells its LC how it fares (the seed's body; ``ownerInfo`` is Sedna's name for ``taskInfo``)."""

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
    #: where its health and metrics are, such as http://127.0.0.1:40123
    http: Short = ""
    #: what it does, and for which uid of its owner: what tells workers apart whose names the LC did not choose
    role: Literal["edge", "cloud", "serve", ""] = ""
    owner_uid: Annotated[str, Meta(max_length=64)] = ""
    #: of a service with tiers, the one that it is of
    tier: Short = ""
    #: seconds within which it reports again, even if nothing changes; 0: it does not say
    period_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    #: the model that it answers with; one that says so takes another one without being started anew
    model: ModelInUse | None = None
    #: where its inference protocol is, of one that serves it
    url: Short = ""


class ModelOutput(Message, kw_only=True):
    """A model as it stands on a node."""

    format: Annotated[Short, Meta(description="Its format, such as onnx.")]
    url: Annotated[Text, Meta(description="Where it is, without secrets.")]


class Output(Message, kw_only=True):
    """The seed's ``output``: the models in use and the counts of the node."""

    models: Annotated[list[ModelOutput], Meta(max_length=64, description="The models in use.")] = []
    task_info: Annotated[TaskInfo | None, Meta(description="What has been done.")] = None


class WorkerReport(Message, kw_only=True):
    """One worker process as its LC sees it."""

    name: Name
    role: WorkerRole
    #: what the resource calls it, of a service with several workers of one role
    part: Short = ""
    phase: Literal["Pending", "Running", "Failed"]
    restarts: Count = 0
    reason: Short = ""
    message: Text = ""
    http: Short = ""
    model: ModelInUse | None = None
    url: Short = ""
    #: what it has done, of a service with several workers of one role
    task_info: TaskInfo | None = None


class NodeStatus(Message, kw_only=True):
    """One node's report on one resource (the seed's phase, status, output; then what identity needs)."""

    phase: Literal["Pending", "Running", "Failed", "Ready"]
    status: Short = ""
    output: Output | None = None
    uid: Uid
    observed_generation: Count
    reason: Short = ""
    message: Text = ""
    workers: Annotated[list[WorkerReport], Meta(max_length=256)] = []
    #: of a Model; of a Dataset: what the node knows of it
    model: ModelFacts | None = None
    dataset: DatasetFacts | None = None


class Held(Message, kw_only=True):
    """One resource that an LC holds."""

    plural: Label
    namespace: Label
    name: Name
    uid: Uid
    generation: Count


class Sync(Message, kw_only=True):
    """An LC tells GM all that it holds and asks for what it should hold."""

    epoch: Count
    #: the highest of GM's epochs that it has seen: lower ones it does not follow
    gm_epoch: Count = 0
    holds: Annotated[list[Held], Meta(max_length=10_000)] = []


class Presence(Message, kw_only=True):
    """Birth (online) and will (offline) of an LC. Both carry the connection's epoch: an old will is told apart.

    ``store`` tells two LCs apart that keep different stores: only one may use a node's name.
    """

    node: Name
    epoch: Count
    online: bool
    version: Short = ""
    cpus: Count = 0
    memory_bytes: Count = 0
    labels: Annotated[dict[Short, Short], Meta(max_length=64)] = {}
    store: Short = ""
    #: where its health and metrics are
    http: Short = ""


class GmPresence(Message, kw_only=True):
    """Birth and will of GM. A node follows the highest epoch that it has seen.

    ``store`` tells two GMs apart that keep different stores: only one may use a broker.
    """

    epoch: Count
    online: bool
    version: Short = ""
    store: Short = ""
    #: where its page, health and metrics are
    http: Short = ""


class DeadLetter(Message, kw_only=True):
    """A message that could not be read: taken off the topic, counted, and named here for whoever looks into it."""

    client: Short
    topic: Text
    reason: Text
    size: Count
    #: the first bytes, in hexadecimal
    head: Annotated[str, Meta(max_length=128)] = ""
