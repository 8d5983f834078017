"""Reports a worker's status to its local controller: on each change, and every third period."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec
import structlog

from halimede import topics
from halimede.bus import Bus
from halimede.bus.retained_publisher import RetainedPublisher
from halimede.errors import BusError, shorten_middle
from halimede.messages import ModelInUse, TaskInfo, TrainingProgress, WorkerInfo
from halimede.messages.control import WorkerRole

log = structlog.get_logger()

Status = Literal["starting", "running", "completed", "failed"]

#: at least one of this many periods has a report: with the default of one second, a report every 3 s
HEARTBEAT = 3
#: seconds that the final report waits for the broker
LAST_WORDS_S = 3.0
MAX_MESSAGE, MAX_REASON = 4096, 256
#: reason of a running worker whose source sends no frames
SOURCE_FAILED = "SourceFailed"
#: reason of a worker whose subscription or birth the broker refuses
SUBSCRIPTION_REFUSED = "SubscriptionRefused"
#: reason of a running worker whose session the broker had lost, with the frames in it
SESSION_LOST = "SessionLost"
#: reason of a running worker whose model is slower than its cameras
MODEL_TOO_SLOW = "ModelTooSlow"
#: reason of a worker whose disk is full
DISK_FULL = "DiskFull"
#: reason of a worker whose first version has a calibration that does not fit the service
CALIBRATION_INVALID = "CalibrationInvalid"
CALIBRATION_DIFFERS = "CalibrationDiffers"


class ReportingWorker(Protocol):
    """The identity of the reporting worker."""

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


class StatusReporter(RetainedPublisher[WorkerInfo]):
    """Publishes WorkerInfo. ``counts`` returns the worker's counts; None until the worker has any.

    ``tier``: the worker's tier in a service with tiers.
    """

    def __init__(
        self, bus: Bus, settings: ReportingWorker, *, owner_kind: str = "jointinferenceservice", tier: str = ""
    ) -> None:
        self.counts: Callable[[], TaskInfo] | None = None
        #: the worker's model; None: the worker cannot change its model
        self.model: Callable[[], ModelInUse] | None = None
        #: the progress of the worker's training; None: it does not train
        self.training: Callable[[], TrainingProgress] | None = None
        #: address of the worker's health and metrics
        self.http = ""
        #: address of its inference protocol, if it serves it
        self.url = ""
        #: reasons for conditions, with functions that return what is wrong with a running worker; empty texts: nothing
        self.troubles: list[tuple[str, Callable[[], str]]] = []
        period_s = settings.period_s
        super().__init__(
            bus,
            topics.WORKER_INFO.at(node=settings.node, ns=settings.namespace, worker=settings.worker),
            self._now,
            same=lambda info, before: _timeless(info) == _timeless(before),
            least_s=0.0,
            lasts_s=0.0,
            heartbeat_s=HEARTBEAT * period_s,
            poll_s=period_s,
            timeout_s=max(period_s, LAST_WORDS_S),
        )
        self._info = WorkerInfo(
            name=settings.worker,
            namespace=settings.namespace,
            owner_name=settings.service,
            owner_uid=settings.uid,
            owner_kind=owner_kind,
            role=settings.role,
            tier=tier,
            status="starting",
            period_s=HEARTBEAT * period_s,
        )

    def set(self, status: Status, reason: str = "", message: str = "") -> None:
        """Set the status and report it at once."""
        self._info = msgspec.structs.replace(
            self._info, status=status, reason=reason[:MAX_REASON], message=shorten_middle(message, MAX_MESSAGE)
        )
        self.touch()

    async def publish_final(self, status: Status, reason: str = "", message: str = "") -> None:
        """Send the final report and wait briefly for the broker. Call it after ``run`` has ended."""
        self.set(status, reason, message)
        try:
            await self._bus.wait_connected(LAST_WORDS_S)
        except BusError as error:
            log.info("last report not sent", error=str(error))
        else:
            await self.publish()

    def _now(self) -> WorkerInfo:
        counts = self.counts() if self.counts else None
        model = self.model() if self.model else None
        training = self.training() if self.training else None
        info = msgspec.structs.replace(
            self._info, task_info=counts, http=self.http, model=model, url=self.url, training=training
        )
        for reason, trouble in self.troubles if info.status == "running" else ():
            if text := trouble():
                info.reason, info.message = reason, shorten_middle(text, MAX_MESSAGE)
                break
        return info


def _timeless(info: WorkerInfo) -> WorkerInfo:
    """Return the report without its times."""
    if info.task_info is None:
        return info
    return msgspec.structs.replace(
        info, task_info=msgspec.structs.replace(info.task_info, current_time="", update_time="")
    )
