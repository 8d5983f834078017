"""Reports the state of each resource to GM (``NodeStatusReporter``): a retained ``NodeStatus`` for each.

A report is composed when it is sent, so that intermediate changes cost nothing: changed counts are sent at most once a
second, a new phase or reason at once, and the last state always. When GM has deleted a resource, and its workers on
this node have ended, the report is cleared (an empty message), which acknowledges the delete to GM. Until then the key
is in ``NodeStore.uncleared``; a refusal by the broker is logged and ends this too. Then the workers' files on the node
are removed as well.

``compose``, ``status_of`` and ``add_roles`` are for the ``WorkerBackend``s, whose ``status`` the reporter calls.
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
from services.lc.planning.resource_state import LocalPhase, ResourceState
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
#: seconds for which a report with only new times is not sent
SAME_S = 10.0
#: the reason of a running worker whose Python file was removed
CODE_MISSING = "CodeMissing"
#: phases, the worst first
WORST_FIRST = ("Failed", "Pending", "Running", "Ready")
#: the state of a worker that has not begun yet
STARTING = LocalPhase("Pending", "Starting", "")
#: most characters of a reason and of a message in a report
MAX_REASON, MAX_MESSAGE = 256, 4096


class DueReports:
    """The resources whose report must be sent: whoever changes the state of a resource adds its key."""

    def __init__(self) -> None:
        self.keys: set[Key] = set()
        #: set when a key was added
        self.added = asyncio.Event()

    def add(self, *keys: Key) -> None:
        """Have the reports on resources sent."""
        self.keys.update(keys)
        self.added.set()


class NodeStatusReporter:
    """The node's reports. ``update`` sets the states of the last plan; workers' reports arrive over ``bus``.

    ``start`` it before the first connection, and run ``run``. ``due``: the resources to report on.
    """

    def __init__(self, node: str, bus: Bus, store: NodeStore, workers: WorkerBackend, due: DueReports) -> None:
        self._node = node
        self._bus = bus
        self._store = store
        self._workers = workers
        self._due = due
        self._states: Mapping[Key, ResourceState] = {}
        #: last reports on resources that were removed, to be sent before they are cleared: they have the last counts
        self._last: dict[Key, NodeStatus] = {}
        #: the last report that was sent on each resource, and the event loop's time of that
        self._sent: dict[Key, NodeStatus] = {}
        self._sent_at: dict[Key, float] = {}
        #: number of the present connection, and of the last report: by both GM orders reports
        self.epoch = 0
        self._number = 0
        #: number of reports that the broker accepted, and of reports that it refused or that were too large
        self.accepted = self.refused = 0

    @property
    def waiting(self) -> int:
        """The number of resources whose report must be sent."""
        return len(self._due.keys)

    async def start(self) -> None:
        """Subscribe to the reports of workers."""
        await self._bus.subscribe(topics.WORKER_INFO.filter(node=self._node), self._on_worker_info)

    def update(self, states: Mapping[Key, ResourceState]) -> None:
        """Use the states of a new plan from now on; a resource that is not among them was removed."""
        for key in set(states) | set(self._states):
            if states.get(key) != self._states.get(key):
                self._due.add(key)
            if key not in states:
                self._last[key] = self._workers.status(self._states[key])
        self._states = states
        self._due.added.set()  # the report on a removed resource may be cleared now

    def report_again(self, key: Key) -> None:
        """Have a resource reported even without a change: GM seems not to have the report."""
        self._sent.pop(key, None)
        self._due.add(key)

    def resend(self) -> None:
        """Have all resources reported again: the broker may have lost its retained messages."""
        self._sent.clear()
        self._due.add(*self._states)

    async def _on_worker_info(self, delivery: Delivery[WorkerInfo]) -> None:
        """Receive a worker's report; one of an unknown worker, or under another name than its topic's, is ignored."""
        info, names = delivery.body, delivery.names
        worker = Worker(names["ns"], names["worker"])
        agrees = (info.namespace, info.name) == (worker.namespace, worker.name)
        service = self._workers.receive(worker, info) if agrees else None
        if service is None:
            log.warning("worker info ignored", worker=str(worker), owner=info.owner_name)
        else:
            self._due.add(service)

    async def run(self) -> None:
        """Send due reports, and clear those of removed resources, until cancelled."""
        while True:
            self._due.added.clear()
            try:
                wait = await self._send_due()
            except (BusError, sqlite3.Error) as error:
                log.info("reports deferred", error=str(error))
                wait = RETRY_S
            if wait is None:
                await self._due.added.wait()
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._due.added.wait()

    async def _send_due(self) -> float | None:
        """Send due reports; return the seconds until the next one is due, None: none is.

        Raises BusError if the connection ends, sqlite3.Error if the store fails.
        """
        if not self._bus.connected:
            return None
        for key in list(self._store.uncleared):
            if self._has_ended(key):
                await self._clear(key)
        now, wait = asyncio.get_running_loop().time(), None
        for key in sorted(self._due.keys):
            state, sent = self._states.get(key), self._sent.get(key)
            status = self._workers.status(state) if state else None
            if status is None or (sent and self._is_known(status, sent, now - self._sent_at[key])):
                self._due.keys.discard(key)
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
        """Whether ``status`` need not be sent: it equals ``sent``, or only times differ and ``age_s`` < SAME_S.

        ``age_s``: seconds since ``sent`` was sent.
        """
        return status == sent or (age_s < SAME_S and _timeless(status) == _timeless(sent))

    async def _send(self, key: Key, status: NodeStatus) -> None:
        """Send a report. Raises BusError without a broker; a refusal is logged and counted."""
        self._due.keys.discard(key)
        try:
            await self._bus.publish(self._address(key), status, properties=self._stamp())
        except (RefusedError, TooLargeError) as error:
            log.warning("report refused", key=str(key), error=str(error))
            self.refused += 1
        except BusError:
            self._due.keys.add(key)  # ``run`` pauses before the next attempt
            raise
        else:
            self.accepted += 1
        # also after a refusal: the next attempt is made after the next change
        self._sent[key], self._sent_at[key] = status, asyncio.get_running_loop().time()

    async def _clear(self, key: Key) -> None:
        """Send the last report on a removed resource, clear it, and remove the files of its workers."""
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
        """Return the properties by which GM orders reports."""
        self._number += 1
        return SequenceNumber(self.epoch, self._number).properties

    def _has_ended(self, key: Key) -> bool:
        """Whether a resource is no longer stored, and none of its workers runs here."""
        return key not in self._store.resources and not self._workers.is_busy(key)

    def _address(self, key: Key) -> Address[NodeStatus]:
        """Return the topic of the report on a resource."""
        return topics.NODE_STATUS.at(node=self._node, ns=key.namespace, plural=key.plural, name=key.name)


def compose(
    state: ResourceState, reports: Mapping[Worker, WorkerReport], counts: Mapping[Worker, TaskInfo]
) -> NodeStatus:
    """Return the report on a resource whose workers are processes. Pure.

    ``state``: by the last plan. ``reports`` and ``counts``: of those of its workers that have any.
    """
    workers: list[WorkerReport] = []
    views: list[LocalPhase] = [state.settled] if state.settled else []
    for worker, role in state.workers.items():
        lack = state.lacks.get(worker)
        reported = reports.get(worker)
        view = lack or (LocalPhase(reported.phase, reported.reason, reported.message) if reported else STARTING)
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
    state: ResourceState, views: Sequence[LocalPhase], workers: Sequence[WorkerReport], counts: TaskInfo | None
) -> NodeStatus:
    """Return a report with the worst phase of ``views`` (at least one), its reason and message.

    ``workers``: the reports of the workers. ``counts``: the sum of their counts; None: unknown.
    """
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
    """Return a report without the times in its counts."""
    output = status.output and msgspec.structs.replace(status.output, task_info=_clear_times(status.output.task_info))
    workers = [msgspec.structs.replace(report, task_info=_clear_times(report.task_info)) for report in status.workers]
    return msgspec.structs.replace(status, output=output, workers=workers)


def _clear_times(info: TaskInfo | None) -> TaskInfo | None:
    """Return counts without their times; None for None."""
    return info and msgspec.structs.replace(info, current_time="", update_time="")


def add_roles(edge: Collection[TaskInfo], cloud: Collection[TaskInfo]) -> TaskInfo | None:
    """Return the sum of the counts of edge workers and other workers; None without any.

    A sample counts once, at the edge if there is an edge worker; others then add only their work.
    """
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
    """Return the sum of the counts of the workers that should run; None: unknown.

    They are unknown, which is not zero, while an edge worker has not reported any counts to this LC.
    """
    by_role = {
        role: [
            counts[worker] for worker, worker_role in state.workers.items() if worker_role == role and worker in counts
        ]
        for role in get_args(Role)
    }
    edges = sum(role == "edge" for role in state.workers.values())
    # the role ``serve`` is not added: model servers report no counts
    return None if len(by_role["edge"]) < edges else add_roles(by_role["edge"], by_role["cloud"])


def _pending_report(worker: Worker, role: Role, view: LocalPhase) -> WorkerReport:
    """Return the report of a worker without a process."""
    phase: WorkerPhase = "Failed" if view.phase == "Failed" else "Pending"
    reason, message = view.reason[:MAX_REASON], shorten_middle(view.message, MAX_MESSAGE)
    return WorkerReport(name=worker.name, role=role, phase=phase, reason=reason, message=message)
