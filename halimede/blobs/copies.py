"""Copies a file of one node to several: each of them receives it from one other node, and gives it to at most two.

The nodes form a binary tree for each file. Its order follows from the digest, so that all nodes know the tree without a
message, and each node has another place for each file: the node that has the files sends each of them once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection

import structlog

from halimede.blobs.client import BlobClient
from halimede.blobs.download import BusOpener, with_fallback
from halimede.blobs.uris import ANY, SCHEME, url
from halimede.models import Cache, Fetched, fetch
from halimede.models.errors import FetchError, FetchReason
from halimede.models.fetcher import Progress
from halimede.models.source_types import TransferLimits

log = structlog.get_logger()
#: a node that does not answer is left early: another one has the file as well, or will have it
LIMITS = TransferLimits(connect_s=3.0, inactivity_s=15.0)
#: seconds for which a node that answers may not have the file yet
PATIENCE_S = 600.0
#: most files that are waited for
WAITING = 100_000
#: failures after which the next node is asked; others are of this node
OF_THE_SOURCE = frozenset(
    {
        FetchReason.DIGEST_MISMATCH,
        FetchReason.INTERRUPTED,
        FetchReason.NOT_FOUND,
        FetchReason.TIMEOUT,
        FetchReason.TOO_SLOW,
        FetchReason.UNREACHABLE,
    }
)


def sources(digest: str, node: str, peers: Collection[str], origin: str) -> list[str]:
    """Return the nodes from which a node may receive a file, the nearest first; ``origin`` has it from the start.

    ``peers`` are the nodes that copy it. Only one of them receives it from ``origin``.
    """
    order = sorted({*peers, node} - {origin}, key=lambda name: hashlib.sha256(f"{digest} {name}".encode()).digest())
    ancestors, rank = [], order.index(node)
    while rank:
        rank = (rank - 1) // 2
        ancestors.append(order[rank])
    return [*ancestors, origin]


class CopyFetcher:
    """Fetches files that a node copies. ``client`` must have been started."""

    def __init__(self, client: BlobClient, node: str) -> None:
        self._node = node
        self._named = {SCHEME: BusOpener(client, ask_all=False)}
        self._waiting: dict[str, float] = {}

    async def fetch(
        self, digest: str, origin: str, peers: Collection[str], cache: Cache, progress: Progress | None = None
    ) -> Fetched:
        """Fetch a file into a cache. Raises FetchError: a temporary one with NOT_FOUND if it must wait for a node."""
        last: FetchError | None = None
        for source in [*sources(digest, self._node, peers, origin), ANY]:
            try:
                where = url(source, digest)
                fetched = await with_fallback(fetch, where, "", cache, progress, openers=self._named, limits=LIMITS)
            except FetchError as error:
                if error.reason not in OF_THE_SOURCE:
                    raise
                if error.reason is FetchReason.NOT_FOUND and source not in {origin, ANY} and self._may_wait(digest):
                    text = f"waiting for node {source} to have sha256:{digest}"
                    raise FetchError(FetchReason.NOT_FOUND, text, temporary=True) from error
                log.info("copy not received", source=source, digest=digest, reason=error.reason)
                last = last or error
            else:
                self._waiting.pop(digest, None)
                return fetched
        assert last is not None  # noqa: S101 - for the type checker
        raise FetchError(last.reason, str(last), temporary=True) from last

    def _may_wait(self, digest: str) -> bool:
        """Whether a node that does not have the file yet is waited for, and not for too long already."""
        now = asyncio.get_running_loop().time()
        if len(self._waiting) >= WAITING:
            self._waiting.clear()
        return now - self._waiting.setdefault(digest, now) < PATIENCE_S
