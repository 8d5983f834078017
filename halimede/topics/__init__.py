"""THE contract: every topic as a typed value. Whatever is not here does not exist.

``topics.md`` and the broker's access rules are generated from it.
"""

from __future__ import annotations

from typing import Any

from halimede.topic import Topic
from halimede.topics import blobs, control, deadletters, multiedge, operator, samples
from halimede.topics.blobs import BLOB_ANSWER, BLOB_CHUNK, BLOB_ORDER, BLOB_QUERY, BLOB_REQUEST
from halimede.topics.control import DELETE, INSERT, NODE_STATUS, PRESENCE, SYNC, SYNCED, WORKER_INFO
from halimede.topics.deadletters import DEAD_LETTER
from halimede.topics.multiedge import (
    CAMERA_STATUS,
    FUSED,
    GALLERY,
    HOP_REPLY,
    HOP_REQUEST,
    IDENTITY_ANSWER,
    IDENTITY_QUERY,
    MULTI_RESULT,
    PEER,
    TRACK,
)
from halimede.topics.operator import (
    API_REPLY,
    API_REQUEST,
    GM_PRESENCE,
    KEPT_REPLY,
    KEPT_REQUEST,
    LOGS_REPLY,
    LOGS_REQUEST,
    STATUS,
    TRACE_REPLY,
    TRACE_REQUEST,
)
from halimede.topics.samples import CAMERA_FRAME, HARD_SAMPLE, LOAD, REPLY, REQUEST, REQUEST_TO, RESULT

#: all topics, in the order of ``topics.md``
CONTRACT: tuple[Topic[Any], ...] = tuple(
    value
    for room in (control, samples, multiedge, operator, blobs, deadletters)
    for value in vars(room).values()
    if isinstance(value, Topic)
)

__all__ = [
    "API_REPLY",
    "API_REQUEST",
    "BLOB_ANSWER",
    "BLOB_CHUNK",
    "BLOB_ORDER",
    "BLOB_QUERY",
    "BLOB_REQUEST",
    "CAMERA_FRAME",
    "CAMERA_STATUS",
    "CONTRACT",
    "DEAD_LETTER",
    "DELETE",
    "FUSED",
    "GALLERY",
    "GM_PRESENCE",
    "HARD_SAMPLE",
    "HOP_REPLY",
    "HOP_REQUEST",
    "IDENTITY_ANSWER",
    "IDENTITY_QUERY",
    "INSERT",
    "KEPT_REPLY",
    "KEPT_REQUEST",
    "LOAD",
    "LOGS_REPLY",
    "LOGS_REQUEST",
    "MULTI_RESULT",
    "NODE_STATUS",
    "PEER",
    "PRESENCE",
    "REPLY",
    "REQUEST",
    "REQUEST_TO",
    "RESULT",
    "STATUS",
    "SYNC",
    "SYNCED",
    "TRACE_REPLY",
    "TRACE_REQUEST",
    "TRACK",
    "WORKER_INFO",
]
