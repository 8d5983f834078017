"""What a server counts of its models, for Prometheus and for its reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from halimede.observe.metrics import PREFIX, counter, gauge, sizes, times
from halimede.serving.loaded_model import Served
from halimede.tracing.latency import Distribution


@dataclass(slots=True)
class ModelTimes:
    """One model's times (milliseconds) and batches (rows)."""

    request: Distribution = field(default_factory=Distribution)
    queue: Distribution = field(default_factory=Distribution)
    compute: Distribution = field(default_factory=Distribution)
    batch: Distribution = field(default_factory=Distribution)

    def answered(self, seconds: float) -> None:
        """Count a request that was answered."""
        self.request.record(seconds * 1000)

    def ran(self, came: Sequence[float], rows: int, began: float, ended: float) -> None:
        """Count a call of the model (see ``batch_executor.Ran``)."""
        self.batch.record(rows)
        self.compute.record((ended - began) * 1000)
        for put in came:
            self.queue.record((began - put) * 1000)


@dataclass(slots=True)
class ModelMetrics:
    """All models' metrics, by name."""

    times: dict[str, ModelTimes] = field(default_factory=dict)

    def of(self, name: str) -> ModelTimes:
        """Return one model's."""
        return self.times.setdefault(name, ModelTimes())

    def collector(self, models: Callable[[], Mapping[str, Served]]) -> Callable[[], Iterator[Metric]]:
        """Return what reads all metrics at a scrape."""
        return lambda: self._collect(models())

    def _collect(self, models: Mapping[str, Served]) -> Iterator[Metric]:
        def each(value: Callable[[Served], float]) -> list[tuple[dict[str, str], float]]:
            return [({"model": name}, value(served)) for name, served in models.items()]

        yield counter("serve_requests", "Requests for a model.", each(lambda s: s.counts.requests))
        yield counter("serve_failures", "Requests that got no answer.", each(lambda s: s.counts.failures))
        yield counter("serve_rollouts", "Versions that came to answer.", each(lambda s: s.counts.rollouts))
        yield counter("serve_refused_versions", "Versions that were not taken.", each(lambda s: s.counts.refusals))
        yield gauge(
            "serve_waiting_requests",
            "Open requests.",
            each(lambda s: sum(one.loaded.waiting for one in s.opened())),
        )
        versions = GaugeMetricFamily(
            f"{PREFIX}serve_version_info", "The versions that answer.", labels=["model", "version", "digest", "as"]
        )
        for name, served in models.items():
            for role, one in (("current", served.rollout.current), ("canary", served.rollout.canary)):
                if one:
                    versions.add_metric([name, one.version, one.digest[:12], role], 1)
        yield versions
        found = {name: t for name, t in self.times.items() if name in models}
        steps = [
            ({"model": name, "step": step}, one.histogram, one.total)
            for name, t in found.items()
            for step, one in (("queue", t.queue), ("compute", t.compute), ("total", t.request))
        ]
        yield times("serve_seconds", "Time of a step of requests: queue, compute (a call), total.", steps)
        rows = [({"model": name}, t.batch.histogram, t.batch.total) for name, t in found.items()]
        yield sizes("serve_batch_samples", "Rows in one call of a model.", rows)
