"""Bodies between GM, LCs and workers (JSON)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from halimede.messages.base import Count, Label, Message, Name, Short, Text, Uid


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

    inference_number: Count = 0
    hard_example_number: Count = 0
    upload_cloud_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.0
    start_time: Short = ""
    current_time: Short = ""
    update_time: Short = ""
    edge_inference_number: Count = 0
    cloud_inference_number: Count = 0
    #: hard samples that the edge had to answer itself: no cloud worker, no answer in time, circuit open
    degraded: Count = 0
    #: frames that a source passed over because a newer one was there
    skipped: Count = 0
    #: frames accepted by a worker that died before it could answer
    lost: Count = 0
    #: frames refused before they were accepted: malformed, oversized, of the wrong shape
    rejected: Count = 0
    #: answers of the cloud that came after their deadline and were not used
    late: Count = 0
    #: answers of the cloud to nothing that was asked, or of a worker that was not asked: forged, replayed, or meant for
    #: a predecessor. They were not used
    unasked: Count = 0
    #: mining errors; the sample then counts as hard
    mining_errors: Count = 0
    #: a cloud worker's own work: samples answered and model calls made for them
    served: Count = 0
    batches: Count = 0
    edge_latency: Histogram | None = None
    offload_latency: Histogram | None = None
    #: frames inside a worker now
    queued: Count = 0
    #: a cloud worker's parts of one answer: waiting for the model, and the model's call
    queue_latency: Histogram | None = None
    compute_latency: Histogram | None = None


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


class ModelOutput(Message, kw_only=True):
    """A model as it stands on a node."""

    format: Short
    url: Text


class Output(Message, kw_only=True):
    """The seed's ``output``: the models in use and the counts of the node."""

    models: Annotated[list[ModelOutput], Meta(max_length=64)] = []
    task_info: TaskInfo | None = None


class WorkerReport(Message, kw_only=True):
    """One worker process as its LC sees it."""

    name: Name
    role: Literal["edge", "cloud"]
    phase: Literal["Pending", "Running", "Failed"]
    restarts: Count = 0
    reason: Short = ""
    message: Text = ""
    http: Short = ""


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
