"""Reads the warnings about single pods (``PodWarnings``) from Kubernetes' events.

For example, a volume that cannot be mounted is in no field of a pod's status. A watch of all events of a cluster would
need much memory: only pods that have been starting for long are looked up, each at most every 8 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import structlog

from services.gm.cluster.kubernetes.api_paths import EVENTS, Object
from services.gm.cluster.kubernetes.client import KubernetesApiError, KubernetesClient

log = structlog.get_logger()
#: seconds for which an answer is used, most pods whose answers are kept, and most pods that one call looks up
FRESH_S, MAX_CACHED, AT_ONCE = 8.0, 1000, 4


class PodWarnings:
    """The last warning about each pod that was asked for, from the API or a cache."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client
        #: by uid of a pod: the event loop's time of the answer, and the warning
        self._cached: dict[str, tuple[float, tuple[str, str] | None]] = {}

    async def get(self, namespace: str, uids: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Return reason and message of each pod's last warning, by uid; without pods that have none.

        Answers may be some seconds old; a pod whose events could not be read, or have not been looked up, is left out.
        """
        now = asyncio.get_running_loop().time()
        read_at = {uid: self._cached.get(uid, (-FRESH_S, None))[0] for uid in sorted(uids)}
        stale = [uid for uid in read_at if now - read_at[uid] >= FRESH_S]
        for uid in sorted(stale, key=read_at.__getitem__)[:AT_ONCE]:  # each pod has its turn, however many are late
            try:
                self._cached[uid] = now, await self._last(namespace, uid)
            except KubernetesApiError as error:
                log.info("events not read", namespace=namespace, pod=uid, error=str(error))
                break
        while len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]
        return {uid: warning for uid in uids if (warning := self._cached.get(uid, (0.0, None))[1])}

    async def _last(self, namespace: str, uid: str) -> tuple[str, str] | None:
        """Read the last warning about a pod; None: there is none. Raises KubernetesApiError."""
        fields = f"involvedObject.uid={uid},type=Warning"
        last: Object = {}
        async for events, _ in self._client.pages(EVENTS, namespace=namespace, fields=fields):
            last = max([last, *events], key=_when)
        return (last.get("reason") or "Warning", last.get("message") or "") if last else None


def _when(event: Object) -> str:
    """Return when an event last happened, as text that sorts by time; empty for no event."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    created = (event.get("metadata") or {}).get("creationTimestamp")
    return next((time for time in times if time), created or "")
