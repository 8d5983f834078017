"""Reports the state of each resource to GM: a retained NodeStatus, cleared when the resource is removed.

A report is composed when it is sent, so that changes in between cost nothing: counts leave at most once a second, a
new phase or reason at once, and the last state always. The removal is the acknowledgement of a delete: it is owed, on
disk, until the broker has taken it, and it is paid only after the resource's workers are gone, where this node runs
them. What they have left on the node goes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import get_args

import msgspec
import structlog

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.ordering import SequenceNumber
from halimede.bus.port import Bus
from halimede.errors import BusError, RefusedError, TooLargeError
from halimede.messages import DatasetFacts, ModelFacts, NodeStatus, Output, TaskInfo, WorkerInfo, WorkerReport
from halimede.names import Key
from halimede.stats import histogram
from halimede.stats.totals import add_up
from halimede.topic import Address
from services.lc.paths import Worker
from services.lc.planning.plan import WorkerBackend
from services.lc.planning.resource_state import Lack, ResourceState
from services.lc.store import NodeStore
from services.lc.supervisor.process import Role
from services.lc.supervisor.worker_state import WorkerPhase

log = structlog.get_logger()
#: seconds between two reports on one resource that differ only in counts
INTERVAL_S = 1.0
#: and between two of which the phase or reason differs: a worker may claim another one as often as it likes
URGENT_S = 0.1
#: seconds until the next attempt when the broker did not take one
RETRY_S = 1.0
#: seconds in which a status whose times alone have changed is no news
SAME_S = 10.0
WORST_FIRST = ("Failed", "Pending", "Running", "Ready")
STARTING = Lack("Pending", "Starting", "")
#: characters that a report has room for
MAX_REASON, MAX_MESSAGE = 256, 4096


class NodeStatusReporter:
    """The node's reports: ``standings`` come from the last plan, workers' reports from the bus."""

    def __init__(self, node: str, bus: Bus, store: NodeStore, workers: WorkerBackend) -> None:
        self._node = node
        self._bus = bus
        self._store = store
        self._workers = workers
        self._standings: Mapping[Key, ResourceState] = {}
        #: last reports on what was forgotten since: what a pod said just before counts
        self._last: dict[Key, NodeStatus] = {}
        self._dirty: set[Key] = set()
        self._sent: dict[Key, NodeStatus] = {}
        self._sent_at: dict[Key, float] = {}
        self._wake = asyncio.Event()
        #: of the present connection; with it and the number GM tells old reports from new ones
        self.epoch = 0
        self._number = 0
        #: reports that the broker took, and those that it will never take as they are
        self.taken = self.refused = 0

    @property
    def waiting(self) -> int:
        """Resources whose report is to be sent."""
        return len(self._dirty)

    def update(self, standings: Mapping[Key, ResourceState]) -> None:
        """Take a new plan's standings."""
        for key in set(standings) | set(self._standings):
            if standings.get(key) != self._standings.get(key):
                self.touch(key)
            if key not in standings:
                self._last[key] = self._workers.status(self._standings[key])
        self._standings = standings
        self._wake.set()

    def touch(self, key: Key) -> None:
        """Something about a resource has changed."""
        self._dirty.add(key)
        self._wake.set()

    def again(self, key: Key) -> None:
        """Report on a resource even if nothing has changed: GM seems not to know."""
        self._sent.pop(key, None)
        self.touch(key)

    def resend(self) -> None:
        """Report on everything again: the broker may have lost what it kept."""
        self._sent.clear()
        self._dirty |= set(self._standings)
        self._wake.set()

    async def on_worker_info(self, delivery: Delivery[WorkerInfo]) -> None:
        """Take what a worker says of itself. Only our own workers count, and only under their own name."""
        info, names = delivery.body, delivery.names
        worker = Worker(names["ns"], names["worker"])
        agrees = (info.namespace, info.name) == (worker.namespace, worker.name)
        service = self._workers.receive(worker, info) if agrees else None
        if service is None:
            log.warning("worker info ignored", worker=str(worker), owner=info.owner_name)
        else:
            self.touch(service)

    async def run(self) -> None:
        """Send what is due, until cancelled."""
        while True:
            self._wake.clear()
            try:
                wait = await self._round()
            except (BusError, sqlite3.Error) as error:
                log.info("reports deferred", error=str(error))
                wait = RETRY_S
            if wait is None:
                await self._wake.wait()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _round(self) -> float | None:
        """Send what is due; return the seconds until more is, None if nothing waits. Raises BusError."""
        if not self._bus.connected:
            return None
        for key in list(self._store.farewells):
            if self._gone(key):
                await self._clear(key)
        now, wait = asyncio.get_running_loop().time(), None
        for key in sorted(self._dirty):
            status, sent = self._compose(key), self._sent.get(key)
            if status is None or (sent and self._is_known(status, sent, now - self._sent_at[key])):
                self._dirty.discard(key)
                continue
            urgent = sent is None or (status.phase, status.reason) != (sent.phase, sent.reason)
            due = self._sent_at.get(key, float("-inf")) + (URGENT_S if urgent else INTERVAL_S)
            if sent is None or sent.uid != status.uid or due <= now:
                await self._send(key, status)
            else:
                # not less than a clock can tell apart, or the loop would spin
                wait = min(max(due - now, 0.01), INTERVAL_S if wait is None else wait)
        return wait

    @staticmethod
    def _is_known(status: NodeStatus, sent: NodeStatus, age_s: float) -> bool:
        """Whether GM knows a status: all of it, or for a while all but the times in it."""
        return status == sent or (age_s < SAME_S and _timeless(status) == _timeless(sent))

    def _compose(self, key: Key) -> NodeStatus | None:
        standing = self._standings.get(key)
        return self._workers.status(standing) if standing else None

    async def _send(self, key: Key, status: NodeStatus) -> None:
        self._dirty.discard(key)
        try:
            await self._bus.publish(self._address(key), status, properties=self._stamp())
        except (RefusedError, TooLargeError) as error:
            log.warning("report refused", key=str(key), error=str(error))
            self.refused += 1
        except BusError:
            self._dirty.add(key)
            raise
        else:
            self.taken += 1
        # also of a refused one: the next is tried when there is something new to say
        self._sent[key], self._sent_at[key] = status, asyncio.get_running_loop().time()

    async def _clear(self, key: Key) -> None:
        if (last := self._last.get(key)) and last != self._sent.get(key):
            await self._send(key, last)
        self._last.pop(key, None)
        try:
            await self._bus.clear(self._address(key))
        except RefusedError as error:
            log.warning("report not cleared", key=str(key), error=str(error))
        if self._gone(key):  # still: the broker took its time
            self._workers.clear_away(key)
        self._store.farewell_done(key)
        self._sent.pop(key, None)
        self._sent_at.pop(key, None)

    def _stamp(self) -> dict[str, str]:
        self._number += 1
        return SequenceNumber(self.epoch, self._number).properties

    def _gone(self, key: Key) -> bool:
        return key not in self._store.held and not self._workers.busy(key)

    def _address(self, key: Key) -> Address[NodeStatus]:
        return topics.NODE_STATUS.at(node=self._node, ns=key.namespace, plural=key.plural, name=key.name)


def compose(
    standing: ResourceState, reports: Mapping[Worker, WorkerReport], counts: Mapping[Worker, TaskInfo]
) -> NodeStatus:
    """Return the report on a resource from what the plan says of it and how its workers stand. Pure."""
    workers: list[WorkerReport] = []
    views: list[Lack] = [standing.settled] if standing.settled else []
    for worker, role in standing.workers.items():
        lack = standing.lacks.get(worker)
        report = reports.get(worker)
        view = lack or (Lack(report.phase, report.reason, report.message) if report else STARTING)
        views.append(view)
        told = report or _absent(worker, role, view)
        if part := standing.parts.get(worker):
            told = msgspec.structs.replace(told, part=part, task_info=counts.get(worker))
        workers.append(told)
    return status_of(standing, views, workers, _counts(standing, counts))


def status_of(
    standing: ResourceState, views: Sequence[Lack], workers: Sequence[WorkerReport], counts: TaskInfo | None
) -> NodeStatus:
    """Return a report whose phase is the worst of ``views`` (at least one)."""
    worst = min(views, key=lambda view: (WORST_FIRST.index(view.phase), not view.reason))
    models = list(standing.models)
    return NodeStatus(
        phase=worst.phase,
        status=worst.phase.lower(),
        output=Output(models=models, task_info=counts) if models or counts else None,
        uid=standing.uid,
        observed_generation=standing.generation,
        reason=worst.reason[:MAX_REASON],
        message=worst.message[:MAX_MESSAGE],
        workers=list(workers),
        model=standing.facts if isinstance(standing.facts, ModelFacts) else None,
        dataset=standing.facts if isinstance(standing.facts, DatasetFacts) else None,
    )


def _timeless(status: NodeStatus) -> NodeStatus:
    """Return a status without the times in its workers' counts."""
    output = status.output and msgspec.structs.replace(status.output, task_info=_untimed(status.output.task_info))
    workers = [msgspec.structs.replace(each, task_info=_untimed(each.task_info)) for each in status.workers]
    return msgspec.structs.replace(status, output=output, workers=workers)


def _untimed(info: TaskInfo | None) -> TaskInfo | None:
    return info and msgspec.structs.replace(info, current_time="", update_time="")


def add_roles(edge: Collection[TaskInfo], cloud: Collection[TaskInfo]) -> TaskInfo | None:
    """Add up both roles. A sample counts where it came in: beside edge workers, cloud ones add their work alone."""
    counting = edge or cloud
    if not counting:
        return None
    added, work = add_up(counting), [*edge, *cloud]
    if len(work) == len(counting):
        return added  # all work is counted already
    added.served, added.batches = sum(i.served for i in work), sum(i.batches for i in work)
    added.queue_latency = histogram.merge(i.queue_latency for i in work)
    added.compute_latency = histogram.merge(i.compute_latency for i in work)
    return added


def _counts(standing: ResourceState, counts: Mapping[Worker, TaskInfo]) -> TaskInfo | None:
    """Add up the counts of the workers that should run.

    An edge worker that has said nothing yet (it has just been started, or adopted) leaves the counts out: they are
    not known, which is not the same as zero.
    """
    known = {
        role: [counts[worker] for worker, its in standing.workers.items() if its == role and worker in counts]
        for role in get_args(Role)
    }
    edges = sum(role == "edge" for role in standing.workers.values())
    return None if len(known["edge"]) < edges else add_roles(known["edge"], known["cloud"])


def _absent(worker: Worker, role: Role, view: Lack) -> WorkerReport:
    """Report a worker that no process stands for."""
    phase: WorkerPhase = "Failed" if view.phase == "Failed" else "Pending"
    return WorkerReport(
        name=worker.name, role=role, phase=phase, reason=view.reason[:MAX_REASON], message=view.message[:MAX_MESSAGE]
    )
