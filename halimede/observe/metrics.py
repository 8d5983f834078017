"""Metrics for Prometheus, read from a process's existing counters whenever Prometheus scrapes (requests) them.

``registry`` makes the registry of a process from functions that return its metrics. Names begin with ``halimede_``,
carry their unit, and end in ``_total`` where they only grow. Times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from halimede import __version__
from halimede.bus.port import Bus
from halimede.messages import Histogram
from halimede.messages.counters import Count, ExportedBy
from halimede.stats.histogram import GROWTH
from halimede.stats.ledger import Ledger

#: the begin of all names
PREFIX = "halimede_"
#: upper bounds of the buckets of times, in seconds: from 50 us to a minute
BOUNDS = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0,
)  # fmt: skip
#: upper bounds of the buckets of small whole numbers
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
#: names and values of a metric's labels
Labels = Mapping[str, str]
#: values of one metric; all have labels of the same names
Samples = Iterable[tuple[Labels, float]]
#: distributions of one metric: labels, histogram (None: empty), and the exact sum of its values (None: not known)
Distributions = Iterable[tuple[Labels, Histogram | None, float | None]]


class Scrape(Collector):
    """A collector of prometheus_client around one function, ``collect``, that is called at every scrape."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        """Return the present metrics of the function."""
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        """Return nothing in advance, because there may be no metrics yet."""
        return ()


def registry(role: str, *collect: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    """Return the registry of a process: its version and ``role``, its memory and CPU, and the metrics of ``collect``.

    ``collect``: functions that are called at every scrape.
    """
    collectors = CollectorRegistry()
    ProcessCollector(registry=collectors)
    PlatformCollector(registry=collectors)
    collectors.register(Scrape(lambda: [_build(role)]))
    for function in collect:
        collectors.register(Scrape(function))
    return collectors


def counter(name: str, text: str, samples: Samples | float) -> Metric:
    """Return the metric of a number that only grows. ``name``: without prefix and ``_total``. ``text``: its help."""
    return _values(CounterMetricFamily, name, text, samples)


def ledger_counters(ledger: Ledger, exporter: ExportedBy) -> Iterator[Metric]:
    """Yield the metrics of those counters in a worker's ledger that ``exporter``, a worker or an LC, exports."""
    for count in Count:
        if exporter in count.exported_by:
            yield counter(f"worker_{count.metric}", count.text, ledger[count])


def gauge(name: str, text: str, samples: Samples | float) -> Metric:
    """Return the metric of a number that goes up and down. ``name``: without prefix. ``text``: its help."""
    return _values(GaugeMetricFamily, name, text, samples)


def times(name: str, text: str, samples: Distributions) -> Metric:
    """Return the metric of distributions of times, in seconds; the histograms and their sums are in milliseconds."""
    return _distribution(name, text, samples, BOUNDS, unit=1000.0)


def sizes(name: str, text: str, samples: Distributions) -> Metric:
    """Return the metric of distributions of small whole numbers, such as batch sizes."""
    return _distribution(name, text, samples, SIZES, unit=1.0)


def _values(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, samples: Samples | float
) -> Metric:
    """Return a metric of a kind with these samples."""
    pairs = _pairs(samples)
    family = kind(PREFIX + name, text, labels=_names(pairs))
    for labels, value in pairs:
        family.add_metric(list(labels.values()), value)
    return family


def _distribution(name: str, text: str, samples: Distributions, bounds: Sequence[float], *, unit: float) -> Metric:
    """Return a metric with these distributions. ``unit``: the histograms' units in one unit of the bounds."""
    rows = list(samples)
    family = HistogramMetricFamily(PREFIX + name, text, labels=_names([(labels, 0.0) for labels, _, _ in rows]))
    for labels, histogram, total in rows:
        buckets, approximate = spread(histogram, bounds, unit=unit)
        family.add_metric(list(labels.values()), buckets, approximate if total is None else total / unit)
    return family


def spread(
    histogram: Histogram | None, bounds: Sequence[float], *, unit: float
) -> tuple[list[tuple[str, float]], float]:
    """Return Prometheus' cumulative buckets for a histogram, and the approximate sum of its values.

    A bucket is its upper bound as text, and the number of values up to it; the last one is ``+Inf``. ``unit``: the
    histogram's units in one unit of the bounds (1000: milliseconds in a second). All values of a histogram's bucket
    count as its middle, which is wrong by at most half a bucket (2.5 %).
    """
    counts = sorted((int(key), count) for key, count in (histogram.buckets if histogram else {}).items())
    middles = [(math.exp((index - 0.5) * GROWTH) / unit, count) for index, count in counts]
    cumulative = [(f"{bound:g}", float(sum(count for value, count in middles if value <= bound))) for bound in bounds]
    cumulative.append(("+Inf", float(sum(count for _, count in middles))))
    return cumulative, sum(value * count for value, count in middles)


def buses(connections: Iterable[Bus]) -> list[Metric]:
    """Return the metrics of a process's connections to the broker, by client id."""
    pairs = [({"client": bus.client_id}, bus) for bus in connections]
    stats = [(labels, bus.stats) for labels, bus in pairs]
    return [
        gauge("bus_connected", "Whether the broker has accepted this client.", [(k, b.connected) for k, b in pairs]),
        counter("bus_connects", "Connections that the broker accepted.", [(k, s.connects) for k, s in stats]),
        counter(
            "bus_rejected_messages",
            "Messages that are not valid: their body, their topic or a property.",
            [(k, s.rejected) for k, s in stats],
        ),
        counter(
            "bus_dropped_messages",
            "Messages dropped: the queue was full, or their subscription ended.",
            [(k, s.dropped) for k, s in stats],
        ),
        gauge(
            "bus_certificate_end_seconds",
            "Unix time at which the certificate of this client, or that of the broker, ends.",
            [(k, end) for k, b in pairs if (end := b.certificate_end) is not None],
        ),
        counter("bus_failed_handlers", "Messages whose handler raised.", [(k, s.failed_handlers) for k, s in stats]),
    ]


def _build(role: str) -> Metric:
    """Return the metric ``build`` with the version and the role of the process."""
    family = InfoMetricFamily(PREFIX + "build", "This process.")
    family.add_metric([], {"version": __version__, "role": role})
    return family


def _pairs(samples: Samples | float) -> list[tuple[Labels, float]]:
    """Return samples as a list; a single number has no labels."""
    return [({}, float(samples))] if isinstance(samples, int | float) else [(labels, float(v)) for labels, v in samples]


def _names(pairs: Sequence[tuple[Labels, float]]) -> list[str]:
    """Return the names of the labels, which all samples share."""
    return list(pairs[0][0]) if pairs else []
