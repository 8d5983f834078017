"""The LC's metrics for Prometheus and its health checks (``LcMetrics``), read from its components at each request."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from halimede.blobs.server import SourceStats
from halimede.bus.port import Bus, refusal_text, refused_names
from halimede.observe import Health
from halimede.observe.metrics import buses, counter, gauge, times
from services.lc.dataset_counts import Datasets
from services.lc.gm_channel import GmChannel
from services.lc.models.preparer import Preparer
from services.lc.planning.plan import WorkerBackend
from services.lc.status_reporter import NodeStatusReporter
from services.lc.store import NodeStore


@dataclass(slots=True)
class LcMetrics:
    """Reads the metrics of one LC from its parts.

    ``transfers``: counts of pieces of files sent to other nodes and operators; ``work``: the tasks that run for the
    LC's whole life.
    """

    bus: Bus
    store: NodeStore
    workers: WorkerBackend
    preparer: Preparer
    datasets: Datasets
    reporter: NodeStatusReporter
    channel: GmChannel
    transfers: SourceStats
    work: Collection[asyncio.Task[None]] = ()

    def health(self) -> Health:
        """Return the LC's checks for ``/healthz`` and ``/readyz``."""
        health = Health()
        health.live("tasks", self._ended_tasks)
        health.ready("broker", lambda: "" if self.bus.connected else "not connected to the broker")
        # "granted": the broker grants all subscriptions and births; the check names those that it refuses
        health.ready("granted", lambda: refusal_text(refused_names(self.channel.presence.connections)))
        health.ready("synced", lambda: "" if self.channel.synced else "GM has not answered since this connection")
        health.ready("store", lambda: _usable(self.store))
        return health

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from buses([self.bus])
        yield from _worker_metrics(self.workers)
        yield from _file_metrics(self.preparer, self.datasets)
        yield counter("lc_sent_bytes", "Bytes of files sent to other nodes and operators.", self.transfers.bytes)
        yield from _report_metrics(self.reporter, self.channel)
        yield from _store_metrics(self.store)

    def _ended_tasks(self) -> str:
        """Return which tasks have ended, as text; empty: none has."""
        ended = [task.get_name() for task in self.work if task.done()]
        return f"ended: {', '.join(ended)}" if ended else ""


def _worker_metrics(workers: WorkerBackend) -> Iterator[Metric]:
    """Yield the metrics of workers."""
    counted = Counter((report.role, report.phase) for report in workers.reports())
    samples = [({"role": role, "phase": phase}, n) for (role, phase), n in sorted(counted.items())]
    yield gauge("lc_workers", "Workers of this node, by role and phase.", samples)
    yield counter("lc_worker_restarts", "Worker processes restarted after an unexpected end.", workers.restarts)


def _file_metrics(preparer: Preparer, datasets: Datasets) -> Iterator[Metric]:
    """Yield the metrics of the files of Models and Datasets."""
    preparations = {**preparer.preparations, **datasets.preparations}
    counted = Counter((key.plural, preparation.phase) for key, preparation in preparations.items())
    samples = [({"plural": plural, "phase": phase}, n) for (plural, phase), n in sorted(counted.items())]
    yield gauge("lc_preparations", "Models and datasets that this node needs, by phase.", samples)
    downloads = preparer.downloads
    yield counter("lc_download_bytes", "Bytes of models downloaded from their origin.", downloads.bytes)
    yield times(
        "lc_download_seconds",
        "Time of each download of a model, complete or not.",
        [({}, downloads.times.histogram, downloads.times.total)],
    )
    failures = [({"reason": reason}, n) for reason, n in sorted(downloads.failures.items())]
    yield counter("lc_preparation_failures", "Failed preparations of models.", failures)


def _report_metrics(reporter: NodeStatusReporter, channel: GmChannel) -> Iterator[Metric]:
    """Yield the metrics of reports and syncs."""
    yield counter("lc_reports", "Reports that the broker acknowledged.", reporter.accepted)
    yield counter("lc_refused_reports", "Reports that the broker refused, or that were too large.", reporter.refused)
    yield gauge("lc_waiting_reports", "Resources whose report is to be sent.", reporter.waiting)
    yield counter("lc_syncs", "Syncs sent to the global manager.", channel.syncs)
    age = channel.sync_age_s
    yield gauge(
        "lc_sync_age_seconds", "Time since the global manager answered a sync.", [] if age is None else [({}, age)]
    )


def _store_metrics(store: NodeStore) -> Iterator[Metric]:
    """Yield the metrics of the store."""
    resources = Counter(key.plural for key in store.resources)
    samples = [({"plural": plural}, n) for plural, n in resources.items()]
    yield gauge("lc_held_resources", "Resources that this node holds.", samples)
    yield gauge(
        "lc_owed_removals", "Retained reports on deleted resources that are to be cleared.", len(store.uncleared)
    )
    yield gauge(
        "lc_store_complete",
        "0 after the store was lost, until GM has sent the node's resources; else 1.",
        store.complete,
    )
    yield gauge("lc_store_bytes", "Size of the store's file.", store.size)


def _usable(store: NodeStore) -> str:
    """Return why the store cannot be written; empty: it can."""
    try:
        store.check()
    except (sqlite3.Error, OSError) as error:
        return f"the store cannot be used: {error}"
    return ""
