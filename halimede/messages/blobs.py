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
    """Ask one source for a piece of a file. The correlation data says what it is an answer to."""

    digest: Digest
    offset: NonNegative = 0
    length: Annotated[int, Meta(ge=1, le=MAX_CHUNK)]


class BlobChunk(Message, kw_only=True, omit_defaults=False):
    """A piece of a file, or why there is none. ``data`` comes last, so that it is not copied.

    ``size`` is that of the whole file. A piece may be shorter than what was asked for; it is empty at the end alone.
    """

    v: Literal[1] = 1
    digest: Digest
    offset: NonNegative = 0
    size: NonNegative = 0
    #: ``NotFound``, ``Beyond`` (the offset is after the end of the file) or ``Unreadable``
    error: Short = ""
    data: memoryview


class BlobQuery(Message, kw_only=True):
    """Ask all sources who has a file. Nothing is said by one that has it not."""

    digest: Digest


class BlobOrder(Message, kw_only=True):
    """An operator's wish. ``keep``: bring the file of this digest from him who asks; ``list``, ``remove``."""

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
    """What a source answers to a query or an order. ``has``: to a query; ``refused`` says why in ``message``."""

    outcome: Literal["has", "kept", "listed", "removed", "refused"]
    size: NonNegative = 0
    blobs: Annotated[list[BlobEntry], Meta(max_length=1000)] = []
    truncated: bool = False
    message: Text = ""
