"""The facts about the system that only GM has, for its answers, its page and its readiness.

Counts of the last minute, workers that have not reported lately, clocks of nodes, dead letters, and GM's own trouble.
All lists are bounded: those that matter most come first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from halimede import __version__
from halimede.api import kind_of, kinds
from halimede.api.placement import SERVICES
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
from services.gm.cluster.port import Cluster, body_of, utc_now
from services.gm.node_infos import NodeInfos
from services.gm.nodes import Nodes
from services.gm.report_window import STEP_S, WINDOW_S, CountSample, ReportWindow
from services.gm.reports import NodeReports

#: entries of each list in an answer
MOST = 100
#: dead letters that are kept, and characters of a topic or reason
MOST_DEAD_LETTERS, MAX_TEXT = 100, 256
#: seconds by which a clock differs before GM names it
CLOCK_S = 60.0


class SystemObserver:
    """Observes until cancelled (``run``)."""

    def __init__(self, bus: Bus, cluster: Cluster, nodes: Nodes, reports: NodeReports, infos: NodeInfos) -> None:
        self._bus = bus
        self._cluster = cluster
        self._nodes = nodes
        self._reports = reports
        self._infos = infos
        self._window = ReportWindow()
        #: dead letters with the loop time of their arrival
        self._dead_letters: deque[tuple[float, DeadLetter]] = deque(maxlen=MOST_DEAD_LETTERS)
        #: all connections of GM, and whether they have TLS
        self.connections: Sequence[Bus] = (bus,)
        self.tls = False

    async def run(self) -> None:
        """Record the counts in even steps, until cancelled."""
        while True:
            self.record()
            await asyncio.sleep(STEP_S)

    def record(self) -> None:
        """Record the present counts of all services."""
        self._window.record(self._samples(), datetime.now(UTC))

    def receive_dead_letter(self, dead_letter: DeadLetter) -> None:
        """Keep a dead letter for a minute."""
        self._dead_letters.append((asyncio.get_running_loop().time(), dead_letter))

    def trouble_facts(self) -> ManagerFacts:
        """Return only what GM's readiness depends on: it is read often, and the counts of all services cost time."""
        return ManagerFacts(
            store=self._cluster.check(), connected=self._bus.connected, refused=refused_names(self.connections)
        )

    def manager_facts(self) -> ManagerFacts:
        """Return what GM has observed."""
        return msgspec.structs.replace(
            self.trouble_facts(),
            version=__version__,
            epoch=self._cluster.epoch,
            time=utc_now(),
            quarantined=self._cluster.quarantined,
            degraded=self._degraded_answers(),
            quiet=list(self._quiet_workers())[:MOST],
            clocks=self._clocks(),
            letters=self._recent_letters(),
        )

    def system_facts(self, bus: BusFacts) -> SystemFacts:
        """Return all facts, with what the page has received from the bus."""
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

    def _samples(self) -> Iterator[CountSample]:
        for plural in SERVICES:
            for stored in self._cluster.resources(plural):
                for node, report in self._reports.of(stored.key).items():
                    info = report.task_info
                    if info and report.live and report.edge and self._nodes.is_online(node):
                        yield CountSample(stored.key, node, info.inference_number, info.degraded, info.current_time)

    def _degraded_answers(self) -> list[DegradedAnswers]:
        totals = [
            DegradedAnswers(kind_of(key.plural).short_names[0], key.namespace, key.name, total.answered, total.degraded)
            for key, total in self._window.totals().items()
            if total.degraded
        ]
        return sorted(totals, key=lambda total: total.degraded / total.answered, reverse=True)[:MOST]

    def _quiet_workers(self) -> Iterator[QuietWorker]:
        for plural in SERVICES:
            for stored in self._cluster.resources(plural):
                for node, report in self._reports.of(stored.key).items():
                    for worker in report.status.workers if report.live and self._nodes.is_online(node) else ():
                        if worker.last_report and worker.phase == "Running" and not worker.reason:
                            yield QuietWorker(stored.key.namespace, worker.name, node, worker.last_report)

    def _clocks(self) -> dict[str, float]:
        offsets = sorted(self._window.clock_offsets.items(), key=lambda item: -abs(item[1]))
        return {node: round(offset_s, 1) for node, offset_s in offsets[:MOST] if abs(offset_s) > CLOCK_S}

    def _recent_letters(self) -> RecentLetters | None:
        if not self._dead_letters:
            return None
        since = asyncio.get_running_loop().time() - WINDOW_S
        recent = [dead_letter for received_at, dead_letter in self._dead_letters if received_at >= since]
        if not recent:
            return None
        return RecentLetters(len(recent), recent[0].topic[:MAX_TEXT], shorten_middle(recent[0].reason, MAX_TEXT))
