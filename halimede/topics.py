"""The contract between all programs: every MQTT topic as a ``Topic``, in the order of ``topics.md``.

Each constant has its name, its template, the type of its body, the roles that publish and subscribe, and a text for
``topics.md``. ``Topic`` describes the other attributes, such as ``speaker`` and ``listener``, which bind a name in the
topic to the client. ``topics.md`` and the broker's access rules are generated from here. There are no other topics.
"""

from __future__ import annotations

from typing import Any

from halimede import messages as m
from halimede.topic import BodyEncoding, Role, Topic

# --- downstream: GM to a node -----------------------------------------------------------------------------------------

INSERT = Topic(
    "insert",
    "node/{node}/{ns}/sedna/downstream/{plural}/{name}/insert",
    m.ResourceBody,
    publishers=(Role.GM,),
    subscribers=(Role.LC,),
    doc="A resource for this node, in the form of the API server and of group sedna.io. User properties: `epoch`, "
    "`number` and `session-key`, the secret part of the client ids of a service's sessions for frames.",
)
DELETE = Topic(
    "delete",
    "node/{node}/{ns}/sedna/downstream/{plural}/{name}/delete",
    m.Delete,
    publishers=(Role.GM,),
    subscribers=(Role.LC,),
    doc="The node must remove this resource. User properties: `epoch`, `number`.",
)
SYNCED = Topic(
    "synced",
    "node/{node}/sedna/downstream/synced",
    m.Synced,
    publishers=(Role.GM,),
    subscribers=(Role.LC,),
    doc="GM has sent every resource that the node's sync asked for.",
)

# --- upstream: a node to GM -------------------------------------------------------------------------------------------

NODE_STATUS = Topic(
    "node-status",
    "node/{node}/{ns}/sedna/upstream/{plural}/{name}/status",
    m.NodeStatus,
    retain=True,
    publishers=(Role.LC, Role.GM),
    subscribers=(Role.GM,),
    doc="The node's report on a resource. The LC clears it when it has removed the resource, "
    "and GM when a user deletes the node. User properties: `epoch`, `number`.",
)
SYNC = Topic(
    "sync",
    "node/{node}/sedna/upstream/sync",
    m.Sync,
    publishers=(Role.LC,),
    subscribers=(Role.GM,),
    doc="The resources that the node holds. Published on every connection, on a new epoch of GM, and every few "
    "minutes. User properties: `epoch`, `number`.",
)
PRESENCE = Topic(
    "presence",
    "node/{node}/sedna/presence",
    m.Presence,
    retain=True,
    publishers=(Role.LC, Role.GM),
    subscribers=(Role.GM, Role.LC, Role.OPERATOR, Role.CONSUMER),
    doc="Birth and will of the node's LC, both with the epoch of the connection. GM clears it when a user deletes "
    "the node. An LC subscribes to its own presence, and so detects a second LC with its name.",
)
WORKER_INFO = Topic(
    "worker-info",
    "node/{node}/{ns}/sedna/workers/{worker}/info",
    m.WorkerInfo,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.LC,),
    doc="A worker's report on itself, on every change, at most once a second, and at least every three seconds.",
)

# --- Samples: from a camera to an edge worker, to the cloud and back, and their results -------------------------------

CAMERA_FRAME = Topic(
    "camera-frame",
    "{ns}/sedna/frames/{camera}",
    bytes,
    encoding=BodyEncoding.BYTES,
    publishers=(Role.CAMERA, Role.OPERATOR),
    subscribers=(Role.EDGE, Role.OPERATOR),
    doc="One frame from any MQTT client, with QoS 0 or 1. "
    "The edge workers of a service share one subscription for each camera. Without "
    "`traceparent` its id identifies the trace.",
    shared=True,
)
REQUEST = Topic(
    "request",
    "{ns}/sedna/inference/{service}/request",
    m.Frame,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.EDGE,),
    subscribers=(Role.CLOUD,),
    doc="A sample for any cloud worker: a hard one or an audit. Response topic and correlation data are required.",
    shared=True,
)
REQUEST_TO = Topic(
    "request-to",
    "{ns}/sedna/inference/{service}/request/{worker}",
    m.Frame,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.CLOUD,),
    doc="A `request` for one cloud worker, selected by its advertised load. In a service with tiers, each tier "
    "sends requests to the next tier here.",
)
REPLY = Topic(
    "reply",
    "{ns}/sedna/inference/{service}/reply/{worker}",
    m.Reply,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.CLOUD,),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="The answer to the worker that sent the request, with its correlation data.",
)
LOAD = Topic(
    "load",
    "{ns}/sedna/inference/{service}/load/{worker}",
    m.Load,
    qos=0,
    retain=True,
    publishers=(Role.CLOUD,),
    subscribers=(Role.EDGE, Role.CLOUD, Role.OPERATOR),
    doc="A cloud worker's free credits and service time. Its will clears it.",
)
RESULT = Topic(
    "result",
    "{ns}/sedna/inference/{service}/result",
    m.Result,
    publishers=(Role.EDGE,),
    subscribers=(Role.EDGE, Role.CONSUMER, Role.OPERATOR),
    doc="The final answer to each frame id.",
)
HARD_SAMPLE = Topic(
    "hard-sample",
    "{ns}/sedna/inference/{service}/hard",
    m.HardSample,
    encoding=BodyEncoding.MSGPACK,
    qos=0,
    publishers=(Role.EDGE,),
    subscribers=(Role.GM, Role.OPERATOR, Role.CONSUMER),
    doc="A small picture of a hard sample: at most one a second from each edge worker.",
)

OCCUPANCY = Topic(
    "occupancy",
    "{ns}/sedna/inference/{service}/occupancy/{camera}",
    m.OccupancyEvent,
    retain=True,
    publishers=(Role.EDGE, Role.GM),
    subscribers=(Role.EDGE, Role.GM, Role.OPERATOR, Role.CONSUMER),
    doc="The last event of a camera, by the eldest edge worker. GM clears it when service, occupancy or camera goes.",
)
EDGE_PEER = Topic(
    "edge-peer",
    "{ns}/sedna/inference/{service}/peers/{worker}",
    m.Peer,
    retain=True,
    publishers=(Role.EDGE,),
    subscribers=(Role.EDGE, Role.OPERATOR),
    doc="An edge worker of the service is connected. Its will clears it; then the oldest other worker answers its "
    "frames.",
)

# --- Multi-edge inference, and status of cameras ----------------------------------------------------------------------

PEER = Topic(
    "peer",
    "{ns}/sedna/multiedge/{service}/peers/{worker}",
    m.Peer,
    retain=True,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE, Role.CLOUD, Role.OPERATOR),
    doc="A worker of a multi-edge service is connected, with its load. Its will clears it; then another worker "
    "answers its frames.",
)
HOP_REQUEST = Topic(
    "hop-request",
    "{ns}/sedna/multiedge/{service}/{hop}/request/{worker}",
    m.Frame,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.EDGE,),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="A request of one worker to another: a frame to answer (hop `share`), or the findings in a frame without "
    "its pixels (hop `join`).",
)
HOP_REPLY = Topic(
    "hop-reply",
    "{ns}/sedna/multiedge/{service}/{hop}/reply/{worker}",
    m.Reply,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE,),
    doc="The answer to the worker that sent the request, with its correlation data.",
)
MULTI_RESULT = Topic(
    "multi-result",
    "{ns}/sedna/multiedge/{service}/result",
    m.Result,
    publishers=(Role.EDGE,),
    subscribers=(Role.CONSUMER, Role.OPERATOR),
    doc="The final answer to each frame id of a multi-edge service.",
)
TRACK = Topic(
    "track",
    "{ns}/sedna/multiedge/{service}/tracks",
    m.Track,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE, Role.CLOUD, Role.CONSUMER, Role.OPERATOR),
    doc="An object was seen, with its identity across all cameras (re-identification).",
)
GALLERY = Topic(
    "gallery",
    "{ns}/sedna/multiedge/{service}/gallery/{worker}",
    m.Track,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="One known identity, for a worker that has just connected, so that it can take over re-identification.",
)
FUSED = Topic(
    "fused",
    "{ns}/sedna/multiedge/{service}/fused",
    m.Fused,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.CONSUMER, Role.OPERATOR),
    doc="The common answer of several sources for one instant (fusion).",
)
IDENTITY_QUERY = Topic(
    "identity-query",
    "{ns}/sedna/multiedge/{service}/query/{client}",
    m.IdentityQuery,
    publishers=(Role.OPERATOR, Role.CONSUMER),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="Asks where an identity was seen. All workers with a gallery receive it, and the one that runs the "
    "re-identification answers.",
)
IDENTITY_ANSWER = Topic(
    "identity-answer",
    "{ns}/sedna/multiedge/{service}/answer/{client}",
    m.IdentityAnswer,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.OPERATOR, Role.CONSUMER),
    doc="The answer to the client that asked.",
)
CAMERA_STATUS = Topic(
    "camera-status",
    "{ns}/sedna/cameras/{camera}/status",
    m.CameraStatus,
    retain=True,
    publishers=(Role.CAMERA, Role.OPERATOR),
    subscribers=(Role.GM, Role.CONSUMER, Role.OPERATOR),
    doc="The state of a camera, from the process that reads it: frame rate, resolution, last frame, error. The "
    "will sets the state `gone`.",
)
NODE_CAMERA_STATUS = Topic(
    "node-camera-status",
    "node/{node}/{ns}/sedna/cameras/{camera}/status",
    m.CameraStatus,
    retain=True,
    publishers=(Role.EDGE, Role.OPERATOR),
    subscribers=(Role.GM, Role.CONSUMER, Role.OPERATOR),
    doc="The state of a camera that an edge worker of the node reads itself (`source.url`).",
)

# --- Observation and operation: topics of people and their tools ------------------------------------------------------

STATUS = Topic(
    "status",
    "{ns}/sedna/status/{plural}/{name}",
    m.StatusDocument,
    retain=True,
    publishers=(Role.GM,),
    subscribers=(Role.GM, Role.OPERATOR, Role.CONSUMER, Role.LC),
    doc="GM's status of a resource. GM clears it when the resource is deleted. Nodes that "
    "copy the files of a Model or Dataset (`syncTo`) read their digest here.",
)
GM_PRESENCE = Topic(
    "gm-presence",
    "sedna/gm/presence",
    m.GmPresence,
    retain=True,
    publishers=(Role.GM,),
    subscribers=(Role.LC, Role.GM, Role.OPERATOR, Role.CONSUMER),
    doc="Birth and will of GM, with its epoch. GM repeats its birth after a will of another store.",
)
API_REQUEST = Topic(
    "api-request",
    "sedna/api/request/{client}",
    m.ApiRequest,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.GM,),
    doc="A request to GM's API.",
)
API_REPLY = Topic(
    "api-reply",
    "sedna/api/reply/{client}",
    m.ApiReply,
    publishers=(Role.GM,),
    subscribers=(Role.OPERATOR,),
    doc="GM's answer to a request.",
)
LOGS_REQUEST = Topic(
    "logs-request",
    "node/{node}/sedna/logs/request/{client}",
    m.LogsRequest,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.LC,),
    doc="Requests a part of the log of a worker.",
)
LOGS_REPLY = Topic(
    "logs-reply",
    "sedna/logs/reply/{client}",
    m.LogsReply,
    publishers=(Role.LC,),
    subscribers=(Role.OPERATOR,),
    doc="The node's answer to the client that asked.",
)
TRACE_REQUEST = Topic(
    "trace-request",
    "sedna/trace/request/{client}",
    m.TraceRequest,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="Asks all workers for the recorded steps of one frame.",
)
TRACE_REPLY = Topic(
    "trace-reply",
    "sedna/trace/reply/{client}",
    m.TraceReply,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.OPERATOR,),
    doc="The steps that one worker has recorded, for the client that asked.",
)
KEPT_REQUEST = Topic(
    "kept-request",
    "sedna/kept/request/{client}",
    m.KeptRequest,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.EDGE,),
    doc="Asks edge workers for the hard samples that they store: one page of entries, or one sample with its picture.",
)
KEPT_REPLY = Topic(
    "kept-reply",
    "sedna/kept/reply/{client}",
    m.KeptReply,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.EDGE,),
    subscribers=(Role.OPERATOR,),
    doc="The samples that one worker stores, for the client that asked.",
)

# --- Blobs: files identified by their digest, for nodes that reach only the broker ------------------------------------

BLOB_REQUEST = Topic(
    "blob-request",
    "sedna/blobs/request/{source}/{asker}",
    m.BlobRequest,
    publishers=(Role.LC, Role.GM, Role.OPERATOR),
    subscribers=(Role.LC, Role.GM, Role.OPERATOR),
    doc="Asks a source (`gm`, `lc.<node>`) for a piece of a file. A file is identified by its SHA-256, never by a "
    "path. QoS 0 is enough if the client repeats a lost request.",
    speaker="asker",
    listener="source",
)
BLOB_CHUNK = Topic(
    "blob-chunk",
    "sedna/blobs/chunk/{asker}/{source}",
    m.BlobChunk,
    encoding=BodyEncoding.MSGPACK,
    qos=0,
    publishers=(Role.LC, Role.GM, Role.OPERATOR),
    subscribers=(Role.LC, Role.GM, Role.OPERATOR),
    doc="The requested piece, with the request's correlation data. A client requests a lost piece again.",
    speaker="source",
    listener="asker",
)
BLOB_QUERY = Topic(
    "blob-query",
    "sedna/blobs/query/{asker}",
    m.BlobQuery,
    qos=0,
    publishers=(Role.LC, Role.GM, Role.OPERATOR),
    subscribers=(Role.LC, Role.GM),
    doc="Asks all sources whether they have a file.",
    speaker="asker",
)
BLOB_ORDER = Topic(
    "blob-order",
    "sedna/blobs/order/{source}/{asker}",
    m.BlobOrder,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.LC, Role.GM),
    doc="Tells a source to store a file, list its files, or remove one.",
    speaker="asker",
    listener="source",
)
BLOB_ANSWER = Topic(
    "blob-answer",
    "sedna/blobs/answer/{asker}/{source}",
    m.BlobAnswer,
    publishers=(Role.LC, Role.GM),
    subscribers=(Role.LC, Role.GM, Role.OPERATOR),
    doc="The answer to a query or an order, with its correlation data.",
    speaker="source",
    listener="asker",
)

# --- Federated training -----------------------------------------------------------------------------------------------

TRAINING_ROUND = Topic(
    "training-round",
    "{ns}/sedna/training/{job}/round",
    m.TrainingRound,
    retain=True,
    publishers=(Role.CLOUD,),
    subscribers=(Role.EDGE, Role.CLOUD, Role.OPERATOR),
    doc="The state of a training job: its round, who is invited, and the weights to begin with. The aggregator clears "
    "it when it stops. A restarted aggregator continues with a higher epoch.",
)
TRAINER_STATE = Topic(
    "trainer-state",
    "node/{node}/{ns}/sedna/training/{job}/trainers/{trainer}",
    m.TrainerState,
    retain=True,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.CLOUD, Role.OPERATOR),
    doc="A trainer: its samples, and the file of its update for a round. Its will clears it. A node publishes only for "
    "its own trainers.",
)
TRAINING_REQUEST = Topic(
    "training-request",
    "{ns}/sedna/training/{job}/request/{source}/{asker}",
    m.BlobRequest,
    qos=0,
    publishers=(Role.EDGE, Role.CLOUD, Role.GM),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="Requests a piece of a tensor file, as `blob-request` does, from the aggregator or a trainer.",
)
TRAINING_CHUNK = Topic(
    "training-chunk",
    "{ns}/sedna/training/{job}/chunk/{asker}/{source}",
    m.BlobChunk,
    encoding=BodyEncoding.MSGPACK,
    qos=0,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE, Role.CLOUD, Role.GM),
    doc="The piece of a tensor file, with the request's correlation data. The client checks the digest.",
)

# --- Unreadable messages ----------------------------------------------------------------------------------------------

DEAD_LETTER = Topic(
    "dead-letter",
    "node/{node}/sedna/deadletter/{client}",
    m.DeadLetter,
    qos=0,
    publishers=(Role.GM, Role.LC, Role.EDGE, Role.CLOUD),
    subscribers=(Role.GM, Role.OPERATOR),
    doc="A message that its receiver could not read: at most ten a second from each client. GM uses the node name "
    "`none`.",
)

#: all topics of this module, in its order
CONTRACT: tuple[Topic[Any], ...] = tuple(value for value in list(vars().values()) if isinstance(value, Topic))
