"""The panels of the dashboards in deploy/monitoring, with their queries as Grafana sends them to Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "deploy" / "monitoring"
NAMES = ("fleet", "service", "node", "broker")


@dataclass(frozen=True)
class Shown:
    """One panel of a dashboard, with its queries."""

    dashboard: str
    title: str
    queries: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.title}"


def body_of(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return body


def all_panels(name: str) -> Iterator[dict[str, Any]]:
    """Yield the panels of a dashboard, rows and those inside of collapsed rows as well."""
    for panel in body_of(name)["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def shown_panels(rate: str = "1m") -> list[Shown]:
    """Return all panels with queries: all values of the variables, and rates over a time."""
    return [
        Shown(name, panel["title"], tuple(_filled(target["expr"], rate) for target in panel["targets"]))
        for name in NAMES
        for panel in all_panels(name)
        if panel["type"] != "row"
    ]


def _filled(expression: str, rate: str) -> str:
    for variable, value in {"__rate_interval": rate, "namespace": ".*", "service": ".*", "node": ".*"}.items():
        expression = expression.replace(f"${variable}", value)
    assert "$" not in expression, expression
    return expression
