"""A running site changes from passwords to certificates, by the commands of the guide."""

from __future__ import annotations

import time

import pytest

from tests.cluster.conftest import Scenario
from tests.cluster.installation import BROKER_TLS, GM, GUIDE, MOSQUITTO, Installation, typed_lines
from tests.cluster.kubectl import Kubectl, until
from tests.cluster.report import Report

pytestmark = pytest.mark.timeout(600)


def test_a_running_site_changes_to_tls(
    scenario: Scenario, installation: Installation, kubectl: Kubectl, report: Report
) -> None:
    lines = typed_lines(GUIDE, "With TLS")
    number = next(number for number, line in enumerate(lines, 1) if "overlays/tls" in line)
    first, later = lines[:number], lines[number:]
    began = time.monotonic()
    for line in first:
        installation.type(line)
    until("GM", lambda: kubectl.ready(GM, "halimede", 2), 180)
    until("the broker", lambda: kubectl.ready(MOSQUITTO, "halimede"), 120)
    installation.broker = BROKER_TLS
    installation.prepare_load("default", installation.folder / "site-tls/operators/admin")
    installation.running()
    with scenario("tls"):
        pass
    report.figures["tls_s"] = round(time.monotonic() - began, 1)
    # certificates that are renewed: LCs and broker read theirs again
    with scenario("tls renewed"):
        for line in later:
            installation.type(line)
        kubectl.run("rollout", "status", "daemonset/halimede-lc", "-n", "halimede", "--timeout=120s")
