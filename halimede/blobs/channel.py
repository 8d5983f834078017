"""The topics of an exchange of blobs: those of the site's files, or those of one training job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from halimede import topics
from halimede.messages import BlobChunk, BlobRequest
from halimede.topic import Address, Filter, Topic


@dataclass(frozen=True, slots=True)
class BlobChannel:
    """Where requests and pieces travel: the topics ``request`` and ``chunk``. Parties have names such as ``lc.edge0``.

    ``names``: values of the topics' further names, such as ``job``. ``has_queries``: its parties can also be asked who
    has a file, and take orders of operators.
    """

    request: Topic[BlobRequest] = topics.BLOB_REQUEST
    chunk: Topic[BlobChunk] = topics.BLOB_CHUNK
    names: Mapping[str, str] = field(default_factory=dict)
    has_queries: bool = True

    def request_to(self, source: str, asker: str) -> Address[BlobRequest]:
        """Return the address of a request to a source."""
        return self.request.at(source=source, asker=asker, **self.names)

    def requests_of(self, source: str) -> Filter[BlobRequest]:
        """Return the filter of all requests to a source."""
        return self.request.filter(source=source, **self.names)

    def chunk_to(self, asker: str, source: str) -> Address[BlobChunk]:
        """Return the address of a piece for a requester."""
        return self.chunk.at(asker=asker, source=source, **self.names)

    def chunks_for(self, asker: str) -> Filter[BlobChunk]:
        """Return the filter of all pieces for a client."""
        return self.chunk.filter(asker=asker, **self.names)


#: the channel of the site's files
SITE = BlobChannel()
