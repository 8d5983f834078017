"""The way of a sample: from a camera to an edge worker, to the cloud and back, and what was found."""

from __future__ import annotations

from halimede import messages as m
from halimede.topic import BodyEncoding, Role, Topic

CAMERA_FRAME = Topic(
    "camera-frame",
    "{ns}/sedna/frames/{camera}",
    bytes,
    BodyEncoding.BYTES,
    qos=1,
    retain=False,
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
    BodyEncoding.MSGPACK,
    qos=1,
    retain=False,
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
    BodyEncoding.MSGPACK,
    qos=1,
    retain=False,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.CLOUD,),
    doc="A hard sample for one cloud worker, chosen by its advertised load. Where a service has tiers, each asks a "
    "worker of the next one here.",
)
REPLY = Topic(
    "reply",
    "{ns}/sedna/inference/{service}/reply/{worker}",
    m.Reply,
    BodyEncoding.MSGPACK,
    qos=1,
    retain=False,
    publishers=(Role.CLOUD,),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="The answer to the worker that asked, with its correlation data.",
)
LOAD = Topic(
    "load",
    "{ns}/sedna/inference/{service}/load/{worker}",
    m.Load,
    BodyEncoding.JSON,
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
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.EDGE,),
    subscribers=(Role.CONSUMER, Role.OPERATOR),
    doc="Every final answer, once for each frame id; consumers drop repeated ids. User properties `traceparent` and "
    "`tracestate` where the frame came with them, or the worker exports traces.",
)
HARD_SAMPLE = Topic(
    "hard-sample",
    "{ns}/sedna/inference/{service}/hard",
    m.HardSample,
    BodyEncoding.MSGPACK,
    qos=0,
    retain=False,
    publishers=(Role.EDGE,),
    subscribers=(Role.GM, Role.OPERATOR, Role.CONSUMER),
    doc="A glimpse of a hard sample, as a thumbnail: at most one a second from each edge worker.",
)
