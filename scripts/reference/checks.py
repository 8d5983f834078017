"""The page of all checks of a system, from ``halimede.health_checks``."""

from __future__ import annotations

import re

from halimede.health_checks.check import CheckRule
from halimede.health_checks.registry import CHECKS
from scripts.reference.markdown import document, table

ABOUT = """\
`halimede status`, `halimede doctor` and the panel "Problems" of GM's page show the rows of this list; GM's `/readyz` \
shows those of `broker`, `granted` and `store`. `status -o json` and `doctor -o json` have them below `checks`, each \
with `name`, `level`, `found`, `do`, `about`, `since`, `follows` and `fails`. The level `fact` is something to know, \
which is not a fault yet. `status` ends with the highest exit code of its rows. `doctor` has checks of its own as \
well (this machine, the broker, access, the round trip), and ends with 1 if a row has the level `problem`."""
COLUMNS = ("check", "level", "what it observes", "what follows", "what mends it", "exit code of `status`")


def pages() -> dict[str, str]:
    """Return the page."""
    rows = [_row(rule) for _, rules in CHECKS for rule in rules]
    return {"checks": document("Checks of the system", "the rules of the code", ABOUT, table(COLUMNS, rows))}


def _row(rule: CheckRule) -> list[str]:
    remedy = re.sub(r"\{(\w+)\}", lambda field: field[1].upper(), rule.mends)
    return [f"`{rule.name}`", rule.level, rule.observes, rule.follows, remedy, str(int(rule.fails))]
