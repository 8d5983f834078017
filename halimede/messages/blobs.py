"""Bodies of blob messages: files are identified by digest, and requested in pieces. Only a piece is msgpack."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from halimede.messages.base import Message, NonNegative, Short, Text

#: most bytes of a file in one message, and in one request
MAX_CHUNK = 1024 * 1024
DIGEST_PATTERN = r"^[0-9a-f]{64}$(?!\n)"

Digest = Annotated[str, Meta(pattern=DIGEST_PATTERN, max_length=64)]


class BlobRequest(Message, kw_only=True):
    """Asks one source for a piece of a file. The correlation data identifies the answer."""

    digest: Digest
    offset: NonNegative = 0
    length: Annotated[int, Meta(ge=1, le=MAX_CHUNK)]


class BlobChunk(Message, kw_only=True, omit_defaults=False):
    """A piece of a file, or the reason why there is none. ``data`` comes last, so that it is not copied.

    ``size`` is that of the whole file. A piece may be shorter than requested; it is empty only at the end.
    """

    v: Literal[1] = 1
    digest: Digest
    offset: NonNegative = 0
    size: NonNegative = 0
    #: ``NotFound``, ``Beyond`` (the offset is after the end of the file) or ``Unreadable``
    error: Short = ""
    data: memoryview


class BlobQuery(Message, kw_only=True):
    """Asks all sources whether they have a file. A source without it does not answer."""

    digest: Digest


class BlobOrder(Message, kw_only=True):
    """An operator's order to a source: ``keep`` a file (fetched from the client), ``list`` files, ``remove`` one."""

    op: Literal["keep", "list", "remove"]
    digest: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$", max_length=64)] = ""
    size: NonNegative = 0
    #: ``list``: only digests after this one
    after: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$", max_length=64)] = ""


class BlobEntry(Message, kw_only=True):
    """One file of a source."""

    digest: Digest
    size: NonNegative


class BlobAnswer(Message, kw_only=True):
    """A source's answer to a query (``has``) or an order. With ``refused``, ``message`` has the reason."""

    outcome: Literal["has", "kept", "listed", "removed", "refused"]
    size: NonNegative = 0
    blobs: Annotated[list[BlobEntry], Meta(max_length=1000)] = []
    truncated: bool = False
    message: Text = ""
