"""Bodies of blob messages, with which nodes and clients fetch files over the broker.

A file is identified by its digest, and a source (a process that has files) sends it in pieces. A piece is msgpack,
other bodies are JSON. ``v`` is the version of a body's form.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from halimede.messages.base import Message, NonNegative, Short, Text

#: most bytes of a file in one message, and in one request
MAX_CHUNK = 1024 * 1024
#: the form of a digest; ``$`` alone also matches before a final newline
DIGEST_PATTERN = r"^[0-9a-f]{64}$(?!\n)"

#: a SHA-256, hexadecimal
Digest = Annotated[str, Meta(pattern=DIGEST_PATTERN, max_length=64)]


class BlobRequest(Message, kw_only=True):
    """Asks one source for a piece of a file. The correlation data identifies the answer, a ``BlobChunk``."""

    digest: Digest
    # bytes of the file before the piece
    offset: NonNegative = 0
    # most bytes of the piece
    length: Annotated[int, Meta(ge=1, le=MAX_CHUNK)]


class BlobChunk(Message, kw_only=True, omit_defaults=False):
    """A piece of a file, or the reason why there is none.

    A piece may be shorter than requested; it is empty only at the end of the file.
    """

    v: Literal[1] = 1
    digest: Digest
    # bytes of the file before the piece
    offset: NonNegative = 0
    #: of the whole file
    size: NonNegative = 0
    #: ``NotFound``, ``Beyond`` (the offset is after the end of the file) or ``Unreadable``
    error: Short = ""
    data: memoryview


class BlobQuery(Message, kw_only=True):
    """Asks all sources whether they have a file. A source without it does not answer."""

    digest: Digest


class BlobOrder(Message, kw_only=True):
    """An operator's order to a source. The source answers with a ``BlobAnswer``."""

    # ``keep`` a file, which the source then fetches from the client; ``list`` the files; ``remove`` a file
    op: Literal["keep", "list", "remove"]
    # ``keep`` and ``remove``: the SHA-256 of the file
    digest: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$", max_length=64)] = ""
    # ``keep``: bytes of the file
    size: NonNegative = 0
    #: ``list``: only digests after this one
    after: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$", max_length=64)] = ""


class BlobEntry(Message, kw_only=True):
    """One file of a source."""

    digest: Digest
    size: NonNegative


class BlobAnswer(Message, kw_only=True):
    """A source's answer to a query (``has``) or an order."""

    outcome: Literal["has", "kept", "listed", "removed", "refused"]
    # ``has`` and ``kept``: bytes of the file
    size: NonNegative = 0
    # ``listed``: the files, by digest
    blobs: Annotated[list[BlobEntry], Meta(max_length=1000)] = []
    # ``listed``: there are more files after the last one
    truncated: bool = False
    #: ``refused``: the reason
    message: Text = ""
