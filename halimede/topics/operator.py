"""Watching and steering: what people and their tools see and ask."""

from __future__ import annotations

from halimede import messages as m
from halimede.topic import BodyEncoding, Role, Topic

STATUS = Topic(
    "status",
    "{ns}/sedna/status/{plural}/{name}",
    m.StatusDocument,
    BodyEncoding.JSON,
    qos=1,
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
    BodyEncoding.JSON,
    qos=1,
    retain=True,
    publishers=(Role.GM,),
    subscribers=(Role.LC, Role.GM, Role.OPERATOR),
    doc="Birth and will of GM, with its epoch. A GM looks whether another one is there.",
)
API_REQUEST = Topic(
    "api-request",
    "sedna/api/request/{client}",
    m.ApiRequest,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.GM,),
    doc="The standalone API: apply, get, list, delete, events, nodes, version.",
)
API_REPLY = Topic(
    "api-reply",
    "sedna/api/reply/{client}",
    m.ApiReply,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.GM,),
    subscribers=(Role.OPERATOR,),
    doc="GM's answer to the client that asked.",
)
LOGS_REQUEST = Topic(
    "logs-request",
    "node/{node}/sedna/logs/request/{client}",
    m.LogsRequest,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.LC,),
    doc="Ask a node for a part of one of its workers' logs.",
)
LOGS_REPLY = Topic(
    "logs-reply",
    "sedna/logs/reply/{client}",
    m.LogsReply,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.LC,),
    subscribers=(Role.OPERATOR,),
    doc="The node's answer to the client that asked.",
)
TRACE_REQUEST = Topic(
    "trace-request",
    "sedna/trace/request/{client}",
    m.TraceRequest,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="Ask all workers what they remember of one frame.",
)
TRACE_REPLY = Topic(
    "trace-reply",
    "sedna/trace/reply/{client}",
    m.TraceReply,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.OPERATOR,),
    doc="The steps that one worker remembers, to the client that asked.",
)
KEPT_REQUEST = Topic(
    "kept-request",
    "sedna/kept/request/{client}",
    m.KeptRequest,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.OPERATOR,),
    subscribers=(Role.EDGE,),
    doc="Ask edge workers for the hard samples that they keep: a page of them, or one with its picture.",
)
KEPT_REPLY = Topic(
    "kept-reply",
    "sedna/kept/reply/{client}",
    m.KeptReply,
    BodyEncoding.MSGPACK,
    qos=1,
    retain=False,
    publishers=(Role.EDGE,),
    subscribers=(Role.OPERATOR,),
    doc="What one worker keeps, to the client that asked.",
)
