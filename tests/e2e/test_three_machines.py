"""docs/three-machines.md, typed in as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.machines import NEEDS_SPACES, Machines, steps
from tests.e2e.running import digits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), NEEDS_SPACES]
#: before a command: what it needs to see
NEEDED = {
    "halimede gm": "grep -q running /var/log/mosquitto/mosquitto.log",
    "halimede nodes": "test $(halimede nodes -o json 2>&1 | grep -c 'online.*true') = 2",
    "halimede publish": "halimede get ji digits | grep -q Running",
    "halimede describe": "halimede describe ji digits | grep -qE 'inference number +101'",
}


def test_the_page_from_its_first_command_to_answers_of_both_nodes(tmp_path: Path) -> None:
    digits()
    machines, typed = Machines(tmp_path, NEEDED), list(steps("docs/three-machines.md"))
    assert sum(step.text.startswith("halimede lc") for step in typed) == 2
    machines.type(typed)
    shown = machines.run()
    assert "each acknowledged by the broker" in shown
    # the last command of the page, once the samples are counted
    assert re.search(r"inference number\s+101\b", shown), shown
