"""What is remembered of a service's pods: how long they start, how often they fail, and how the next ones wait."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.names import Key
from services.gm.cluster.port import Ref
from services.gm.service_status import ReadinessTally, count_pods, judge
from services.gm.workloads.deployments import Built, replicas
from services.gm.workloads.diff import patch_for
from services.gm.workloads.pod_history import FAILED_S, LATE_S, PodBackoff, PodHistory
from services.gm.workloads.pod_status import PodView
from tests.unit.gm.workloads.builds import built, objects
from tests.unit.gm.workloads.world import service

KEY = Key("jointinferenceservices", "default", "helmet")
LABELS = objects(built())["Deployment/helmet-deployment-edge"]["spec"]["template"]["metadata"]["labels"]
TEMPLATES = {"edge": LABELS["halimede.io/template"]}


def pod(uid: str, phase: str = "Pending", *, ready: bool = False, **labels: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}] if ready else []
    metadata = {"name": uid, "uid": uid, "labels": {**LABELS, **labels}}
    status = {"phase": phase, "conditions": conditions, **({"reason": "OutOfcpu"} if phase == "Failed" else {})}
    return {"metadata": metadata, "spec": {"nodeName": "edge0"}, "status": status}


@pytest.fixture
def history() -> PodHistory:
    return PodHistory()


def test_a_pod_is_late_after_half_a_minute_and_not_once_it_was_ready(history: PodHistory) -> None:
    history.observe(KEY, [pod("a")], TEMPLATES, 0.0)
    assert (history.late_pods(KEY, LATE_S - 1), history.due_at(KEY, 1.0)) == (frozenset(), LATE_S)
    history.observe(KEY, [pod("a")], TEMPLATES, LATE_S)
    assert history.late_pods(KEY, LATE_S) == {"a"}
    assert (history.due_at(KEY, LATE_S) or 0) > LATE_S
    history.observe(KEY, [pod("a", ready=True)], TEMPLATES, LATE_S + 1)
    assert (history.late_pods(KEY, 1000.0), history.due_at(KEY, 1000.0)) == (frozenset(), None)


@pytest.mark.parametrize("every_s", [0.2, 5.0])
def test_whatever_is_asked_for_about_one_pod_a_minute_fails(every_s: float) -> None:
    """A node that refuses each pod at once, or after some seconds, for half an hour."""
    history, failed, now = PodHistory(), list[dict[str, Any]](), 0.0
    history.observe(KEY, [], TEMPLATES, now)
    while now < 1800:
        now += every_s
        if not history.backoffs(KEY, failed):
            failed.append(pod(f"p{len(failed)}", "Failed"))
        history.observe(KEY, failed, TEMPLATES, now)
    assert 25 <= len(failed) <= 33


def test_an_eviction_now_and_then_delays_nothing(history: PodHistory) -> None:
    failed: list[dict[str, Any]] = []
    history.observe(KEY, failed, TEMPLATES, 0.0)
    for minute in range(20):
        failed.append(pod(f"p{minute}", "Failed"))
        history.observe(KEY, failed, TEMPLATES, minute * FAILED_S)
        assert history.backoffs(KEY, failed) == {}


def failing(*others: dict[str, Any]) -> dict[str, PodBackoff]:
    """Return the hold of a worker of which five pods have failed, and ``others`` live."""
    history = PodHistory()
    history.observe(KEY, [], TEMPLATES, 0.0)
    known = [*(pod(f"p{n}", "Failed") for n in range(5)), *others]
    history.observe(KEY, known, TEMPLATES, 1.0)
    return history.backoffs(KEY, known)


OLD = pod("old", "Running", ready=True, **{"halimede.io/template": "older"})


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], (0, False)),
        ([pod("starts")], (1, False)),
        ([pod("runs", "Running", ready=True), pod("starts")], (2, False)),
        ([{**pod("waits"), "spec": {}}], (0, False)),
        ([OLD], (0, True)),
        ([OLD, {**pod("waits"), "spec": {}}], (0, True)),
    ],
)
def test_a_worker_whose_pods_fail_keeps_those_that_have_a_node(others: Any, expected: Any) -> None:
    (hold,) = failing(*others).values()
    assert (hold.pods, hold.gated) == expected
    assert hold.template == TEMPLATES["edge"]
    assert hold.failure.endswith("on node edge0: OutOfcpu: all containers ended")


def test_an_update_that_starts_on_another_node_goes_on() -> None:
    assert failing(OLD, pod("starts")) == {}


def test_a_pod_that_starts_on_a_good_node_comes_up_though_another_node_refuses_each_pod() -> None:
    """Two pods, one node that refuses at once, and one that pulls the image for half a minute."""
    history, failed, good, now = PodHistory(), list[dict[str, Any]](), pod("good"), 0.0
    history.observe(KEY, [], TEMPLATES, now)
    while now < 600:
        now += 0.2
        good = pod("good", "Running", ready=True) if now > 30 else good
        known = [*failed, good]
        held = history.backoffs(KEY, known)
        number = held["edge"].pods if held else 2
        assert number >= 1
        if number > 1:
            failed.append(pod(f"p{len(failed)}", "Failed"))
        history.observe(KEY, [*failed, good], TEMPLATES, now)
    assert 8 <= len(failed) <= 13


def test_an_edit_is_tried_at_once(history: PodHistory) -> None:
    history.observe(KEY, [], TEMPLATES, 0.0)
    failed = [pod(f"p{n}", "Failed") for n in range(5)]
    history.observe(KEY, failed, TEMPLATES, 1.0)
    held = history.backoffs(KEY, failed)
    assert edge(built().with_backoffs(held, {}))["spec"]["replicas"] == 0
    edited = built(service(edgeWorker={"deadlineMs": 500}))
    of = edited.with_backoffs(held, {Ref.of(edge(built())): edge(built())})
    assert (of.objects, of.held_back, replicas(of, {})["edge"]) == (edited.objects, {}, 1)
    history.observe(KEY, failed, {"edge": "another"}, 2.0)
    assert history.backoffs(KEY, failed) == {}


def test_what_failed_before_a_leader_looked_holds_nobody_up(history: PodHistory) -> None:
    failed = [pod(f"p{n}", "Failed") for n in range(50)]
    history.observe(KEY, failed, TEMPLATES, 1.0)
    assert history.backoffs(KEY, failed) == {}


def edge(of: Built) -> Any:
    return objects(of)["Deployment/helmet-deployment-edge"]


def test_a_held_worker_gets_no_more_pods_and_its_template_stays() -> None:
    plain = edge(built())
    assert edge(built().with_backoffs({"cloud": failing()["edge"]}, {})) == plain
    stopped, gated = edge(built().with_backoffs(failing(), {})), edge(built().with_backoffs(failing(OLD), {}))
    assert (stopped["spec"]["replicas"], stopped["spec"]["template"]) == (0, plain["spec"]["template"])
    assert edge(built().with_backoffs(failing(pod("starts")), {})) == plain
    assert gated["spec"]["replicas"] == 1
    assert gated["spec"]["template"]["metadata"] == plain["spec"]["template"]["metadata"]
    assert gated["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "halimede.io/failing"}]
    digests = {body["metadata"]["annotations"]["halimede.io/digest"] for body in (plain, stopped, gated)}
    assert len(digests) == 3


def test_a_worker_that_waits_is_wanted_and_its_status_has_the_last_failure() -> None:
    of = built().with_backoffs(failing(), {})
    wanted = replicas(of, {Ref.of(edge(of)): edge(of)})
    assert wanted == {"edge": 1, "cloud": 1}
    for views in ((), (PodView(role="cloud", name="c", node="cloud0", phase="Running", ready=True),)):
        tally = ReadinessTally()
        count_pods(views, wanted, of.held_back, tally)
        verdict = judge(tally, ())
        assert (verdict.phase, verdict.reason) == ("Pending", "PodsFailing")
        assert "pod p" in verdict.message
        assert "edge0" in verdict.message


@pytest.mark.parametrize(("others", "number"), [([], 0), ([pod("runs", "Running", ready=True)], None)])
def test_an_autoscaled_worker_waits_only_if_it_has_no_pod(others: Any, number: Any) -> None:
    of = built(service(edgeWorker={"hpa": {"maxReplicas": 3}})).with_backoffs(failing(*others), {})
    assert (edge(of)["spec"].get("replicas"), "edge" in of.held_back) == (number, number == 0)


def test_an_autoscaled_worker_gets_its_first_pod_again() -> None:
    of = built(service(edgeWorker={"hpa": {"maxReplicas": 3}}))
    assert "replicas" not in edge(of)["spec"]
    existing = {Ref.of(edge(of)): {**edge(of), "spec": {**edge(of)["spec"], "replicas": 0}}}
    assert edge(of.with_backoffs({}, existing))["spec"]["replicas"] == 1


def test_a_worker_that_waited_when_its_secret_was_deleted_gets_its_pod_again() -> None:
    waits, of = edge(built().with_backoffs(failing(), {})), built(secrets={})
    assert "edge" in of.unchanged
    existing = {Ref.of(waits): waits}
    assert of.with_backoffs(failing(), existing).objects == of.objects
    (again,) = (body for body in of.with_backoffs({}, existing).objects if body not in of.objects)
    assert again == {**waits, "spec": {**waits["spec"], "replicas": 1}}
    assert patch_for(waits, again)
    copied = {**waits, "metadata": {**waits["metadata"], "name": "copied"}}
    assert of.with_backoffs({}, {Ref.of(copied): copied}).objects == of.objects
