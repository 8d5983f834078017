"""The parts of `make test-cluster` that need no cluster: what it says without one, its rules, its counts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halimede.bus.mqtt import MqttSettings
from tests.cluster import recording
from tests.cluster.images import NAMES, recipes_of
from tests.cluster.installation import GUIDE, SHORT, typed_lines
from tests.cluster.kubectl import COMMAND_S, Body, Kubectl
from tests.cluster.load import Load
from tests.cluster.power import Power
from tests.cluster.recording import Recorder, record_pods, stripped, waiting
from tests.cluster.report import Outcome
from tests.cluster.requirements import BINARIES, PROGRAMS, missing
from tests.cluster.service_proxy import MARK, Rule, hosts_of, rules_of, ruleset
from tests.cluster.settings import ROOT
from tests.cluster.traffic import Load as TrafficLoad
from tests.cluster.traffic import ProcessProgram
from tests.programs import run_python

CASES = {path: json.loads(path.read_text()) for path in sorted(recording.FOLDER.glob("*.json"))}
#: those with a source were written, not recorded
RECORDINGS = [path for path, body in CASES.items() if "source" not in body]
SERVICE = {
    "metadata": {"name": "broker", "namespace": "halimede"},
    "spec": {"clusterIP": "10.96.0.7", "ports": [{"name": "mqtt", "port": 1883}]},
}


def endpoints(**conditions: bool) -> dict[str, object]:
    meta = {"name": "broker-x", "namespace": "halimede", "labels": {"kubernetes.io/service-name": "broker"}}
    ready = [{"addresses": ["10.244.0.3"], "conditions": conditions}]
    return {"metadata": meta, "ports": [{"name": "mqtt", "port": 11883}], "endpoints": ready}


def without_a_cluster(*words: str) -> subprocess.CompletedProcess[str]:
    named = {"KUBECONFIG", "KUBE_BINARIES", "HALIMEDE_TEST_CLUSTER"}
    return run_python(*words, cwd=ROOT, env={name: value for name, value in os.environ.items() if name not in named})


def test_without_a_cluster_it_says_what_is_missing_and_how_to_get_it() -> None:
    done = without_a_cluster("-m", "tests.cluster")
    assert done.returncode == 2
    assert all(word in done.stderr for word in ("KUBECONFIG=", "KUBE_BINARIES=", "docs/cluster.md", *BINARIES))


def test_each_missing_binary_is_named(tmp_path: Path) -> None:
    found = "\n".join(missing(tmp_path))
    assert all(str(tmp_path / name) in found for name in BINARIES)


def test_the_page_installs_each_debian_package() -> None:
    (line,) = re.findall(r"^apt-get install ((?:.*\\\n)*.*)$", (ROOT / "docs/cluster.md").read_text(), re.MULTILINE)
    assert set(line.replace("\\\n", " ").split()) == {*PROGRAMS.values(), "containernetworking-plugins"}


def test_an_ordinary_run_collects_none_of_the_suite() -> None:
    # pytest: no tests were collected
    assert without_a_cluster("-m", "pytest", "--collect-only", "-q", "-n", "0", "tests/cluster").returncode == 5


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


COUNTS = {"sent": 100, "answered": 79, "unheard": 5, "refused": 3, "unanswered": 12, "open": 1}
LOAD = {**COUNTS, "gaps": [[4.5, 1.0]], "seconds": 9}


@pytest.mark.parametrize(
    ("lost", "counted"),
    # what the service counted before its frames were waited for is not counted twice; its count may begin again
    [(10, 10), (20, 12), (-3, 0)],
)
def test_a_frame_is_lost_without_a_name_only_if_nobody_counted_it(lost: int, counted: int) -> None:
    assert Outcome.of(LOAD, lost) == Outcome(100, 79, 5 + 3 + counted, 12 - counted + 1, 4.5)


def test_counts_that_lack_a_frame_are_refused() -> None:
    with pytest.raises(AssertionError, match="frames are missing"):
        Outcome.of(LOAD | {"sent": 101}, 0)


def test_each_frame_is_counted_once_and_answers_to_other_loads_are_not() -> None:
    async def outcome() -> dict[str, object]:
        load = Load(MqttSettings("127.0.0.1"), [], 25.0)
        tally = load.tally
        tally.sent |= {"answered", "unheard", "refused", "accepted", "on its way", "accepted and answered"}
        tally.unheard, tally.refused = {"unheard"}, {"refused", "answered"}
        tally.accepted = {"accepted", "accepted and answered"}
        for name in ("answered", "accepted and answered", "of another load"):
            await load._on_result(SimpleNamespace(body=SimpleNamespace(id=name, by="edge", degraded=False)))  # type: ignore[arg-type]
        return tally.outcome()

    counts = asyncio.run(outcome())
    assert [counts[name] for name in COUNTS] == [6, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("container", ["", "containerd://", "containerd://" + 64 * "0"])
def test_a_container_that_is_not_here_is_not_killed(container: str) -> None:
    with pytest.raises(AssertionError, match=r"not the id|no process"):
        Power().kill(container)


def test_each_image_has_its_place_in_a_dockerfile() -> None:
    for recipe in recipes_of(ROOT, *NAMES):
        text = (ROOT / recipe.dockerfile).read_text()
        assert not recipe.target or re.search(rf"^FROM \S+ AS {recipe.target}$", text, re.MULTILINE), recipe


def test_the_lines_that_the_suite_types_are_in_the_documents() -> None:
    assert [line.split()[0] for line in typed_lines(SHORT)] == ["kubectl", "halimede", "halimede", "kubectl", "kubectl"]
    assert any("overlays/tls" in line for line in typed_lines(GUIDE, "With TLS"))
    assert typed_lines(GUIDE, "Upgrades")[1].startswith("kubectl apply -k")
    assert all(line.startswith("kubectl") for line in typed_lines(GUIDE, "Removal"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_names_its_case_and_no_machine(path: Path) -> None:
    body = CASES[path]
    assert body["case"] == path.stem
    assert re.fullmatch(r"v1\.\d+\.\d+", body["kubernetes"])
    assert body["pods"] or body["nodes"] or body["objects"]
    assert stripped(body) == body


class OnePod(Kubectl):
    """A cluster with one pod: each look finds it in the next state."""

    def __init__(self, *states: Body) -> None:
        super().__init__({})
        self._states = iter(states)

    def run(self, *words: str, stdin: str = "", seconds: float = COMMAND_S) -> str:
        return json.dumps({"serverVersion": {"gitVersion": "v1.36.2"}})

    def items(self, *words: str) -> list[Body]:
        if words[0] == "events":
            return []
        status = {"phase": "Running", "containerStatuses": [{"name": "edge", "state": next(self._states)}]}
        return [{"metadata": {"name": "edge-0", "namespace": "default"}, "status": status}]


def test_a_pod_is_recorded_as_it_was_seen_though_it_starts_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    back_off, runs = {"waiting": {"reason": "CrashLoopBackOff"}}, {"running": {}}
    recorder = Recorder(OnePod(back_off, runs), Power())
    record_pods(recorder, "crash", "helmet", lambda pods: waiting(pods, "CrashLoopBackOff"))
    (pod,) = json.loads((tmp_path / "crash.json").read_text())["pods"]
    assert pod["status"]["containerStatuses"][0]["state"] == back_off


def test_answers_before_a_wait_do_not_count_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the broker was killed at 3.4 s: the 86 answers are older than the wait
    counts = iter([(2.0, 36), (3.0, 86), (4.0, 86), (5.0, 86), (6.0, 136)])
    load = TrafficLoad(Kubectl(), ProcessProgram([], tmp_path, {}))
    monkeypatch.setattr(load, "now", lambda: dict(zip(("seconds", "answered"), next(counts), strict=True)))
    load.wait_answered(50)
    assert list(counts) == [], "it has waited for the last"


def test_an_answer_from_a_node_port_comes_back_through_its_node() -> None:
    rules = ruleset([Rule("10.96.0.7", 80, "tcp", (("10.244.1.3", 8080),), node_port=31080)])
    assert f"tcp dport 31080 meta mark set {MARK} numgen" in rules
    assert f"meta mark {MARK} masquerade" in rules
