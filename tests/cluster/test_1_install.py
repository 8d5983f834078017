"""Install, publish, results, edit: what an operator does on the first day, by the documents' own commands."""

from __future__ import annotations

import json
import re

from tests.cluster.conftest import Scenario
from tests.cluster.installation import GM, GUIDE, LC, MOSQUITTO, SERVICE, Installation, typed_lines
from tests.cluster.kubectl import Kubectl, condition
from tests.cluster.report import Report

FIRST_ANSWER_S = 10.0


def test_the_example_runs_and_answers(installation: Installation, kubectl: Kubectl, report: Report) -> None:
    for selector, number in ((GM, 2), (MOSQUITTO, 1)):
        assert kubectl.ready(selector, "halimede", number)
    labelled = {
        node["metadata"]["name"]
        for label in ("node-role.kubernetes.io/edge", "halimede.io/node")
        for node in kubectl.items("nodes", "-l", label)
    }
    lcs = kubectl.pods(LC, "halimede")
    assert {pod["spec"]["nodeName"] for pod in lcs} == labelled
    assert {condition(pod, "Ready") for pod in lcs} == {"True"}
    roles = {pod["metadata"]["labels"]["jointinferenceservice.sedna.io/worker-type"] for pod in kubectl.pods(SERVICE)}
    assert roles == {"edge", "cloud"}
    report.figures["running_s"] = round(installation.running_s, 1)
    assert installation.first_answer_s is not None
    assert installation.first_answer_s <= FIRST_ANSWER_S


def test_frames_are_answered_by_edge_and_cloud(scenario: Scenario) -> None:
    with scenario("publish") as load:
        load.wait_answered(250)
    assert load.raw["by"].keys() == {"edge", "cloud"}
    assert load.raw["unheard"] == load.raw["refused"] == 0


def test_an_operator_publishes_and_watches_over_a_forwarded_port(installation: Installation) -> None:
    forward, *lines = typed_lines(GUIDE, "Publish and watch")
    with installation.running_command(forward, "Forwarding from 127.0.0.1:1883"):
        shown = installation.type("\n".join([*lines, "wait"]), 120)
    # the next ten results, the frames, the state, what the doctor found
    assert len(re.findall(r"^ *cam0 ", shown, re.MULTILINE)) == 10, shown
    assert "Running" in shown


def test_an_edit_takes_effect_while_frames_are_answered(scenario: Scenario, installation: Installation) -> None:
    with scenario("edit") as load:
        installation.edit("0.05")
    assert load.raw["unheard"] == load.raw["refused"] == 0


def test_what_the_containers_take(installation: Installation, kubectl: Kubectl, report: Report) -> None:
    assert installation.first_answer_s
    for node in kubectl.items("nodes"):
        for image in node["status"].get("images", []):
            for name in image.get("names") or []:
                if "halimede/" in name and "@" not in name:
                    report.images_mb[name.partition("halimede/")[2]] = round(image["sizeBytes"] / 1e6, 1)
        summary = json.loads(
            kubectl.run("get", "--raw", f"/api/v1/nodes/{node['metadata']['name']}/proxy/stats/summary")
        )
        for pod in summary["pods"]:
            for container in pod.get("containers", []):
                used = container.get("memory", {}).get("rssBytes")
                if used and container["name"] in {"gm", "lc", "mosquitto", "edge", "cloud"}:
                    known = report.rss_mb.get(container["name"], 0.0)
                    report.rss_mb[container["name"]] = max(known, round(used / 1e6, 1))
    report.write()
    assert {"gm", "lc", "mosquitto", "edge", "cloud"} <= report.rss_mb.keys()
