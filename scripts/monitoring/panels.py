"""Panels of dashboards, with the queries that follow from a metric's own declaration: its type, labels, unit, text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from scripts.reference.markdown import IncompleteError
from scripts.reference.metrics import MetricRow, declared_metrics

#: the time of Grafana over which a rate is computed: four scrapes at least
RATE = "$__rate_interval"
#: the quantiles of a histogram that a panel shows
QUANTILES = (0.5, 0.95, 0.99)
#: endings of gauges that describe one thing: their largest value is shown, and of all others the sum
STATES = re.compile(r"_(state|ratio|seconds|index|hardness|connected|complete|epoch|running|fps|metric)$")
#: units of Grafana by the ending of a metric's name, for values and for their change a second
UNITS = {"seconds": ("s", "s"), "bytes": ("bytes", "Bps"), "ratio": ("percentunit", "percentunit")}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression in PromQL, and the name of its series, with labels in double braces."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``unit``: an identifier of Grafana. ``kind``: lines over time, one number, or a table of series."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    text: str = ""
    kind: Literal["lines", "number", "table"] = "lines"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a dashboard shows of the metrics with a prefix: a selection by its variables, and labels for each line.

    ``over``: labels of metrics that have no lines of their own.
    """

    prefix: str
    selector: str = ""
    by: tuple[str, ...] = ()
    over: tuple[str, ...] = ()


def panels_of(scope: Scope, names: Iterable[str] = ()) -> list[Panel]:
    """Return a panel for each metric of a scope, or for those with ``names`` alone. Raises IncompleteError."""
    chosen = list(names) or sorted(name for name in declared_metrics() if name.startswith(scope.prefix))
    if unknown := [name for name in chosen if name not in declared_metrics()]:
        raise IncompleteError(f"no metric is named {unknown[0]}: correct scripts/monitoring/dashboards.py")
    return [_panel(declared_metrics()[name], scope) for name in chosen]


def _panel(row: MetricRow, scope: Scope) -> Panel:
    """Return the panel of a metric."""
    labels = tuple(dict.fromkeys([*scope.by, *(label for label in row.labels if label not in scope.over)]))
    by = f" by ({', '.join(labels)})" if labels else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    series = f"{row.full}{{{scope.selector}}}" if scope.selector else row.full
    value_unit, rate_unit = next((units for end, units in UNITS.items() if row.name.endswith(end)), ("short", "cps"))
    title = row.name.replace("_", " ").capitalize()
    if row.kind == "counter":
        queries = (Query(f"sum{by} (rate({series}[{RATE}]))", legend),)
        return Panel(title, queries, rate_unit, f"{row.text} A second.")
    if row.kind == "histogram":
        bucket = series.replace(row.full, f"{row.full}_bucket", 1)
        grouped = f"sum by ({', '.join(['le', *labels])}) (rate({bucket}[{RATE}]))"
        quantiles = [Query(f"histogram_quantile({q}, {grouped})", f"p{q * 100:g} {legend}".strip()) for q in QUANTILES]
        return Panel(title, tuple(quantiles), value_unit, row.text)
    aggregation = "max" if STATES.search(row.name) else "sum"
    return Panel(title, (Query(f"{aggregation}{by} ({series})", legend),), value_unit, row.text)
