"""`make test-brokers`, as one types it: Mosquitto of this machine carries the whole system."""

from __future__ import annotations

import json
import os

import pytest

from tests.brokers.report import BUILD, ROOT
from tests.programs import run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_mosquitto_of_this_machine_carries_the_whole_system() -> None:
    options = ["--no-suites", "--security", "passwords", "--scenario", "without fault"]
    ended = run_python("-m", "tests.brokers", *options, cwd=ROOT, env={**os.environ, "BROKERS": ""}, timeout_s=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (broker,) = json.loads((BUILD / "report.json").read_text())
    (scenario,) = broker["scenarios"]
    (run,) = scenario["runs"]
    assert run["sent"] > 0
    assert run["answered"] == run["sent"]
    assert run["lost_unnamed"] == 0
