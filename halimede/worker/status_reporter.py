"""A worker tells its local controller how it fares: when something changed, and every tenth period all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec
import structlog

from halimede import topics
from halimede.bus import Bus
from halimede.errors import BusError
from halimede.messages import ModelInUse, TaskInfo, WorkerInfo
from halimede.messages.control import WorkerRole

log = structlog.get_logger()

Status = Literal["starting", "running", "completed", "failed"]

#: of this many periods at least one brings a report
HEARTBEAT = 10
#: seconds that the last words wait for the broker
LAST_WORDS_S = 3.0
MAX_MESSAGE, MAX_REASON = 4096, 256
#: a worker that runs gets no frames from its own source
SOURCE_FAILED = "SourceFailed"


class ReportingWorker(Protocol):
    """Whose reports they are."""

    @property
    def role(self) -> WorkerRole: ...  # noqa: D102
    @property
    def node(self) -> str: ...  # noqa: D102
    @property
    def namespace(self) -> str: ...  # noqa: D102
    @property
    def service(self) -> str: ...  # noqa: D102
    @property
    def uid(self) -> str: ...  # noqa: D102
    @property
    def worker(self) -> str: ...  # noqa: D102
    @property
    def period_s(self) -> float: ...  # noqa: D102


class StatusReporter:
    """Publishes WorkerInfo. ``counts`` gives the worker's counts; before the worker has any, it is None.

    ``tier``: of a service with tiers, the worker's own.
    """

    def __init__(
        self, bus: Bus, settings: ReportingWorker, *, owner_kind: str = "jointinferenceservice", tier: str = ""
    ) -> None:
        self.counts: Callable[[], TaskInfo] | None = None
        #: which model the worker answers with; None: it cannot take another one
        self.model: Callable[[], ModelInUse] | None = None
        #: where the worker's health and metrics are
        self.http = ""
        #: where its inference protocol is, of one that serves it
        self.url = ""
        #: why no frames come to a worker that runs; empty: they do
        self.trouble: Callable[[], str] | None = None
        self._bus = bus
        self._period_s = settings.period_s
        names = {"node": settings.node, "ns": settings.namespace, "worker": settings.worker}
        self._address = topics.WORKER_INFO.at(**names)
        self._info = WorkerInfo(
            name=settings.worker,
            namespace=settings.namespace,
            owner_name=settings.service,
            owner_uid=settings.uid,
            owner_kind=owner_kind,
            role=settings.role,
            tier=tier,
            status="starting",
            period_s=HEARTBEAT * settings.period_s,
        )
        self._said: WorkerInfo | None = None
        self._soon = asyncio.Event()

    def set(self, status: Status, reason: str = "", message: str = "") -> None:
        """Change the status; it is reported at once."""
        self._info = msgspec.structs.replace(
            self._info, status=status, reason=reason[:MAX_REASON], message=message[:MAX_MESSAGE]
        )
        self.touch()

    def touch(self) -> None:
        """Something has changed: it is reported at once."""
        self._soon.set()

    async def run(self) -> None:
        """Report until cancelled."""
        self._bus.on_connect(self._connected)
        quiet = 0
        while True:
            self._soon.clear()
            if self._changed() or quiet >= HEARTBEAT:
                quiet = 0
                await self._publish()
            quiet += 1
            try:
                async with asyncio.timeout(self._period_s):
                    await self._soon.wait()
            except TimeoutError:
                continue

    async def last_words(self, status: Status, reason: str = "", message: str = "") -> None:
        """Report once more, waiting a little for the broker. Call it when ``run`` has ended."""
        self.set(status, reason, message)
        try:
            await self._bus.wait_connected(LAST_WORDS_S)
        except BusError as error:
            log.info("last report not sent", error=str(error))
        else:
            await self._publish()

    def _now(self) -> WorkerInfo:
        counts = self.counts() if self.counts else None
        model = self.model() if self.model else None
        info = msgspec.structs.replace(self._info, task_info=counts, http=self.http, model=model, url=self.url)
        trouble = self.trouble() if self.trouble and info.status == "running" else ""
        if trouble:
            info.reason, info.message = SOURCE_FAILED, trouble[:MAX_MESSAGE]
        return info

    def _changed(self) -> bool:
        return self._said is None or _timeless(self._now()) != _timeless(self._said)

    async def _publish(self) -> None:
        info = self._now()
        if not self._bus.connected:
            return
        try:
            await self._bus.publish(self._address, info, timeout_s=max(self._period_s, LAST_WORDS_S))
        except BusError as error:
            log.info("report not sent", error=str(error))
        else:
            self._said = info

    async def _connected(self) -> None:
        self._said = None  # who listens now may be a new local controller
        self._soon.set()


def _timeless(info: WorkerInfo) -> WorkerInfo:
    """Leave out what changes with every look at the clock."""
    if info.task_info is None:
        return info
    return msgspec.structs.replace(
        info, task_info=msgspec.structs.replace(info.task_info, current_time="", update_time="")
    )
