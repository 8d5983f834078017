"""`make test-brokers`, as one types it: Mosquitto of this machine carries the whole system."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.brokers.report import BUILD, ROOT
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_mosquitto_of_this_machine_carries_the_whole_system() -> None:
    options = ["--no-suites", "--security", "passwords", "--scenario", "without fault"]
    environment = {**os.environ, "BROKERS": ""}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.brokers", *options],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=patience(300),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (broker,) = json.loads((BUILD / "report.json").read_text())
    (scenario,) = broker["scenarios"]
    (run,) = scenario["runs"]
    assert run["sent"] > 0
    assert run["answered"] == run["sent"]
    assert run["lost_unnamed"] == 0
