"""Dashboards as Grafana's JSON, by grafana-foundation-sdk: for Grafana 10.1, which newer ones read as well.

The data source is a variable, so that a dashboard works in any Grafana. A dashboard is the same text on each run.
"""

from __future__ import annotations

import json
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import common, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus as queries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from scripts.monitoring.dashboards import Dashboard, Row
from scripts.monitoring.panels import Panel

#: the data source: Grafana puts the chosen one in its place
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
#: width (of 24) and height of a panel by its kind
SIZES = {"number": (4, 4), "lines": (8, 7), "table": (12, 7)}


def render(name: str, dashboard: Dashboard) -> str:
    """Return a dashboard as JSON with the uid ``halimede-NAME``."""
    builder = (
        builders.Dashboard(dashboard.title)
        .uid(f"halimede-{name}")
        .description(dashboard.text)
        .tags(["halimede", "generated"])
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .link(builders.DashboardLink("Halimede").tags(["halimede"]).as_dropdown(True).keep_time(True))  # noqa: FBT003
    )
    for variable, query in dashboard.variables.items():
        builder.with_variable(_variable(variable, query))
    for row in dashboard.rows:
        _add_row(builder, row)
    built = builder.build()
    for number, panel in enumerate(_all_panels(built.panels or []), 1):
        panel.id_val = number
    return _line_by_line(json.loads(JSONEncoder(sort_keys=True).encode(built)))


def _line_by_line(body: dict[str, Any]) -> str:
    """Return a dashboard as JSON with a line for each panel, so that a change of one is a change of one line."""
    panels = ",\n".join(json.dumps(panel, sort_keys=True) for panel in body["panels"])
    head = json.dumps({**body, "panels": []}, indent=1, sort_keys=True)
    return head.replace('"panels": []', f'"panels": [\n{panels}\n ]', 1) + "\n"


def _variable(name: str, query: str) -> builders.QueryVariable:
    """Return a variable that selects one value, several, or all."""
    return (
        builders.QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)  # noqa: FBT003 (of the library)
        .include_all(True)  # noqa: FBT003
        .all_value(".*")
    )


def _add_row(builder: builders.Dashboard, row: Row) -> None:
    """Add a row with its panels: Grafana has those of a collapsed one inside of it, and others after it."""
    title = builders.Row(row.title)
    if row.collapsed:
        for panel in row.panels:
            title.with_panel(_panel(panel))
    builder.with_row(title)
    if not row.collapsed:
        for panel in row.panels:
            builder.with_panel(_panel(panel))


def _panel(panel: Panel) -> stat.Panel | table.Panel | timeseries.Panel:
    """Return a panel with its queries."""
    builder: stat.Panel | table.Panel | timeseries.Panel
    if panel.kind == "number":
        builder = stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    elif panel.kind == "table":
        builder = table.Panel().show_header(True)  # noqa: FBT003
    else:
        legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        builder = (
            timeseries.Panel()
            .fill_opacity(10)
            .legend(legend.show_legend(True))  # noqa: FBT003
            .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        )
    width, height = SIZES[panel.kind]
    builder.title(panel.title).datasource(SOURCE).unit(panel.unit).span(width).height(height)
    if panel.text:
        builder.description(panel.text)
    for ref_id, query in zip(ascii_uppercase, panel.queries, strict=False):
        target = queries.Dataquery().ref_id(ref_id).datasource(SOURCE).expr(query.expression)
        if query.legend:
            target.legend_format(query.legend)
        if panel.kind == "table":
            target.format(PromQueryFormat.TABLE).instant()
        builder.with_target(target)
    return builder


def _all_panels(panels: list[object]) -> list[object]:
    """Return rows and panels, those inside of collapsed rows as well, in their order."""
    return [inner for panel in panels for inner in (panel, *(getattr(panel, "panels", None) or ()))]
