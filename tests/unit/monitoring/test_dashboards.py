"""The dashboards of deploy/monitoring: what Grafana's own schema has, and queries of declared metrics."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from scripts.monitoring.panels import Scope, panels_of
from scripts.reference.markdown import IncompleteError
from scripts.reference.metrics import declared_metrics
from tests.dashboards import FOLDER, NAMES, all_panels, body_of, shown_panels
from tests.prometheus import promtool

dashboards = pytest.mark.parametrize("name", NAMES)


@dashboards
def test_grafanas_schema_has_every_field(name: str) -> None:
    register_default_plugins()
    body = body_of(name)
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(body))) == body


def test_uids_and_titles_are_unique_and_every_file_is_mounted() -> None:
    bodies = [body_of(name) for name in NAMES]
    assert {body["uid"] for body in bodies} == {f"halimede-{name}" for name in NAMES}
    assert len({body["title"] for body in bodies}) == len(NAMES)
    assert {path.stem for path in FOLDER.glob("*.json")} == set(NAMES)
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert kustomization["generatorOptions"]["labels"] == {"grafana_dashboard": "1"}
    mounted = [file for config_map in kustomization["configMapGenerator"] for file in config_map["files"]]
    assert sorted(mounted) == sorted(f"{name}.json" for name in NAMES)


@dashboards
def test_the_data_source_is_a_variable_and_panels_have_ids_of_their_own(name: str) -> None:
    source, *variables = body_of(name)["templating"]["list"]
    assert (source["type"], source["name"], source["query"]) == ("datasource", "datasource", "prometheus")
    for variable in variables:
        assert variable["datasource"]["uid"] == "${datasource}"
    panels = list(all_panels(name))
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        if panel["type"] != "row":
            sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert {source["uid"] for source in sources} == {"${datasource}"}, panel["title"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def cells(panels: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the cells of the grid that panels take."""
    grid = []
    for position in (panel["gridPos"] for panel in panels):
        assert position["x"] + position["w"] <= 24
        grid += [(position["x"] + i, position["y"] + j) for i in range(position["w"]) for j in range(position["h"])]
    return grid


@dashboards
def test_no_panel_lies_on_another(name: str) -> None:
    body = body_of(name)
    for panels in (body["panels"], *(panel["panels"] for panel in body["panels"] if panel.get("panels"))):
        grid = cells(panels)
        assert len(set(grid)) == len(grid)


def test_every_declared_metric_has_a_panel_and_every_query_declared_metrics() -> None:
    expressions = " ".join(chain.from_iterable(panel.queries for panel in shown_panels()))
    labels = {"halimede_role", "halimede_node", "halimede_worker", "halimede_service", "halimede_namespace"}
    queried = {re.sub(r"_(bucket|sum)$", "", name) for name in re.findall(r"halimede_\w+", expressions)} - labels
    assert queried == {row.full for row in declared_metrics().values()}


def test_metrics_of_processes_are_those_of_our_own_alone() -> None:
    expressions = " ".join(chain.from_iterable(panel.queries for panel in shown_panels()))
    selectors = re.findall(r"\bprocess_\w+(\{[^}]*\})?", expressions)
    assert len(selectors) == 4
    assert all('halimede_role!=""' in selector for selector in selectors)


def test_promtool_reads_every_query(tmp_path: Path) -> None:
    queries = [query for panel in shown_panels() for query in panel.queries]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = promtool("check", "rules", tmp_path / "rules.yml")
    assert done.returncode == 0, done.stderr
    assert f"{len(queries)} rules found" in done.stdout


def test_an_unknown_metric_is_named() -> None:
    with pytest.raises(IncompleteError, match="no metric is named service_answer:"):
        panels_of(Scope("service_"), ["service_answer"])


def test_a_panel_follows_from_what_is_declared_of_a_metric() -> None:
    scope = Scope("lc_", 'halimede_node=~"$node"', ("halimede_node",))
    (counter,) = panels_of(scope, ["lc_preparation_failures"])
    (query,) = counter.queries
    rate = 'rate(halimede_lc_preparation_failures_total{halimede_node=~"$node"}[$__rate_interval])'
    assert (query.expression, counter.unit) == (f"sum by (halimede_node, reason) ({rate})", "cps")
    (histogram,) = panels_of(scope, ["lc_download_seconds"])
    assert (histogram.unit, len(histogram.queries)) == ("s", 3)
    assert "sum by (le, halimede_node)" in histogram.queries[0].expression
    (summed,) = panels_of(Scope("service_", "", ("service",), ("node",)), ["service_answers"])
    assert summed.queries[0].expression.startswith("sum by (service, namespace, plural) (")
    (gauge,) = panels_of(scope, ["lc_store_bytes"])
    assert (gauge.unit, gauge.text) == ("bytes", "Size of the store's file.")
