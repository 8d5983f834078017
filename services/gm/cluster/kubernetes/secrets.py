"""Whether Secrets are there, and their annotations. Their data is never asked for, so it cannot leak from here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping

from services.gm.cluster.kubernetes.api_paths import SECRETS, Object
from services.gm.cluster.kubernetes.client import KubernetesClient
from services.gm.cluster.kubernetes.conversion import trimmed
from services.gm.cluster.kubernetes.errors import NotFoundError

#: seconds for which an answer is good: one that is there seldom goes, one that is not is waited for
THERE, NOT_THERE = 60.0, 5.0
MAX_KNOWN = 5000


class Secrets:
    """The metadata of Secrets, asked for one by one: watching all of a cluster would take rights and memory."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client
        self._known: dict[tuple[str, str], tuple[float, Object | None]] = {}

    async def get(self, namespace: str, names: Collection[str]) -> Mapping[str, Object | None]:
        """Return the metadata of each; None for those that there are not."""
        return {name: await self._get(namespace, name) for name in names}

    async def _get(self, namespace: str, name: str) -> Object | None:
        now = asyncio.get_running_loop().time()
        until, known = self._known.get((namespace, name), (0.0, None))
        if now < until:
            return known
        found: Object | None = None
        with contextlib.suppress(NotFoundError):
            found = trimmed(await self._client.get(SECRETS, namespace, name, metadata_only=True))["metadata"]
        if len(self._known) >= MAX_KNOWN:
            self._known = {at: (until, known) for at, (until, known) in self._known.items() if now < until}
        if len(self._known) < MAX_KNOWN:
            self._known[namespace, name] = (now + (NOT_THERE if found is None else THERE), found)
        return found
