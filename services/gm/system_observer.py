"""The facts about the system that only GM has (``SystemObserver``), for its answers, its page and its readiness.

These are the answers of services in the last minute, workers that have not reported lately, clocks of nodes, dead
letters, and GM's own trouble. A dead letter is a message that a client could not read. All lists are bounded; the worst
services and clocks come first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from halimede import __version__
from halimede.api import kind_of, kinds
from halimede.bus import Bus
from halimede.bus.port import refused_names
from halimede.errors import shorten_middle
from halimede.health_checks.facts import (
    BusFacts,
    DegradedAnswers,
    ManagerFacts,
    QuietWorker,
    RecentLetters,
    SystemFacts,
)
from halimede.messages import DeadLetter
from services.gm.cluster.port import Cluster, NodeReport, body_of, services_of, utc_now
from services.gm.node_infos import NodeInfos
from services.gm.nodes import Nodes
from services.gm.report_window import STEP_S, WINDOW_S, CountSample, ReportWindow
from services.gm.reports import NodeReports

#: most entries of each list in an answer
MOST_ENTRIES = 100
#: most dead letters that are kept, and most characters of a topic or reason in an answer
MOST_DEAD_LETTERS, MAX_TEXT = 100, 256
#: seconds by which a node's clock may differ from GM's before GM names it
CLOCK_S = 60.0


class SystemObserver:
    """Collects facts from GM's state. ``run`` records the counts of services; the other methods answer at any time."""

    def __init__(self, bus: Bus, cluster: Cluster, nodes: Nodes, reports: NodeReports, infos: NodeInfos) -> None:
        self._bus = bus
        self._cluster = cluster
        self._nodes = nodes
        self._reports = reports
        self._infos = infos
        self._window = ReportWindow()
        #: dead letters with the event loop's time of their arrival, the oldest first
        self._dead_letters: deque[tuple[float, DeadLetter]] = deque(maxlen=MOST_DEAD_LETTERS)
        #: all connections of GM to the broker, and whether they have TLS; GM sets both before its start
        self.connections: Sequence[Bus] = (bus,)
        self.tls = False

    async def run(self) -> None:
        """Call ``record`` every 5 s, until cancelled."""
        while True:
            self.record()
            await asyncio.sleep(STEP_S)

    def record(self) -> None:
        """Record the counts of all services, as their nodes have reported them last."""
        self._window.record(self._samples(), datetime.now(UTC))

    def receive_dead_letter(self, dead_letter: DeadLetter) -> None:
        """Keep a dead letter, for the answers of the next minute."""
        self._dead_letters.append((asyncio.get_running_loop().time(), dead_letter))

    def trouble_facts(self) -> ManagerFacts:
        """Return the facts on which GM's readiness depends: store, connection, and what the broker refuses.

        They are read often, so the facts about services are left out: these cost time.
        """
        return ManagerFacts(
            store=self._cluster.check(), connected=self._bus.connected, refused=refused_names(self.connections)
        )

    def manager_facts(self) -> ManagerFacts:
        """Return all facts about GM and what it has observed, at this time."""
        return msgspec.structs.replace(
            self.trouble_facts(),
            version=__version__,
            epoch=self._cluster.epoch,
            time=utc_now(),
            quarantined=self._cluster.quarantined,
            degraded=self._degraded_answers(),
            quiet=list(self._quiet_workers())[:MOST_ENTRIES],
            clocks=self._clocks(),
            letters=self._recent_letters(),
        )

    def system_facts(self, bus: BusFacts) -> SystemFacts:
        """Return the facts for all checks; ``bus``: what the caller has received from the broker."""
        resources = {
            kind.short_names[0]: [body_of(stored) for stored in self._cluster.resources(kind.plural)]
            for kind in kinds()
        }
        return SystemFacts(
            datetime.now(UTC),
            self.manager_facts(),
            __version__,
            nodes=list(self._infos.describe()),
            resources=resources,
            bus=bus,
            tls=self.tls,
        )

    def _online_reports(self) -> Iterator[NodeReport]:
        """Yield the live reports of online nodes on all services."""
        for stored in services_of(self._cluster):
            reports = self._reports.of(stored.key).values()
            yield from (report for report in reports if report.live and self._nodes.is_online(report.node))

    def _samples(self) -> Iterator[CountSample]:
        """Yield the counts of each service on each node with an edge worker."""
        for report in self._online_reports():
            if (info := report.task_info) and report.edge:
                yield CountSample(report.key, report.node, info.inference_number, info.degraded, info.current_time)

    def _degraded_answers(self) -> list[DegradedAnswers]:
        """Return the services with degraded answers in the last minute, those with the largest share first."""
        totals = [
            DegradedAnswers(kind_of(key.plural).short_names[0], key.namespace, key.name, total.answered, total.degraded)
            for key, total in self._window.totals().items()
            if total.degraded
        ]
        return sorted(totals, key=lambda total: total.degraded / total.answered, reverse=True)[:MOST_ENTRIES]

    def _quiet_workers(self) -> Iterator[QuietWorker]:
        """Yield the running workers without another problem whose next report is overdue, with the last one's time."""
        for report in self._online_reports():
            for worker in report.status.workers:
                if worker.last_report and worker.phase == "Running" and not worker.reason:
                    yield QuietWorker(report.key.namespace, worker.name, report.node, worker.last_report)

    def _clocks(self) -> dict[str, float]:
        """Return the seconds by which nodes' clocks are ahead (negative: behind), only large ones, by node."""
        offsets = sorted(self._window.clock_offsets.items(), key=lambda item: -abs(item[1]))
        return {node: round(offset_s, 1) for node, offset_s in offsets[:MOST_ENTRIES] if abs(offset_s) > CLOCK_S}

    def _recent_letters(self) -> RecentLetters | None:
        """Return the number of dead letters in the last minute (at most 100), with the first one; None: none came."""
        if not self._dead_letters:
            return None
        since = asyncio.get_running_loop().time() - WINDOW_S
        recent = [dead_letter for received_at, dead_letter in self._dead_letters if received_at >= since]
        if not recent:
            return None
        return RecentLetters(len(recent), recent[0].topic[:MAX_TEXT], shorten_middle(recent[0].reason, MAX_TEXT))
