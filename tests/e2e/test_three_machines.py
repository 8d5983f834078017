"""docs/three-machines.md, typed in as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.machines import NEEDS_SPACES, SPACES, Machines, steps
from tests.e2e.running import digits
from tests.programs import run_program

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


def test_a_mosquitto_of_root_cannot_read_below_a_folder_of_another_user(tmp_path: Path) -> None:
    """The page gives the folder to the user mosquitto: without that, the broker does not start."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    (folder / "acl").write_text("user gm\n")
    (tmp_path / "m.conf").write_text(f"listener 18839 127.0.0.1\nacl_file {folder / 'acl'}\nlog_dest stderr\n")
    started = "ip link set lo up; PATH=$PATH:/usr/sbin exec timeout 5 mosquitto -c m.conf"
    done = run_program(*SPACES, "bash", "-c", started, cwd=tmp_path)
    assert done.returncode not in {0, 124}
    assert re.search(r"Unable to open|Permission denied|Error", done.stderr)
