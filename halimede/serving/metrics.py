"""What a server counts of its models, for Prometheus and for its reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from halimede.messages import Histogram
from halimede.observe.metrics import PREFIX, counter, gauge, sizes, times
from halimede.serving.model_version import Served
from halimede.stats import histogram

#: how many answers or calls are counted together
KEPT = 256


@dataclass(slots=True)
class MeasuredValues:
    """Values and their exact sum."""

    values: Histogram = field(default_factory=Histogram)
    total: float = 0.0

    def add(self, value: float) -> None:
        """Count one: milliseconds, or a number of things."""
        histogram.record(self.values, value)
        self.total += value


@dataclass(slots=True)
class Taken:
    """One model's times (milliseconds) and batches (rows).

    What comes in is kept as it is, and counted a few hundred at a time: a distribution costs more than a list.
    """

    request: MeasuredValues = field(default_factory=MeasuredValues)
    queue: MeasuredValues = field(default_factory=MeasuredValues)
    compute: MeasuredValues = field(default_factory=MeasuredValues)
    batch: MeasuredValues = field(default_factory=MeasuredValues)
    answers: list[float] = field(default_factory=list)
    runs: list[tuple[Sequence[float], int, float, float]] = field(default_factory=list)

    def answered(self, seconds: float) -> None:
        """Note that a request was answered."""
        self.answers.append(seconds)
        if len(self.answers) >= KEPT:
            self.count()

    def ran(self, came: Sequence[float], rows: int, began: float, ended: float) -> None:
        """Note a call of the model (see ``engine.Ran``)."""
        self.runs.append((came, rows, began, ended))
        if len(self.runs) >= KEPT:
            self.count()

    def count(self) -> None:
        """Count what has come in."""
        answers, self.answers = self.answers, []
        runs, self.runs = self.runs, []
        for seconds in answers:
            self.request.add(seconds * 1000)
        for came, rows, began, ended in runs:
            self.batch.add(rows)
            self.compute.add((ended - began) * 1000)
            for put in came:
                self.queue.add((began - put) * 1000)


@dataclass(slots=True)
class ModelMetrics:
    """All models' figures, by name."""

    taken: dict[str, Taken] = field(default_factory=dict)

    def of(self, name: str) -> Taken:
        """Return one model's."""
        return self.taken.setdefault(name, Taken())

    def collector(self, models: Callable[[], Mapping[str, Served]]) -> Callable[[], Iterator[Metric]]:
        """Return what reads all figures at a scrape."""
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
        found = {name: taken for name, taken in self.taken.items() if name in models}
        for taken in found.values():
            taken.count()
        steps = [
            ({"model": name, "step": step}, one.values, one.total)
            for name, t in found.items()
            for step, one in (("queue", t.queue), ("compute", t.compute), ("total", t.request))
        ]
        yield times("serve_seconds", "Time of a step of requests: queue, compute (a call), total.", steps)
        rows = [({"model": name}, t.batch.values, t.batch.total) for name, t in found.items()]
        yield sizes("serve_batch_samples", "Rows in one call of a model.", rows)
