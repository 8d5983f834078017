"""Reports a worker's status to its local controller: on each change, and at least every third period."""

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

#: the state of a worker in its report
Status = Literal["starting", "running", "completed", "failed"]

#: periods after which an unchanged report is sent again: with the default period of one second, every 3 s
HEARTBEAT_PERIODS = 3
#: seconds that the final report waits for the broker
FINAL_REPORT_S = 3.0
#: characters of a report's message and of its reason
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
#: reason of a worker whose calibration was made with other pixels than its model gets
CALIBRATION_DIFFERS = "CalibrationDiffers"


class ReportingWorker(Protocol):
    """The identity of the reporting worker, as ``WorkerSettings`` has it. ``period_s``: seconds of a period."""

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
    """Publishes a worker's reports; ``RetainedPublisher`` describes ``run`` and ``touch``.

    ``owner_kind``: the kind of the worker's service; ``tier``: its tier in a service with tiers.

    Attributes:
        counts: returns the worker's counts; None until there are any.
        model: returns the state of the worker's model; None: the worker does not report it.
        training: returns the progress of the worker's training; None: it does not train.
        http: address of the worker's health and metrics; empty if it is off.
        url: address at which it serves the inference protocol; empty if it does not.
        troubles: pairs of a reason for conditions, and a function that returns what is wrong with a running worker
            (empty: nothing). The first one that is wrong is reported.

    """

    def __init__(
        self, bus: Bus, settings: ReportingWorker, *, owner_kind: str = "jointinferenceservice", tier: str = ""
    ) -> None:
        self.counts: Callable[[], TaskInfo] | None = None
        self.model: Callable[[], ModelInUse] | None = None
        self.training: Callable[[], TrainingProgress] | None = None
        self.http = ""
        self.url = ""
        self.troubles: list[tuple[str, Callable[[], str]]] = []
        period_s = settings.period_s
        super().__init__(
            bus,
            topics.WORKER_INFO.at(node=settings.node, ns=settings.namespace, worker=settings.worker),
            self._current_info,
            same=lambda info, before: _without_times(info) == _without_times(before),
            least_s=0.0,
            lasts_s=0.0,
            heartbeat_s=HEARTBEAT_PERIODS * period_s,
            poll_s=period_s,
            timeout_s=max(period_s, FINAL_REPORT_S),
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
            period_s=HEARTBEAT_PERIODS * period_s,
        )

    def set(self, status: Status, reason: str = "", message: str = "") -> None:
        """Set the status, with a reason for conditions and a message for users, and have ``run`` report it at once."""
        text = shorten_middle(message, MAX_MESSAGE)
        self._info = msgspec.structs.replace(self._info, status=status, reason=reason[:MAX_REASON], message=text)
        self.touch()

    async def publish_final(self, status: Status, reason: str = "", message: str = "") -> None:
        """Send the final report; wait up to FINAL_REPORT_S for the broker. Call it after ``run`` has ended."""
        self.set(status, reason, message)
        try:
            await self._bus.wait_connected(FINAL_REPORT_S)
        except BusError as error:
            log.info("last report not sent", error=str(error))
        else:
            await self.publish()

    def _current_info(self) -> WorkerInfo:
        """Return the report to send now."""
        info = msgspec.structs.replace(self._info, http=self.http, url=self.url)
        info.task_info = self.counts() if self.counts else None
        info.model = self.model() if self.model else None
        info.training = self.training() if self.training else None
        for reason, trouble in self.troubles if info.status == "running" else ():
            if text := trouble():
                info.reason, info.message = reason, shorten_middle(text, MAX_MESSAGE)
                break
        return info


def _without_times(info: WorkerInfo) -> WorkerInfo:
    """Return a report without its times: if all else is equal, it is not sent again."""
    if info.task_info is None:
        return info
    counts = msgspec.structs.replace(info.task_info, current_time="", update_time="")
    return msgspec.structs.replace(info, task_info=counts)
