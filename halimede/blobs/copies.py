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
WAIT_S = 600.0
#: most files that are waited for; one more, and all waits begin anew
MAX_WAITING = 100_000
#: failures after which the next node is asked; others are this node's own
SOURCE_FAILURES = frozenset(
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
    """Return the nodes from which ``node`` may receive a file, the nearest in the tree first, ``origin`` last.

    ``origin`` has the file from the start. ``peers``: the nodes that copy it; only one of them receives it from
    ``origin``.
    """
    order = sorted({*peers, node} - {origin}, key=lambda name: hashlib.sha256(f"{digest} {name}".encode()).digest())
    ancestors, rank = [], order.index(node)
    while rank:
        rank = (rank - 1) // 2
        ancestors.append(order[rank])
    return [*ancestors, origin]


class CopyFetcher:
    """Fetches files that ``node`` copies from other nodes. ``client`` must have been started."""

    def __init__(self, client: BlobClient, node: str) -> None:
        self._node = node
        self._openers = {SCHEME: BusOpener(client, ask_all=False)}
        #: loop time since which another node is waited for, by the digest of the file
        self._waiting_since: dict[str, float] = {}

    async def fetch(
        self, digest: str, origin: str, peers: Collection[str], cache: Cache, progress: Progress | None = None
    ) -> Fetched:
        """Fetch a file into a cache. ``digest``: its SHA-256; ``origin``, ``peers``: as of ``sources``.

        Raises FetchError: a temporary one if it must wait for another node, or if no source has sent the file.
        """
        first_error: FetchError | None = None
        for source in [*sources(digest, self._node, peers, origin), ANY]:
            try:
                url_ = url(source, digest)
                fetched = await with_fallback(fetch, url_, "", cache, progress, openers=self._openers, limits=LIMITS)
            except FetchError as error:
                if error.reason not in SOURCE_FAILURES:
                    raise
                if error.reason is FetchReason.NOT_FOUND and source not in {origin, ANY} and self._may_wait(digest):
                    text = f"waiting for node {source} to have sha256:{digest}"
                    raise FetchError(FetchReason.NOT_FOUND, text, temporary=True) from error
                log.info("copy not received", source=source, digest=digest, reason=error.reason)
                first_error = first_error or error
            else:
                self._waiting_since.pop(digest, None)
                return fetched
        assert first_error is not None  # noqa: S101 - for the type checker
        raise FetchError(first_error.reason, str(first_error), temporary=True) from first_error

    def _may_wait(self, digest: str) -> bool:
        """Whether a node that does not have the file yet is waited for: for WAIT_S from the first call on."""
        now = asyncio.get_running_loop().time()
        if len(self._waiting_since) >= MAX_WAITING:
            self._waiting_since.clear()
        return now - self._waiting_since.setdefault(digest, now) < WAIT_S
