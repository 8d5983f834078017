"""Kubernetes events: what happened, shown by ``kubectl describe`` of the object that it happened to.

They are told by a task of their own from a bounded queue, so nothing waits for them and nothing fails because of them.
The same again raises the count of the event that is there.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from halimede.system.backoff import exponential
from services.gm.cluster.kubernetes.api_paths import EVENTS, MANAGER, Object
from services.gm.cluster.kubernetes.client import KubernetesClient
from services.gm.cluster.kubernetes.errors import KubernetesApiError, NotFoundError, UnavailableError
from services.gm.cluster.kubernetes.fence import Leadership
from services.gm.cluster.port import EventType

log = structlog.get_logger()

#: events that wait, and those of which it is known where they are
MAX_WAITING, MAX_KNOWN = 1000, 2000
#: tries, and seconds between the first two
TRIES, PAUSE = 4, 1.0
#: characters of a message, as the API allows
MAX_MESSAGE = 1000
#: characters of an object's name in the name of its event, which may have 253
MAX_NAME = 230


@dataclass(frozen=True, slots=True)
class Happened:
    """One event to write. ``involved`` names the object; an object without a namespace has its events in default."""

    type: EventType
    reason: str
    involved: tuple[tuple[str, str], ...]
    message: str


class Events:
    """Writes events in the order in which they were added."""

    def __init__(self, client: KubernetesClient, leadership: Leadership) -> None:
        self._client = client
        self._leadership = leadership
        self._waiting: asyncio.Queue[tuple[Happened, int]] = asyncio.Queue(MAX_WAITING)
        self._known: OrderedDict[Happened, tuple[str, int]] = OrderedDict()
        #: events that were not told: there were too many, or the server would not have them
        self.dropped = 0

    def add(self, type_: EventType, reason: str, involved: Object, message: str, times: int = 1) -> None:
        """Tell that something happened ``times`` times to an object. Waits for nothing."""
        happened = Happened(type_, reason, tuple(sorted(involved.items())), message[:MAX_MESSAGE])
        try:
            self._waiting.put_nowait((happened, times))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Tell them until cancelled."""
        while True:
            happened, times = await self._waiting.get()
            try:
                await self._write_event(happened, times)
            except KubernetesApiError as error:
                self.dropped += 1
                log.warning("event not told", reason=happened.reason, message=happened.message, error=str(error))

    async def _write_event(self, happened: Happened, times: int) -> None:
        for attempt in range(1, TRIES + 1):
            if not self._leadership.leading:
                self.dropped += 1
                return
            try:
                await self._write(happened, times)
            except UnavailableError as error:
                if attempt == TRIES:
                    raise
                await asyncio.sleep(max(exponential(attempt, PAUSE, math.inf), error.retry_after_s))
            else:
                return

    async def _write(self, happened: Happened, times: int) -> None:
        involved = dict(happened.involved)
        namespace = involved.get("namespace") or "default"
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        if happened in self._known:
            name, count = self._known[happened]
            try:
                await self._client.patch(EVENTS, namespace, name, {"count": count + times, "lastTimestamp": now})
            except NotFoundError:  # the server forgets events after an hour
                del self._known[happened]
            else:
                self._known[happened] = (name, count + times)
                return
        name = f"{involved['name'][:MAX_NAME].rstrip('.-')}.{secrets.token_hex(8)}"
        body = {
            "apiVersion": EVENTS.version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": involved,
            "type": happened.type,
            "reason": happened.reason,
            "message": happened.message,
            "source": {"component": MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": times,
        }
        await self._client.create(EVENTS, namespace, body)
        self._known[happened] = (name, times)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
