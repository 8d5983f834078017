"""Between GM and the nodes, and between a node and its workers."""

from __future__ import annotations

from halimede import messages as m
from halimede.topic import BodyEncoding, Role, Topic

# --- downstream: GM to a node -----------------------------------------------------------------------------------

INSERT = Topic(
    "insert",
    "node/{node}/{ns}/sedna/downstream/{plural}/{name}/insert",
    m.ResourceBody,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.GM,),
    subscribers=(Role.LC,),
    doc="A resource for this node, as the API server gives it, in sedna.io form. User properties `epoch` (GM's) and "
    "`number` (which GM message of that epoch this is): what was said later stands.",
)
DELETE = Topic(
    "delete",
    "node/{node}/{ns}/sedna/downstream/{plural}/{name}/delete",
    m.Delete,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.GM,),
    subscribers=(Role.LC,),
    doc="The node shall forget this resource. User properties `epoch` and `number` as with an insert.",
)
SYNCED = Topic(
    "synced",
    "node/{node}/sedna/downstream/synced",
    m.Synced,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.GM,),
    subscribers=(Role.LC,),
    doc="All that the node's sync asked for has been sent.",
)

# --- upstream: a node to GM -------------------------------------------------------------------------------------

NODE_STATUS = Topic(
    "node-status",
    "node/{node}/{ns}/sedna/upstream/{plural}/{name}/status",
    m.NodeStatus,
    BodyEncoding.JSON,
    qos=1,
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
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.LC,),
    subscribers=(Role.GM,),
    doc="What the node holds: sent on every connection, on a new GM epoch and every few minutes. User properties "
    "`epoch` (of the connection) and `number`: what was said later stands.",
)
PRESENCE = Topic(
    "presence",
    "node/{node}/sedna/presence",
    m.Presence,
    BodyEncoding.JSON,
    qos=1,
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
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.LC,),
    doc="How a worker fares: on every change, at most once a second.",
)
