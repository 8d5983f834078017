"""Multi-edge inference, and how cameras fare."""

from __future__ import annotations

from halimede import messages as m
from halimede.topic import BodyEncoding, Role, Topic

PEER = Topic(
    "peer",
    "{ns}/sedna/multiedge/{service}/peers/{worker}",
    m.Peer,
    BodyEncoding.JSON,
    qos=1,
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
    BodyEncoding.MSGPACK,
    qos=1,
    retain=False,
    publishers=(Role.EDGE,),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="From one stage to the next, at another worker: a frame that a peer shall answer (hop `share`), or what was "
    "found in one, without its pixels (hop `join`).",
)
HOP_REPLY = Topic(
    "hop-reply",
    "{ns}/sedna/multiedge/{service}/{hop}/reply/{worker}",
    m.Reply,
    BodyEncoding.MSGPACK,
    qos=1,
    retain=False,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE,),
    doc="The answer to the worker that asked, with its correlation data.",
)
MULTI_RESULT = Topic(
    "multi-result",
    "{ns}/sedna/multiedge/{service}/result",
    m.Result,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.EDGE,),
    subscribers=(Role.CONSUMER, Role.OPERATOR),
    doc="Every final answer of a multi-edge service, once for each frame id; after a worker's death perhaps twice, so "
    "consumers drop repeated ids.",
)
TRACK = Topic(
    "track",
    "{ns}/sedna/multiedge/{service}/tracks",
    m.Track,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE, Role.CLOUD, Role.CONSUMER, Role.OPERATOR),
    doc="An object was seen, and who it is across all cameras (re-identification).",
)
GALLERY = Topic(
    "gallery",
    "{ns}/sedna/multiedge/{service}/gallery/{worker}",
    m.Track,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="What is known of one object, to a worker that has just come: so any of them can go on (re-identification).",
)
FUSED = Topic(
    "fused",
    "{ns}/sedna/multiedge/{service}/fused",
    m.Fused,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.CONSUMER, Role.OPERATOR),
    doc="What several sources say of one instant (fusion).",
)
IDENTITY_QUERY = Topic(
    "identity-query",
    "{ns}/sedna/multiedge/{service}/query/{client}",
    m.IdentityQuery,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.OPERATOR, Role.CONSUMER),
    subscribers=(Role.EDGE, Role.CLOUD),
    doc="Where was this one seen? Every worker that keeps a gallery hears it; the one that decides answers.",
)
IDENTITY_ANSWER = Topic(
    "identity-answer",
    "{ns}/sedna/multiedge/{service}/answer/{client}",
    m.IdentityAnswer,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.EDGE, Role.CLOUD),
    subscribers=(Role.OPERATOR, Role.CONSUMER),
    doc="The answer to the client that asked.",
)
CAMERA_STATUS = Topic(
    "camera-status",
    "{ns}/sedna/cameras/{camera}/status",
    m.CameraStatus,
    BodyEncoding.JSON,
    qos=1,
    retain=True,
    publishers=(Role.CAMERA, Role.EDGE, Role.OPERATOR),
    subscribers=(Role.GM, Role.CONSUMER, Role.OPERATOR),
    doc="How a camera fares, by whoever reads it: frame rate, resolution, last frame, error. Its will says that it is "
    "gone.",
)
