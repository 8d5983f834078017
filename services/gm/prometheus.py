"""GM's metrics for Prometheus, its health checks, and the service discovery for the other processes.

All values are read from GM's state at the time of the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from aiohttp import web
from prometheus_client.metrics_core import Metric

from halimede.api.placement import SERVICES
from halimede.api.trainingmodel import PLURAL as TRAINING_MODELS
from halimede.bus import Bus
from halimede.health_checks.manager import UNREADY, examine_trouble
from halimede.learning_loop.states import State
from halimede.messages.counters import Count, ExportedBy
from halimede.names import Key
from halimede.observe import Health
from halimede.observe.metrics import buses, counter, gauge, times
from halimede.stats.histogram import merge
from services.gm.api import ApiServer
from services.gm.cluster.port import Cluster, StoredResource
from services.gm.control_plane import ControlPlane
from services.gm.controllers.training_loop import state_of
from services.gm.dashboard.feed import total
from services.gm.upstream import Upstream
from services.gm.workqueue import WorkQueue

STATES = get_args(State)


@dataclass(frozen=True, slots=True)
class GmMetrics:
    """Collects the metrics of one GM."""

    bus: Bus
    cluster: Cluster
    plane: ControlPlane
    api: ApiServer
    upstream: Upstream

    def health(self) -> Health:
        """Return GM's checks."""
        health = Health()
        health.live("loop", lambda: "")  # any response proves that the event loop runs
        for rule in UNREADY:
            health.ready(rule.name, partial(self._unready, rule.name))
        return health

    def _unready(self, name: str) -> str:
        """Return the observation of a check because of which GM is not ready."""
        return next((row.what for row in examine_trouble(self.plane.observer.trouble_facts()) if row.name == name), "")

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from buses(dict.fromkeys([self.bus, self.api.bus]))
        yield from self._of_nodes()
        yield from self._of_work()
        yield from self._of_services()
        yield from self._of_loops()

    def add_to(self, application: web.Application) -> None:
        """Register ``/targets``: Prometheus' HTTP service discovery."""
        application.router.add_get("/targets", self._targets)

    def _of_nodes(self) -> Iterator[Metric]:
        nodes = self.plane.nodes.values()
        yield gauge("gm_epoch", "GM's epoch: nodes follow the highest.", self.cluster.epoch)
        yield gauge("gm_nodes", "Nodes that GM knows.", len(nodes))
        yield gauge("gm_nodes_online", "Nodes that are online.", sum(node.online for node in nodes))
        yield gauge("gm_nodes_drained", "Drained nodes.", sum(node.drained for node in nodes))
        phases = Counter(
            (stored.key.plural, stored.status.phase if stored.status else "Pending")
            for stored in self.cluster.resources()
        )
        samples = [({"plural": plural, "phase": phase}, n) for (plural, phase), n in sorted(phases.items())]
        yield gauge("gm_resources", "Resources by kind and phase.", samples)

    def _of_work(self) -> Iterator[Metric]:
        plane = self.plane
        queues: list[WorkQueue[Any]] = [
            plane.queue,
            plane.display.queue,
            plane.syncs.queue,
            plane.downstream.queue,
        ]
        named = [({"queue": queue.name}, queue) for queue in queues]
        yield gauge("gm_queue_depth", "Keys in the work queue.", [(labels, q.waiting) for labels, q in named])
        yield counter(
            "gm_queue_failures", "Failed work items, to be retried.", [(labels, q.failed) for labels, q in named]
        )
        yield times(
            "gm_queue_work_seconds",
            "Time of each work item, such as reconciling a resource or answering a sync.",
            [(labels, q.times.histogram, q.times.total) for labels, q in named],
        )
        yield counter("gm_downstream_messages", "Downstream messages sent to nodes.", plane.downstream.sender.sent)
        yield counter(
            "gm_downstream_repeats", "Downstream messages that were sent again.", plane.downstream.sender.resent
        )
        yield counter(
            "gm_downstream_acknowledgements",
            "Downstream messages that a node has acknowledged.",
            plane.downstream.acknowledgements,
        )
        yield counter("gm_syncs", "Syncs that nodes have sent.", plane.syncs.count)
        yield counter("gm_status_writes", "Statuses of resources written.", plane.reconciler.writes)
        yield counter("gm_store_errors", "Writes to the store that failed.", self.cluster.failures)
        yield counter("gm_dead_letters", "Dead letters that clients reported.", self.upstream.dead_letters)
        intake = self.upstream.intake
        yield gauge("gm_intake_depth", "Messages delayed by the rate limit of their node.", intake.waiting)
        yield counter(
            "gm_intake_overtaken_messages",
            "Messages of nodes replaced by a newer one before processing.",
            intake.overtaken,
        )
        yield counter(
            "gm_intake_dropped_messages", "Messages of nodes dropped because the queue was full.", intake.dropped
        )
        yield counter(
            "gm_api_refused_messages", "Requests refused because of the client's rate limit.", self.api.refused
        )
        answered = sorted(self.api.answered.items())
        yield times(
            "gm_api_request_seconds",
            "Time to answer a request of the API.",
            [({"op": op, "outcome": outcome}, took.histogram, took.total) for (op, outcome), took in answered],
        )

    def _of_services(self) -> Iterator[Metric]:
        infos = {key: self.plane.reports.task_infos(key) for key in sorted(stored.key for stored in self._services())}
        for count in Count:
            if ExportedBy.SERVICE in count.exported_by:
                samples = [(_labels(key), sum(getattr(i, count.field) for i in got)) for key, got in infos.items()]
                yield counter(f"service_{count.metric}", count.text, samples)
        sums = {key: total(counts) for key, counts in infos.items()}
        yield gauge(
            "service_queued_frames",
            "Frames inside edge workers now.",
            [(_labels(k), s.queued) for k, s in sums.items()],
        )
        yield gauge(
            "service_drifting_workers",
            "Workers whose samples differ from their calibration.",
            [(_labels(key), sum(i.drifting for i in counts)) for key, counts in infos.items()],
        )
        yield times(
            "service_edge_seconds",
            "Time from acceptance to the small model's answer.",
            [(_labels(key), s.edge_latency, None) for key, s in sums.items()],
        )
        yield times(
            "service_offload_seconds",
            "Round trip time of hard samples that the cloud answered.",
            [(_labels(key), s.offload_latency, None) for key, s in sums.items()],
        )
        work = {key: self.plane.reports.task_infos(key, counting=False) for key in infos}
        yield times(
            "service_queue_seconds",
            "Time that samples waited for the big model.",
            [(_labels(key), merge(i.queue_latency for i in counts), None) for key, counts in work.items()],
        )
        yield times(
            "service_compute_seconds",
            "Time of each call of the big model.",
            [(_labels(key), merge(i.compute_latency for i in counts), None) for key, counts in work.items()],
        )

    def _of_loops(self) -> Iterator[Metric]:
        trainings = [t for t in self.cluster.resources(TRAINING_MODELS) if t.status and t.status.loop]
        loops = [(_loop_labels(t), state_of(t.status)) for t in trainings]
        states = [(labels | {"state": state}, int(loop.state == state)) for labels, loop in loops for state in STATES]
        yield gauge("loop_state", "State of a learning loop: 1 for the present one.", states)
        yield counter("loop_rounds", "Rounds of a learning loop that have begun.", [(k, v.round) for k, v in loops])
        ended = [(labels | {"outcome": "rolled-out"}, loop.rolled_out) for labels, loop in loops]
        ended += [(labels | {"outcome": "refused"}, loop.refused) for labels, loop in loops]
        yield counter("loop_candidates", "Candidates of a learning loop, by outcome.", ended)
        last = [(labels, loop.history[-1]) for labels, loop in loops if loop.history]
        yield gauge(
            "loop_gain_ratio",
            "Gain of the last candidate that was judged, on held-out samples.",
            [(labels, record.gain.value) for labels, record in last if record.gain],
        )
        shares = [(labels | {"when": "before"}, record.before) for labels, record in last]
        shares += [(labels | {"when": "after"}, record.after) for labels, record in last]
        yield gauge(
            "loop_agreement_ratio",
            "Share of answers that agree with the big model's before and after the last round, by audits.",
            [(labels, estimate.value) for labels, estimate in shares if estimate],
        )

    def _services(self) -> Iterator[StoredResource]:
        for plural in SERVICES:
            yield from self.cluster.resources(plural)

    async def _targets(self, request: web.Request) -> web.StreamResponse:
        targets = [_target(f"http://{request.host}", role="gm")]
        targets += [
            _target(node.presence.http, role="lc", node=node.name)
            for node in self.plane.nodes.values()
            if node.online and node.presence and node.presence.http
        ]
        for stored in self._services():
            for node_name, report in self.plane.reports.of(stored.key).items():
                for worker in report.status.workers if report.live else []:
                    if worker.http and worker.phase == "Running":
                        labels = {"role": f"{worker.role}-worker", "node": node_name, "worker": worker.name}
                        labels |= _labels(stored.key)
                        targets.append(_target(worker.http, **labels))
        return web.json_response(targets)


def _loop_labels(stored: StoredResource) -> dict[str, str]:
    loop = stored.resource.spec.loop
    return {
        "namespace": stored.key.namespace,
        "training_model": stored.key.name,
        "service": loop.service.name if loop else "",
    }


def _labels(key: Key) -> dict[str, str]:
    return {"plural": key.plural, "namespace": key.namespace, "service": key.name}


def _target(url: str, **labels: str) -> dict[str, Any]:
    return {"targets": [url.removeprefix("http://")], "labels": {f"halimede_{k}": v for k, v in labels.items()}}
