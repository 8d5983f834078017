"""GM's metrics for Prometheus (``GmMetrics``), its health checks, and the list of other processes with metrics.

All values are read from GM's state at the time of the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from aiohttp import web
from prometheus_client.metrics_core import Metric

from halimede.api.trainingmodel import PLURAL as TRAINING_MODELS
from halimede.bus import Bus
from halimede.health_checks.manager import READINESS_RULES, examine_readiness
from halimede.health_checks.resources import FINE, URGENT_REASONS, phase_rank
from halimede.learning_loop.states import State
from halimede.messages import Histogram, Status, TaskInfo
from halimede.messages.counters import Count, ExportedBy
from halimede.names import Key
from halimede.observe import Health
from halimede.observe.metrics import buses, counter, gauge, times
from halimede.stats.histogram import merge
from services.gm.api import ApiServer
from services.gm.cluster.port import Cluster, StoredResource, services_of
from services.gm.control_plane import ControlPlane
from services.gm.controllers.loop_rules import state_of
from services.gm.nodes import Node
from services.gm.reports import NodeReports
from services.gm.upstream import Upstream
from services.gm.workqueue import WorkQueue

#: most resources in the metric of those in a phase that is not fine
MOST_UNHEALTHY = 100
#: the states of a learning loop
STATES = get_args(State)
#: what nodes have reported on each service
Infos = Mapping[Key, Sequence[TaskInfo]]


@dataclass(frozen=True, slots=True)
class GmMetrics:
    """Reads the metrics of one GM from its parts: the bus of users' requests is ``api.bus``, the nodes' one ``bus``."""

    bus: Bus
    cluster: Cluster
    plane: ControlPlane
    api: ApiServer
    upstream: Upstream

    def health(self) -> Health:
        """Return GM's checks for ``/healthz`` and ``/readyz``."""
        health = Health()
        health.live("loop", lambda: "")  # any response proves that the event loop runs
        for rule in READINESS_RULES:
            health.ready(rule.name, partial(self._unready, rule.name))
        return health

    def _unready(self, name: str) -> str:
        """Return what the rule ``name`` observes if GM is not ready because of it; else an empty text."""
        rows = examine_readiness(self.plane.observer.trouble_facts())
        return next((row.what for row in rows if row.name == name), "")

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of GM, and those of services that nodes have reported."""
        yield from buses(dict.fromkeys([self.bus, self.api.bus]))
        yield from self._of_nodes()
        yield from self._of_work()
        yield from self._of_services()
        yield from self._of_loops()

    def add_to(self, application: web.Application) -> None:
        """Register the route ``/targets``: the addresses of all processes, as Prometheus' HTTP service discovery."""
        application.router.add_get("/targets", self._targets)

    def _of_nodes(self) -> Iterator[Metric]:
        """Yield the metrics of nodes and resources."""
        nodes = self.plane.nodes.values()
        yield gauge("gm_epoch", "GM's epoch: nodes follow the highest.", self.cluster.epoch)
        yield gauge("gm_nodes", "Nodes that GM knows.", len(nodes))
        yield gauge("gm_nodes_online", "Nodes that are online.", sum(node.online for node in nodes))
        yield gauge("gm_nodes_drained", "Drained nodes.", sum(node.drained for node in nodes))
        yield gauge("gm_node_state", "1 if the node is online, else 0.", _node_states(nodes))
        phases = Counter(
            (stored.key.plural, stored.status.phase if stored.status else "Pending")
            for stored in self.cluster.resources()
        )
        samples = [({"plural": plural, "phase": phase}, n) for (plural, phase), n in sorted(phases.items())]
        yield gauge("gm_resources", "Resources by kind and phase.", samples)
        text = "Resources in a phase that is not fine, with its reason; the worst 100."
        yield gauge("gm_unhealthy_resources", text, _unhealthy(self.cluster.resources()))

    def _of_work(self) -> Iterator[Metric]:
        """Yield the metrics of GM's own work."""
        plane = self.plane
        queues: list[WorkQueue[Any]] = [plane.queue, plane.display.queue, plane.syncs.queue, plane.downstream.queue]
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
        sender = plane.downstream.sender
        yield counter("gm_downstream_messages", "Downstream messages sent to nodes.", sender.sent)
        yield counter("gm_downstream_repeats", "Downstream messages that were sent again.", sender.resent)
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
        """Yield the metrics of services, as nodes have reported them."""
        keys = sorted(stored.key for stored in services_of(self.cluster))
        infos = {key: self.plane.reports.task_infos(key) for key in keys}
        for count in Count:
            if ExportedBy.SERVICE in count.exported_by:
                yield counter(f"service_{count.metric}", count.text, _counts(self.plane.reports, keys, count.field))
        yield gauge("service_queued_frames", "Frames inside edge workers now.", _sums(infos, "queued"))
        drifting = _sums(infos, "drifting")
        yield gauge("service_drifting_workers", "Workers whose samples differ from their calibration.", drifting)
        answers = _histograms(infos, "edge_latency")
        yield times("service_edge_seconds", "Time from acceptance to the small model's answer.", answers)
        offloads = _histograms(infos, "offload_latency")
        yield times("service_offload_seconds", "Round trip time of hard samples that the cloud answered.", offloads)
        work = {key: self.plane.reports.task_infos(key, edge_only=False) for key in infos}
        waits = _histograms(work, "queue_latency")
        yield times("service_queue_seconds", "Time that samples waited for the big model.", waits)
        calls = _histograms(work, "compute_latency")
        yield times("service_compute_seconds", "Time of each call of the big model.", calls)

    def _of_loops(self) -> Iterator[Metric]:
        """Yield the metrics of learning loops."""
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

    async def _targets(self, request: web.Request) -> web.StreamResponse:
        """Return GM, online nodes and running workers with their addresses and labels, as JSON."""
        targets = [_target(f"http://{request.host}", role="gm")]
        targets += [
            _target(node.presence.http, role="lc", node=node.name)
            for node in self.plane.nodes.values()
            if node.online and node.presence and node.presence.http
        ]
        for stored in services_of(self.cluster):
            for node_name, report in self.plane.reports.of(stored.key).items():
                for worker in report.status.workers if report.live else []:
                    if worker.http and worker.phase == "Running":
                        labels = {"role": f"{worker.role}-worker", "node": node_name, "worker": worker.name}
                        labels |= _labels(stored.key)
                        targets.append(_target(worker.http, **labels))
        return web.json_response(targets)


def _node_states(nodes: Iterable[Node]) -> list[tuple[dict[str, str], float]]:
    """Return the state of each node with its labels; a node of a cluster that never had a local controller has none."""
    return [
        ({"node": node.name, "drained": str(node.drained).lower()}, float(node.online and not node.unready))
        for node in nodes
        if node.controlled
    ]


def _unhealthy(resources: Iterable[StoredResource]) -> list[tuple[dict[str, str], int]]:
    """Return the labels of resources whose phase is not fine, the worst first, each with the value 1."""
    rows = []
    for stored in resources:
        if stored.deleting:
            continue
        status = stored.status or Status()
        reason = status.conditions[-1].reason if status.conditions else ""
        if status.phase not in FINE or reason in URGENT_REASONS:
            plural, namespace, name = stored.key.plural, stored.key.namespace, stored.key.name
            rows.append((
                {"plural": plural, "namespace": namespace, "name": name, "phase": status.phase, "reason": reason}, 1,
            ))  # fmt: skip
    return sorted(rows, key=lambda row: (phase_rank(row[0]["phase"]), *row[0].values()))[:MOST_UNHEALTHY]


def _counts(reports: NodeReports, keys: Iterable[Key], field: str) -> list[tuple[dict[str, str], int]]:
    """Return a count of each node with an edge worker of a service, with the labels of the service and the node.

    ``field``: of TaskInfo. A sum over nodes would fall when a node is deleted: Prometheus takes that as a restart from
    zero.
    """
    return [
        (_labels(key) | {"node": node}, getattr(report.task_info, field))
        for key in keys
        for node, report in reports.of(key).items()
        if report.edge and report.task_info
    ]


def _sums(infos: Infos, field: str) -> list[tuple[dict[str, str], int]]:
    """Return the sum of a field of what nodes have reported on each service, with the service's labels.

    ``field``: of TaskInfo.
    """
    return [(_labels(key), sum(getattr(info, field) for info in reported)) for key, reported in infos.items()]


def _histograms(infos: Infos, field: str) -> list[tuple[dict[str, str], Histogram, None]]:
    """Return a histogram of what nodes have reported on each service, with the service's labels.

    ``field``: of TaskInfo. None in each tuple: the exact sum of the values is not known.
    """
    return [(_labels(key), merge(getattr(i, field) for i in reported), None) for key, reported in infos.items()]


def _loop_labels(stored: StoredResource) -> dict[str, str]:
    """Return the labels of a learning loop's metrics; ``service`` is empty if the loop was removed from the spec."""
    loop = stored.resource.spec.loop
    return {
        "namespace": stored.key.namespace,
        "training_model": stored.key.name,
        "service": loop.service.name if loop else "",
    }


def _labels(key: Key) -> dict[str, str]:
    """Return the labels of a service's metrics."""
    return {"plural": key.plural, "namespace": key.namespace, "service": key.name}


def _target(url: str, **labels: str) -> dict[str, Any]:
    """Return an entry of the service discovery: an address with labels, whose names get a prefix."""
    return {"targets": [url.removeprefix("http://")], "labels": {f"halimede_{k}": v for k, v in labels.items()}}
