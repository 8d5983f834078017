"""The alerts as rules of Prometheus, and as a ``PrometheusRule`` for the Prometheus operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from scripts.monitoring.alerts import GROUPS, Alert

#: the folder of the documents, to which a runbook's path belongs
DOCUMENTS = "docs"


def groups(site: str = "") -> list[dict[str, Any]]:
    """Return the groups of rules. ``site``: the address of the documents' site; empty: runbooks are paths of files."""
    return [{"name": name, "rules": [_rule(alert, site) for alert in alerts]} for name, alerts in GROUPS.items()]


def _rule(alert: Alert, site: str) -> dict[str, Any]:
    """Return the rule of an alert."""
    expression = LiteralScalarString(alert.expression) if "\n" in alert.expression else alert.expression
    return {
        "alert": alert.full,
        "expr": expression,
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "command": alert.command,
            "runbook_url": runbook(alert.runbook, site),
        },
    }


def runbook(part: str, site: str = "") -> str:
    """Return where a part of the documents is: a page of the site, or a file of the repository."""
    if not site:
        return f"{DOCUMENTS}/{part}"
    page, _, anchor = part.partition("#")
    return f"{site.rstrip('/')}/{DOCUMENTS}/{page.removesuffix('.md')}.html" + (f"#{anchor}" if anchor else "")


def rules_file(rule_groups: Sequence[Mapping[str, Any]]) -> str:
    """Return the file for ``rule_files`` of Prometheus."""
    return _yaml({"groups": rule_groups})


def prometheus_rule(rule_groups: Sequence[Mapping[str, Any]]) -> str:
    """Return the resource of the Prometheus operator."""
    return _yaml({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "halimede"},
        "spec": {"groups": rule_groups},
    })  # fmt: skip


def _yaml(body: Mapping[str, Any]) -> str:
    """Return data as YAML, the same on every run."""
    yaml = YAML()
    yaml.width = 1000  # no line break inside an expression
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.representer.ignore_aliases = lambda _: True
    out = StringIO()
    yaml.dump(body, out)
    return out.getvalue()
