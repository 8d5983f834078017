"""The parts of `make test-cluster` that need no cluster: what it says without one, its rules, its counts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.images import NAMES, recipes_of
from tests.cluster.installation import GUIDE, SHORT, typed_lines
from tests.cluster.recording import FOLDER, stripped
from tests.cluster.report import Outcome, Report
from tests.cluster.requirements import BINARIES, PROGRAMS, missing
from tests.cluster.service_proxy import Rule, hosts_of, rules_of, ruleset
from tests.cluster.settings import ROOT

RECORDINGS = sorted(FOLDER.glob("*.json"))
SERVICE = {
    "metadata": {"name": "broker", "namespace": "halimede"},
    "spec": {"clusterIP": "10.96.0.7", "ports": [{"name": "mqtt", "port": 1883}]},
}
LABEL = "kubernetes.io/service-name"


def endpoints(**conditions: bool) -> dict[str, object]:
    return {
        "metadata": {"name": "broker-x", "namespace": "halimede", "labels": {LABEL: "broker"}},
        "ports": [{"name": "mqtt", "port": 11883}],
        "endpoints": [{"addresses": ["10.244.0.3"], "conditions": conditions}],
    }


def test_without_a_cluster_it_says_what_is_missing_and_how_to_get_it() -> None:
    environment = {key: value for key, value in os.environ.items() if key not in {"KUBECONFIG", "KUBE_BINARIES"}}
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert all(word in done.stderr for word in ("KUBECONFIG=", "KUBE_BINARIES=", "docs/cluster.md", *BINARIES))


def test_each_missing_binary_is_named(tmp_path: Path) -> None:
    found = "\n".join(missing(tmp_path))
    assert all(str(tmp_path / name) in found for name in BINARIES)


def test_the_page_installs_each_debian_package() -> None:
    (line,) = re.findall(r"^apt-get install ((?:.*\\\n)*.*)$", (ROOT / "docs/cluster.md").read_text(), re.MULTILINE)
    assert set(line.replace("\\\n", " ").split()) == {*PROGRAMS.values(), "containernetworking-plugins"}


def test_an_ordinary_run_collects_none_of_the_suite() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "tests/cluster"]
    environment = {key: value for key, value in os.environ.items() if key != "HALIMEDE_TEST_CLUSTER"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    # pytest: no tests were collected
    assert done.returncode == 5


def test_a_service_leads_to_its_ready_pods() -> None:
    rules = rules_of([SERVICE], [endpoints(ready=True)])
    assert rules == [Rule("10.96.0.7", 1883, "tcp", (("10.244.0.3", 11883),))]
    text = ruleset(rules)
    assert "ip daddr 10.96.0.7 tcp dport 1883 numgen random mod 1 vmap { 0 : goto e-10-244-0-3-tcp-11883 }" in text
    assert "dnat to 10.244.0.3:11883" in text


def test_a_service_without_a_ready_pod_refuses_connections() -> None:
    text = ruleset(rules_of([SERVICE], [endpoints(ready=False)]))
    assert "ip daddr 10.96.0.7 tcp dport 1883 reject" in text
    assert "dnat" not in text


def test_names_of_services_and_of_the_pods_of_headless_ones() -> None:
    headless = {"metadata": SERVICE["metadata"], "spec": {"clusterIP": "None"}}
    assert hosts_of([SERVICE], []) == "10.96.0.7 broker.halimede.svc.cluster.local\n"
    assert hosts_of([headless], [endpoints()]) == "10.244.0.3 broker.halimede.svc.cluster.local\n"


def test_a_frame_is_lost_without_a_name_only_if_nobody_counted_it() -> None:
    load = {
        "sent": 100,
        "answered": 80,
        "unheard": 5,
        "refused": 3,
        "unanswered": 12,
        "gaps": [[4.5, 1.0]],
        "seconds": 9,
    }
    assert Outcome.of(load, lost=10) == Outcome(100, 80, 5 + 3 + 10, 2, 4.5)
    # what the service counted before its frames were waited for is not counted twice
    assert Outcome.of(load, lost=20) == Outcome(100, 80, 5 + 3 + 12, 0, 4.5)


def test_the_report_has_a_table_and_a_file(tmp_path: Path) -> None:
    report = Report(tmp_path / "report.json", first_answer_s=3.5)
    report.add("kill gm", Outcome(100, 100, 0, 0, 0.5), {"sent": 100})
    assert json.loads(report.path.read_text())["scenarios"]["kill gm"] == {
        "sent": 100, "answered": 100, "lost_named": 0, "lost_unnamed": 0, "recovery_s": 0.5,
    }  # fmt: skip
    assert re.search(r"kill gm +100 +100 +0 +0 +0\.5", report.table())


def test_each_image_has_its_place_in_a_dockerfile() -> None:
    for recipe in recipes_of(ROOT, *NAMES):
        text = (ROOT / recipe.dockerfile).read_text()
        assert not recipe.target or re.search(rf"^FROM \S+ AS {recipe.target}$", text, re.MULTILINE), recipe


def test_the_lines_that_the_suite_types_are_in_the_documents() -> None:
    assert [line.split()[0] for line in typed_lines(SHORT)] == ["kubectl", "halimede", "halimede", "kubectl", "kubectl"]
    assert any("overlays/tls" in line for line in typed_lines(GUIDE, "With TLS"))
    assert typed_lines(GUIDE, "Upgrades")[0].startswith("kubectl apply -k")
    assert all(line.startswith("kubectl") for line in typed_lines(GUIDE, "Removal"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_names_its_case_and_no_machine(path: Path) -> None:
    body = json.loads(path.read_text())
    assert body["case"] == path.stem
    assert re.fullmatch(r"v1\.\d+\.\d+", body["kubernetes"])
    assert body["pods"] or body["nodes"] or body["objects"]
    assert stripped(body) == body
