"""THE contract: every topic as a typed value, in the order of ``topics.md``. There are no other topics.

``topics.md`` and the broker's access rules are generated from it.
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
    doc="A resource for this node, as the API server gives it, in sedna.io form. User properties `epoch` (GM's) and "
    "`number` (which GM message of that epoch this is): what was said later stands.",
)
DELETE = Topic(
    "delete",
    "node/{node}/{ns}/sedna/downstream/{plural}/{name}/delete",
    m.Delete,
    publishers=(Role.GM,),
    subscribers=(Role.LC,),
    doc="The node shall forget this resource. User properties `epoch` and `number` as with an insert.",
)
SYNCED = Topic(
    "synced",
    "node/{node}/sedna/downstream/synced",
    m.Synced,
    publishers=(Role.GM,),
    subscribers=(Role.LC,),
    doc="All that the node's sync asked for has been sent.",
)

# --- upstream: a node to GM -------------------------------------------------------------------------------------------

NODE_STATUS = Topic(
    "node-status",
    "node/{node}/{ns}/sedna/upstream/{plural}/{name}/status",
    m.NodeStatus,
    retain=True,
    publishers=(Role.LC, Role.GM),
    subscribers=(Role.GM,),
    doc="This node's report on the resource. Cleared (empty, retained) once the node has forgotten it; GM "
    "clears it when a user deletes the node. User properties `epoch` (of the connection) and `number`: what was said "
    "later stands.",
)
SYNC = Topic(
    "sync",
    "node/{node}/sedna/upstream/sync",
    m.Sync,
    publishers=(Role.LC,),
    subscribers=(Role.GM,),
    doc="What the node holds: sent on every connection, on a new GM epoch and every few minutes. User properties "
    "`epoch` (of the connection) and `number`: what was said later stands.",
)
PRESENCE = Topic(
    "presence",
    "node/{node}/sedna/presence",
    m.Presence,
    retain=True,
    publishers=(Role.LC, Role.GM),
    subscribers=(Role.GM, Role.LC, Role.OPERATOR),
    doc="Birth and will of the node's LC, both with the connection's epoch. GM clears it when a user deletes the node. "
    "An LC listens to its own: another one under its name shows there.",
)
WORKER_INFO = Topic(
    "worker-info",
    "node/{node}/{ns}/sedna/workers/{worker}/info",
    m.WorkerInfo,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.LC,),
    doc="How a worker fares: on every change, at most once a second.",
)

# --- Samples: from a camera to an edge worker, to the cloud and back, and their results -------------------------------

CAMERA_FRAME = Topic(
    "camera-frame",
    "{ns}/sedna/frames/{camera}",
    bytes,
    encoding=BodyEncoding.BYTES,
    publishers=(Role.CAMERA, Role.OPERATOR),
    subscribers=(Role.EDGE, Role.OPERATOR),
    doc="One frame: ours (msgpack, see `request`), or a bare JPEG or PNG from any MQTT client. QoS 0 or 1, "
    "the publisher's choice. The edge workers of a service share one subscription per camera. User properties "
    "`traceparent` and `tracestate` (W3C Trace Context) may name the trace that it belongs to; else its id does.",
    shared=True,
)
REQUEST = Topic(
    "request",
    "{ns}/sedna/inference/{service}/request",
    m.Frame,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.EDGE,),
    subscribers=(Role.CLOUD,),
    doc="A hard sample for whichever cloud worker is next (response topic and correlation data are required). "
    "User properties `traceparent` and `tracestate`: its place in the frame's trace.",
    shared=True,
)
REQUEST_TO = Topic(
    "request-to",
    "{ns}/sedna/inference/{service}/request/{worker}",
    m.Frame,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.CLOUD,),
    doc="A hard sample for one cloud worker, chosen by its advertised load. Where a service has tiers, each asks a "
    "worker of the next one here.",
)
REPLY = Topic(
    "reply",
    "{ns}/sedna/inference/{service}/reply/{worker}",
    m.Reply,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.CLOUD,),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="The answer to the worker that asked, with its correlation data.",
)
LOAD = Topic(
    "load",
    "{ns}/sedna/inference/{service}/load/{worker}",
    m.Load,
    qos=0,
    retain=True,
    publishers=(Role.CLOUD,),
    subscribers=(Role.EDGE, Role.CLOUD, Role.OPERATOR),
    doc="A cloud worker's free credits and service time. Cleared by its will.",
)
RESULT = Topic(
    "result",
    "{ns}/sedna/inference/{service}/result",
    m.Result,
    publishers=(Role.EDGE,),
    subscribers=(Role.CONSUMER, Role.OPERATOR),
    doc="Every final answer, once for each frame id; consumers drop repeated ids. User properties `traceparent` and "
    "`tracestate` where the frame came with them, or the worker exports traces.",
)
HARD_SAMPLE = Topic(
    "hard-sample",
    "{ns}/sedna/inference/{service}/hard",
    m.HardSample,
    encoding=BodyEncoding.MSGPACK,
    qos=0,
    publishers=(Role.EDGE,),
    subscribers=(Role.GM, Role.OPERATOR, Role.CONSUMER),
    doc="A glimpse of a hard sample, as a thumbnail: at most one a second from each edge worker.",
)

EDGE_PEER = Topic(
    "edge-peer",
    "{ns}/sedna/inference/{service}/peers/{worker}",
    m.Peer,
    retain=True,
    publishers=(Role.EDGE,),
    subscribers=(Role.EDGE, Role.OPERATOR),
    doc="An edge worker of the service is there. Cleared by its will: the oldest of the others then goes on with its "
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
    doc="A worker of a multi-edge service is there, and what it can take. Cleared by its will: the others then go on "
    "with its frames.",
)
HOP_REQUEST = Topic(
    "hop-request",
    "{ns}/sedna/multiedge/{service}/{hop}/request/{worker}",
    m.Frame,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.EDGE,),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="From one stage to the next, at another worker: a frame that a peer shall answer (hop `share`), or what was "
    "found in one, without its pixels (hop `join`).",
)
HOP_REPLY = Topic(
    "hop-reply",
    "{ns}/sedna/multiedge/{service}/{hop}/reply/{worker}",
    m.Reply,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE,),
    doc="The answer to the worker that asked, with its correlation data.",
)
MULTI_RESULT = Topic(
    "multi-result",
    "{ns}/sedna/multiedge/{service}/result",
    m.Result,
    publishers=(Role.EDGE,),
    subscribers=(Role.CONSUMER, Role.OPERATOR),
    doc="Every final answer of a multi-edge service, once for each frame id; after a worker's death perhaps twice, so "
    "consumers drop repeated ids.",
)
TRACK = Topic(
    "track",
    "{ns}/sedna/multiedge/{service}/tracks",
    m.Track,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE, Role.CLOUD, Role.CONSUMER, Role.OPERATOR),
    doc="An object was seen, and who it is across all cameras (re-identification).",
)
GALLERY = Topic(
    "gallery",
    "{ns}/sedna/multiedge/{service}/gallery/{worker}",
    m.Track,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="What is known of one object, to a worker that has just come: so any of them can go on (re-identification).",
)
FUSED = Topic(
    "fused",
    "{ns}/sedna/multiedge/{service}/fused",
    m.Fused,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.CONSUMER, Role.OPERATOR),
    doc="What several sources say of one instant (fusion).",
)
IDENTITY_QUERY = Topic(
    "identity-query",
    "{ns}/sedna/multiedge/{service}/query/{client}",
    m.IdentityQuery,
    publishers=(Role.OPERATOR, Role.CONSUMER),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="Where was this one seen? Every worker that keeps a gallery hears it; the one that decides answers.",
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
    doc="How a camera fares, by whoever reads it: frame rate, resolution, last frame, error. Its will says that it is "
    "gone.",
)
NODE_CAMERA_STATUS = Topic(
    "node-camera-status",
    "node/{node}/{ns}/sedna/cameras/{camera}/status",
    m.CameraStatus,
    retain=True,
    publishers=(Role.EDGE, Role.OPERATOR),
    subscribers=(Role.GM, Role.CONSUMER, Role.OPERATOR),
    doc="How a camera fares that an edge worker of the node reads itself (`source.url`).",
)

# --- Observation and operation: topics of people and their tools ------------------------------------------------------

STATUS = Topic(
    "status",
    "{ns}/sedna/status/{plural}/{name}",
    m.StatusDocument,
    retain=True,
    publishers=(Role.GM,),
    subscribers=(Role.GM, Role.OPERATOR, Role.CONSUMER),
    doc="GM's view of a resource. Cleared (empty, retained) once it is deleted. A GM that starts looks for what an "
    "earlier one has left.",
)
GM_PRESENCE = Topic(
    "gm-presence",
    "sedna/gm/presence",
    m.GmPresence,
    retain=True,
    publishers=(Role.GM,),
    subscribers=(Role.LC, Role.GM, Role.OPERATOR),
    doc="Birth and will of GM, with its epoch. A GM looks whether another one is there.",
)
API_REQUEST = Topic(
    "api-request",
    "sedna/api/request/{client}",
    m.ApiRequest,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.GM,),
    doc="The standalone API: apply, get, list, delete, events, nodes, version.",
)
API_REPLY = Topic(
    "api-reply",
    "sedna/api/reply/{client}",
    m.ApiReply,
    publishers=(Role.GM,),
    subscribers=(Role.OPERATOR,),
    doc="GM's answer to the client that asked.",
)
LOGS_REQUEST = Topic(
    "logs-request",
    "node/{node}/sedna/logs/request/{client}",
    m.LogsRequest,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.LC,),
    doc="Ask a node for a part of one of its workers' logs.",
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
    doc="Ask all workers what they remember of one frame.",
)
TRACE_REPLY = Topic(
    "trace-reply",
    "sedna/trace/reply/{client}",
    m.TraceReply,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.OPERATOR,),
    doc="The steps that one worker remembers, to the client that asked.",
)
KEPT_REQUEST = Topic(
    "kept-request",
    "sedna/kept/request/{client}",
    m.KeptRequest,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.EDGE,),
    doc="Ask edge workers for the hard samples that they keep: a page of them, or one with its picture.",
)
KEPT_REPLY = Topic(
    "kept-reply",
    "sedna/kept/reply/{client}",
    m.KeptReply,
    encoding=BodyEncoding.MSGPACK,
    publishers=(Role.EDGE,),
    subscribers=(Role.OPERATOR,),
    doc="What one worker keeps, to the client that asked.",
)

# --- Blobs: files identified by their digest, for nodes that reach only the broker ------------------------------------

BLOB_REQUEST = Topic(
    "blob-request",
    "sedna/blobs/request/{source}/{asker}",
    m.BlobRequest,
    publishers=(Role.LC, Role.GM, Role.OPERATOR),
    subscribers=(Role.LC, Role.GM, Role.OPERATOR),
    doc="Ask a source (`gm`, `lc.<node>`) for a piece of a file. Files are known by their SHA-256 alone, never by a "
    "path. QoS 0 will do where a lost request is repeated.",
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
    doc="The piece, with the request's correlation data. What is lost is asked for again.",
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
    doc="Ask all sources who has a file.",
    speaker="asker",
)
BLOB_ORDER = Topic(
    "blob-order",
    "sedna/blobs/order/{source}/{asker}",
    m.BlobOrder,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.LC, Role.GM),
    doc="Have a source keep a file, list its files, or remove one.",
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

# --- Unreadable messages ----------------------------------------------------------------------------------------------

DEAD_LETTER = Topic(
    "dead-letter",
    "node/{node}/sedna/deadletter/{client}",
    m.DeadLetter,
    qos=0,
    publishers=(Role.GM, Role.LC, Role.EDGE, Role.CLOUD),
    subscribers=(Role.GM, Role.OPERATOR),
    doc="A message that its receiver could not read: at most ten a second from each client. GM has no node: `none`.",
)

#: all topics
CONTRACT: tuple[Topic[Any], ...] = tuple(value for value in list(vars().values()) if isinstance(value, Topic))
