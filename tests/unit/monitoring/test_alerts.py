"""The alerts of deploy/monitoring, by promtool: each fires in the listed second of its fault, none in a calm hour."""

from __future__ import annotations

import re
import shlex
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from halimede.cli.app import load
from halimede.cli.options import named_target
from scripts.monitoring import __main__ as monitoring
from scripts.monitoring.alerts import GROUPS, REFUSED, WAITING
from scripts.monitoring.rules import runbook
from scripts.reference.metrics import declared_metrics
from tests.prometheus import promtool
from tests.unit.monitoring.alert_faults import CALM, FAULTS, FAULTY, HEALTHY, STEP_S

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "monitoring"
ALERTS = {alert.name: alert for alert in chain.from_iterable(GROUPS.values())}
#: a metric of Prometheus itself
UP = "up"
#: values of labels for which not every name will do
SAMPLES = {"plural": "jointinferenceservices"}


def run_rules(folder: Path, *tests: dict[str, object]) -> None:
    """Have promtool run tests on the rules as they are shipped."""
    file = folder / "tests.yml"
    body = {"rule_files": [str(FOLDER / "rules.yml")], "evaluation_interval": f"{STEP_S}s", "tests": list(tests)}
    file.write_text(yaml.safe_dump(body))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def metrics_of(expression: str) -> set[str]:
    """Return the names of our metrics in an expression, without the names of labels."""
    without_labels = re.sub(r"\bby \([^)]*\)|\{[^}]*\}", "", expression)
    return set(re.findall(r"halimede_\w+", without_labels))


def check(expression: str, at_s: int, *values: int) -> dict[str, Any]:
    """Return promtool's check that an expression has these values then."""
    samples = [{"labels": "{}", "value": value} for value in values]
    return {"expr": expression, "eval_time": f"{at_s}s", "exp_samples": samples}


def inputs(series: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]


@pytest.mark.slow
def test_each_alert_fires_at_the_second_that_is_listed_for_its_fault(tmp_path: Path) -> None:
    assert set(FAULTS) == set(ALERTS)
    tests = []
    for name, fault in FAULTS.items():
        firing = f'ALERTS{{alertname="Halimede{name}",alertstate="firing"}}'
        at_s = STEP_S * HEALTHY + fault.seconds
        end_s = min(at_s + fault.watched_s, STEP_S * (HEALTHY + FAULTY - 1))
        checks = [
            check(f"count({firing})", at_s, 1),
            check(f"count_over_time({firing}[2h])", at_s - STEP_S),
            *([check(f"count({firing})", end_s, 1)] if fault.lasts else []),
            check(f"({ALERTS[name].expression}) == Inf", end_s),
        ]
        assert at_s <= end_s, name
        tests.append({
            "name": f"{name}: {fault.text}", "interval": f"{STEP_S}s", "input_series": inputs(fault.series),
            "promql_expr_test": checks,
        })  # fmt: skip
    run_rules(tmp_path, *tests)


def test_in_a_calm_hour_no_alert_fires(tmp_path: Path) -> None:
    used = set().union(*(metrics_of(alert.expression) for alert in ALERTS.values()))
    assert {name.partition("{")[0] for name in CALM} == {UP, *used}, "the calm hour has the metrics of all alerts"
    firing = check('count_over_time(ALERTS{alertstate="firing"}[2h])', 3600)
    run_rules(tmp_path, {"interval": f"{STEP_S}s", "input_series": inputs(CALM), "promql_expr_test": [firing]})


def test_each_alert_uses_declared_metrics_and_says_what_to_do() -> None:
    names = {row.full for row in declared_metrics().values()}
    for alert in ALERTS.values():
        assert metrics_of(alert.expression) <= names, alert.name
        assert re.search(r"\b(halimede [a-z]+|df -h|curl)\b", alert.command), alert.name
        assert len(alert.summary) <= 160, alert.name


@pytest.mark.parametrize("site", ["", "https://docs.example.org/"])
def test_a_runbook_is_a_part_of_a_document_that_exists(site: str) -> None:
    for alert in ALERTS.values():
        address = runbook(alert.runbook, site)
        assert address.startswith(f"{site}docs/"), address
        page, _, anchor = alert.runbook.partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, alert.runbook


def test_the_files_in_the_repository_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert monitoring.main(["--check"]) == 0, capsys.readouterr().err


def test_an_operator_may_write_the_files_with_the_address_of_the_documents(tmp_path: Path) -> None:
    arguments = ("--out", str(tmp_path), "--site", "https://docs.example.org")
    assert monitoring.main(["--write", *arguments]) == 0
    assert "https://docs.example.org/docs/troubleshooting.html#by-reason" in (tmp_path / "rules.yml").read_text()
    (tmp_path / "foreign.json").write_text("{}")
    assert monitoring.main(["--write", *arguments]) == 0
    assert (tmp_path / "foreign.json").exists()
    (tmp_path / "fleet.json").write_text("{}")
    assert monitoring.main(["--check", *arguments]) == 1


def test_a_dashboard_that_was_removed_from_the_code_is_no_longer_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "FOLDER", tmp_path)
    assert monitoring.main(["--write", "--out", str(tmp_path)]) == 0
    (tmp_path / "old.json").write_text("{}")
    assert monitoring.main(["--check", "--out", str(tmp_path)]) == 1
    assert monitoring.main(["--write", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "old.json").exists()


def test_each_reason_in_an_expression_is_one_that_the_code_sets() -> None:
    code = "".join(path.read_text() for folder in ("halimede", "services") for path in (ROOT / folder).rglob("*.py"))
    assert [reason for reason in f"{REFUSED}|{WAITING}".split("|") if f'"{reason}"' not in code] == []


def test_the_command_line_accepts_each_command() -> None:
    commands = chain.from_iterable(alert.command.split("; ") for alert in ALERTS.values())
    for line in {command for command in commands if command.startswith("halimede ")}:
        sample = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: SAMPLES.get(match[1], "a"), line)
        name, *arguments = shlex.split(sample)[1:]
        command = load(name)
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        parameters = command.make_context(name, arguments).params
        if name == "describe":
            assert named_target(parameters["kind"], parameters["name"])
