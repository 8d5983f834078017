"""Metrics for Prometheus, read from a process's existing counters when they are scraped.

Names begin with ``halimede_``, carry their unit, and end in ``_total`` where they only grow. Times are seconds.
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

PREFIX = "halimede_"
#: upper bounds of time buckets (seconds): from 50 us to a minute
BOUNDS = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0,
)  # fmt: skip
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float]]
Distributions = Iterable[tuple[Labels, Histogram | None, float | None]]


class Scrape(Collector):
    """A collector around one function that is called at every scrape."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        """Return the present metrics."""
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        """Return nothing in advance, because there may be no metrics yet."""
        return ()


def registry(role: str, *collect: Callable[[], Iterable[Metric]]) -> CollectorRegistry:
    """Return the registry of a process: its version, its memory and CPU, and the metrics of ``collect``."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    made.register(Scrape(lambda: [_build(role)]))
    for each in collect:
        made.register(Scrape(each))
    return made


def counter(name: str, text: str, samples: Samples | float) -> Metric:
    """Return a count that only grows (``name`` without prefix and ``_total``)."""
    return _values(CounterMetricFamily, name, text, samples)


def ledger_counters(ledger: Ledger, exporter: ExportedBy) -> Iterator[Metric]:
    """Yield the counters of a worker that ``exporter`` exports."""
    for count in Count:
        if exporter in count.exported_by:
            yield counter(f"worker_{count.metric}", count.text, ledger[count])


def gauge(name: str, text: str, samples: Samples | float) -> Metric:
    """Return a value that goes up and down."""
    return _values(GaugeMetricFamily, name, text, samples)


def times(name: str, text: str, samples: Distributions) -> Metric:
    """Return a distribution of times in seconds from labels, histograms of milliseconds, and exact sums if known."""
    return _distribution(name, text, samples, BOUNDS, unit=1000.0)


def sizes(name: str, text: str, samples: Distributions) -> Metric:
    """Return a distribution of small whole numbers, such as batch sizes."""
    return _distribution(name, text, samples, SIZES, unit=1.0)


def _values(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, samples: Samples | float
) -> Metric:
    pairs = _pairs(samples)
    family = kind(PREFIX + name, text, labels=_names(pairs))
    for labels, value in pairs:
        family.add_metric(list(labels.values()), value)
    return family


def _distribution(name: str, text: str, samples: Distributions, bounds: Sequence[float], *, unit: float) -> Metric:
    found = list(samples)
    family = HistogramMetricFamily(PREFIX + name, text, labels=_names([(labels, 0.0) for labels, _, _ in found]))
    for labels, histogram, total in found:
        buckets, approximate = spread(histogram, bounds, unit=unit)
        family.add_metric(list(labels.values()), buckets, approximate if total is None else total / unit)
    return family


def spread(
    histogram: Histogram | None, bounds: Sequence[float], *, unit: float
) -> tuple[list[tuple[str, float]], float]:
    """Return Prometheus' cumulative buckets for a histogram, and the approximate sum of its values.

    ``unit``: the number of the histogram's units in one unit of the bounds. A bucket counts below a bound if its middle
    is below it, so each count is wrong by at most half a bucket (2.5 %).
    """
    counts = sorted((int(key), count) for key, count in (histogram.buckets if histogram else {}).items())
    middles = [(math.exp((index - 0.5) * GROWTH) / unit, count) for index, count in counts]
    cumulative = [(f"{bound:g}", float(sum(count for value, count in middles if value <= bound))) for bound in bounds]
    cumulative.append(("+Inf", float(sum(count for _, count in middles))))
    return cumulative, sum(value * count for value, count in middles)


def buses(connections: Iterable[Bus]) -> list[Metric]:
    """Return the metrics of a process's connections to the broker, by client id."""
    found = [({"client": each.client_id}, each) for each in connections]
    return [
        gauge("bus_connected", "Whether the broker has accepted this client.", [(k, b.connected) for k, b in found]),
        counter("bus_connects", "Connections that the broker accepted.", [(k, b.stats.connects) for k, b in found]),
        counter(
            "bus_rejected_messages", "Messages that could not be decoded.", [(k, b.stats.rejected) for k, b in found]
        ),
        counter("bus_dropped_messages", "Messages that found a full queue.", [(k, b.stats.dropped) for k, b in found]),
        counter(
            "bus_failed_handlers", "Messages whose handler raised.", [(k, b.stats.failed_handlers) for k, b in found]
        ),
    ]


def _build(role: str) -> Metric:
    family = InfoMetricFamily(PREFIX + "build", "This process.")
    family.add_metric([], {"version": __version__, "role": role})
    return family


def _pairs(samples: Samples | float) -> list[tuple[Labels, float]]:
    return [({}, float(samples))] if isinstance(samples, int | float) else [(labels, float(v)) for labels, v in samples]


def _names(pairs: Sequence[tuple[Labels, float]]) -> list[str]:
    return list(pairs[0][0]) if pairs else []
