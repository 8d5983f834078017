"""Blobs: files identified by their digest, for nodes that reach only the broker."""

from __future__ import annotations

from halimede import messages as m
from halimede.topic import BodyEncoding, Role, Topic

BLOB_REQUEST = Topic(
    "blob-request",
    "sedna/blobs/request/{source}/{asker}",
    m.BlobRequest,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
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
    BodyEncoding.MSGPACK,
    qos=0,
    retain=False,
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
    BodyEncoding.JSON,
    qos=0,
    retain=False,
    publishers=(Role.LC, Role.GM, Role.OPERATOR),
    subscribers=(Role.LC, Role.GM),
    doc="Ask all sources who has a file.",
    speaker="asker",
)
BLOB_ORDER = Topic(
    "blob-order",
    "sedna/blobs/order/{source}/{asker}",
    m.BlobOrder,
    BodyEncoding.JSON,
    qos=1,
    retain=False,
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
    BodyEncoding.JSON,
    qos=1,
    retain=False,
    publishers=(Role.LC, Role.GM),
    subscribers=(Role.LC, Role.GM, Role.OPERATOR),
    doc="The answer to a query or an order, with its correlation data.",
    speaker="source",
    listener="asker",
)
