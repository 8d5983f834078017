"""The page of all alerts, from their declarations in ``scripts.monitoring``."""

from __future__ import annotations

import re

from scripts.monitoring.alerts import GROUPS, Alert
from scripts.reference.markdown import code, document, table

ABOUT = """\
The alert rules of `deploy/monitoring` ([monitoring](../monitoring.md)). An alert fires after its expression was true \
for the time in the column `for`. `critical`: samples are not answered, or will not be. `warning`: they are answered, \
but worse or later than they should be."""
COLUMNS = ("alert", "severity", "for", "meaning", "what to do", "more")


def pages() -> dict[str, str]:
    """Return the page."""
    rows = [_row(alert) for alerts in GROUPS.values() for alert in alerts]
    return {"alerts": document("Alerts", "the rules of the code", ABOUT, table(COLUMNS, rows))}


def _row(alert: Alert) -> list[str]:
    """Return the row of an alert, with labels in capitals instead of their values."""
    summary, command = (re.sub(r"\{\{.*?\}\}", _word, text) for text in (alert.summary, alert.command))
    page = alert.runbook.partition("#")[0].removesuffix(".md")
    more = f"[{page}](../{alert.runbook})"
    meaning = f"{summary}. {alert.description}"
    return [code(alert.full), alert.severity, alert.lasts, meaning, ", ".join(map(code, command.split("; "))), more]


def _word(template: re.Match[str]) -> str:
    """Return a placeholder for a value of a template: the label, or a number."""
    label = re.search(r"\$labels\.(?:halimede_)?(\w+)", template[0])
    return label[1].upper() if label else "N"
