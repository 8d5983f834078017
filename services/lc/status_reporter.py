"""Reports the state of each resource to GM: a retained NodeStatus, cleared when the resource is removed.

A report is composed when it is sent, so that intermediate changes cost nothing: changed counts are sent at most once a
second, a new phase or reason at once, and the last state always. Clearing it acknowledges a delete: the node stores
that it owes this until the broker accepted it, and sends it only after the resource's workers have ended, if this node
runs them. Their files on the node are then removed as well.
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
from halimede.errors import BusError, RefusedError, TooLargeError, shorten_middle
from halimede.messages import DatasetFacts, ModelFacts, NodeStatus, Output, TaskInfo, WorkerInfo, WorkerReport
from halimede.messages.control import MAX_CODE
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
#: seconds between two reports that differ in phase or reason: a worker may change them at any rate
URGENT_S = 0.1
#: seconds until the next attempt after a failed one
RETRY_S = 1.0
#: seconds for which a status with only new times is not sent
SAME_S = 10.0
#: the reason of a running worker whose Python file was removed
CODE_MISSING = "CodeMissing"
WORST_FIRST = ("Failed", "Pending", "Running", "Ready")
STARTING = Lack("Pending", "Starting", "")
#: most characters in a report
MAX_REASON, MAX_MESSAGE = 256, 4096


class NodeStatusReporter:
    """The node's reports: ``standings`` come from the last plan, workers' reports from the bus."""

    def __init__(self, node: str, bus: Bus, store: NodeStore, workers: WorkerBackend) -> None:
        self._node = node
        self._bus = bus
        self._store = store
        self._workers = workers
        self._states: Mapping[Key, ResourceState] = {}
        #: last reports on resources deleted since: the last report of a pod counts
        self._last: dict[Key, NodeStatus] = {}
        self._dirty: set[Key] = set()
        self._sent: dict[Key, NodeStatus] = {}
        self._sent_at: dict[Key, float] = {}
        self._wake = asyncio.Event()
        #: epoch of the present connection; with it and the number GM orders reports
        self.epoch = 0
        self._number = 0
        #: reports that the broker accepted, and reports that it refused
        self.accepted = self.refused = 0

    @property
    def waiting(self) -> int:
        """Resources whose report must be sent."""
        return len(self._dirty)

    def update(self, states: Mapping[Key, ResourceState]) -> None:
        """Use the states of a new plan."""
        for key in set(states) | set(self._states):
            if states.get(key) != self._states.get(key):
                self.touch(key)
            if key not in states:
                self._last[key] = self._workers.status(self._states[key])
        self._states = states
        self._wake.set()

    def touch(self, key: Key) -> None:
        """Mark a resource as changed."""
        self._dirty.add(key)
        self._wake.set()

    def report_again(self, key: Key) -> None:
        """Report on a resource even without a change: GM seems not to have its report."""
        self._sent.pop(key, None)
        self.touch(key)

    def resend(self) -> None:
        """Report on all resources again: the broker may have lost its retained messages."""
        self._sent.clear()
        self._dirty |= set(self._states)
        self._wake.set()

    async def on_worker_info(self, delivery: Delivery[WorkerInfo]) -> None:
        """Receive a worker's report. Only workers of this node count, and only under their own names."""
        info, names = delivery.body, delivery.names
        worker = Worker(names["ns"], names["worker"])
        agrees = (info.namespace, info.name) == (worker.namespace, worker.name)
        service = self._workers.receive(worker, info) if agrees else None
        if service is None:
            log.warning("worker info ignored", worker=str(worker), owner=info.owner_name)
        else:
            self.touch(service)

    async def run(self) -> None:
        """Send due reports, until cancelled."""
        while True:
            self._wake.clear()
            try:
                wait = await self._send_due()
            except (BusError, sqlite3.Error) as error:
                log.info("reports deferred", error=str(error))
                wait = RETRY_S
            if wait is None:
                await self._wake.wait()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _send_due(self) -> float | None:
        """Send due reports; return the seconds until the next, None if there is none. Raises BusError."""
        if not self._bus.connected:
            return None
        for key in list(self._store.uncleared):
            if self._has_ended(key):
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
                # at least the resolution of a clock, or the loop would spin
                wait = min(max(due - now, 0.01), INTERVAL_S if wait is None else wait)
        return wait

    @staticmethod
    def _is_known(status: NodeStatus, sent: NodeStatus, age_s: float) -> bool:
        """Whether GM has a status: all of it, or for a while all but its times."""
        return status == sent or (age_s < SAME_S and _timeless(status) == _timeless(sent))

    def _compose(self, key: Key) -> NodeStatus | None:
        state = self._states.get(key)
        return self._workers.status(state) if state else None

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
            self.accepted += 1
        # also after a refusal: the next attempt is made after the next change
        self._sent[key], self._sent_at[key] = status, asyncio.get_running_loop().time()

    async def _clear(self, key: Key) -> None:
        if (last := self._last.get(key)) and last != self._sent.get(key):
            await self._send(key, last)
        self._last.pop(key, None)
        try:
            await self._bus.clear(self._address(key))
        except RefusedError as error:
            log.warning("report not cleared", key=str(key), error=str(error))
        if self._has_ended(key):  # check again: the broker may have taken long
            self._workers.clear_away(key)
        self._store.remove_uncleared(key)
        self._sent.pop(key, None)
        self._sent_at.pop(key, None)

    def _stamp(self) -> dict[str, str]:
        self._number += 1
        return SequenceNumber(self.epoch, self._number).properties

    def _has_ended(self, key: Key) -> bool:
        return key not in self._store.resources and not self._workers.is_busy(key)

    def _address(self, key: Key) -> Address[NodeStatus]:
        return topics.NODE_STATUS.at(node=self._node, ns=key.namespace, plural=key.plural, name=key.name)


def compose(
    state: ResourceState, reports: Mapping[Worker, WorkerReport], counts: Mapping[Worker, TaskInfo]
) -> NodeStatus:
    """Return the report on a resource from its planned state and its workers' reports. Pure."""
    workers: list[WorkerReport] = []
    views: list[Lack] = [state.settled] if state.settled else []
    for worker, role in state.workers.items():
        lack = state.lacks.get(worker)
        reported = reports.get(worker)
        view = lack or (Lack(reported.phase, reported.reason, reported.message) if reported else STARTING)
        views.append(view)
        report = reported or _pending_report(worker, role, view)
        if (file := state.missing_code.get(worker)) and report.phase == "Running" and not report.reason:
            text = f"{file} is missing: the worker keeps the code that it has, and cannot start again without that file"
            report = msgspec.structs.replace(report, reason=CODE_MISSING, message=shorten_middle(text, MAX_MESSAGE))
        if part := state.parts.get(worker):
            report = msgspec.structs.replace(report, part=part, task_info=counts.get(worker))
        workers.append(report)
    return status_of(state, views, workers, _counts(state, counts))


def status_of(
    state: ResourceState, views: Sequence[Lack], workers: Sequence[WorkerReport], counts: TaskInfo | None
) -> NodeStatus:
    """Return a report whose phase is the worst of ``views`` (at least one)."""
    worst = min(views, key=lambda view: (WORST_FIRST.index(view.phase), not view.reason))
    return NodeStatus(
        phase=worst.phase,
        status=worst.phase.lower(),
        output=Output(models=list(state.models), task_info=counts),
        uid=state.uid,
        observed_generation=state.generation,
        reason=worst.reason[:MAX_REASON],
        message=shorten_middle(worst.message, MAX_MESSAGE),
        workers=list(workers),
        model=state.facts if isinstance(state.facts, ModelFacts) else None,
        dataset=state.facts if isinstance(state.facts, DatasetFacts) else None,
        code=dict(sorted(state.code.items())[:MAX_CODE]),
    )


def _timeless(status: NodeStatus) -> NodeStatus:
    """Return a status without the times in its workers' counts."""
    output = status.output and msgspec.structs.replace(status.output, task_info=_clear_times(status.output.task_info))
    workers = [msgspec.structs.replace(report, task_info=_clear_times(report.task_info)) for report in status.workers]
    return msgspec.structs.replace(status, output=output, workers=workers)


def _clear_times(info: TaskInfo | None) -> TaskInfo | None:
    return info and msgspec.structs.replace(info, current_time="", update_time="")


def add_roles(edge: Collection[TaskInfo], cloud: Collection[TaskInfo]) -> TaskInfo | None:
    """Add up both roles. A sample counts once, at the edge if there is one; cloud workers add their work."""
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


def _counts(state: ResourceState, counts: Mapping[Worker, TaskInfo]) -> TaskInfo | None:
    """Add up the counts of the workers that should run.

    While an edge worker has not reported yet (just started, or adopted), there are no counts: they are unknown, which
    is not the same as zero.
    """
    by_role = {
        role: [counts[worker] for worker, its in state.workers.items() if its == role and worker in counts]
        for role in get_args(Role)
    }
    edges = sum(role == "edge" for role in state.workers.values())
    return None if len(by_role["edge"]) < edges else add_roles(by_role["edge"], by_role["cloud"])


def _pending_report(worker: Worker, role: Role, view: Lack) -> WorkerReport:
    """Return the report of a worker without a process."""
    phase: WorkerPhase = "Failed" if view.phase == "Failed" else "Pending"
    return WorkerReport(
        name=worker.name,
        role=role,
        phase=phase,
        reason=view.reason[:MAX_REASON],
        message=shorten_middle(view.message, MAX_MESSAGE),
    )
