"""What is remembered of a service's pods: how long they start, and how often they fail."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.names import Key
from services.gm.cluster.port import Ref
from services.gm.workloads.pod_history import FAILED_S, LATE_S, PodHistory
from tests.unit.gm.workloads.world import built, service

KEY = Key("jointinferenceservices", "default", "helmet")
LABELS = next(b for b in built().objects if b["metadata"]["name"].endswith("-edge"))["spec"]["template"]["metadata"][
    "labels"
]
TEMPLATES = {"edge": LABELS["halimede.io/template"]}


def pod(uid: str, phase: str = "Pending", *, ready: bool = False, **labels: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}] if ready else []
    metadata = {"name": uid, "uid": uid, "labels": {**LABELS, **labels}}
    return {"metadata": metadata, "spec": {"nodeName": "edge0"}, "status": {"phase": phase, "conditions": conditions}}


def test_a_pod_is_late_after_half_a_minute_and_not_once_it_was_ready() -> None:
    history = PodHistory()
    history.observe(KEY, [pod("a")], TEMPLATES, 0.0)
    assert (history.late(KEY, LATE_S - 1), history.due(KEY, 1.0)) == (frozenset(), LATE_S)
    history.observe(KEY, [pod("a")], TEMPLATES, LATE_S)
    assert history.late(KEY, LATE_S) == {"a"}
    assert (history.due(KEY, LATE_S) or 0) > LATE_S
    history.observe(KEY, [pod("a", ready=True)], TEMPLATES, LATE_S + 1)
    assert (history.late(KEY, 1000.0), history.due(KEY, 1000.0)) == (frozenset(), None)


@pytest.mark.parametrize("every_s", [0.2, 5.0])
def test_whatever_is_asked_for_about_one_pod_a_minute_fails(every_s: float) -> None:
    """A node that refuses each pod at once, or after some seconds, for half an hour."""
    history, failed, now = PodHistory(), [], 0.0
    history.observe(KEY, [], TEMPLATES, now)
    while now < 1800:
        now += every_s
        if not history.held(KEY, failed):
            failed.append(pod(f"p{len(failed)}", "Failed"))
        history.observe(KEY, failed, TEMPLATES, now)
    assert 25 <= len(failed) <= 33


def test_an_eviction_now_and_then_delays_nothing() -> None:
    history = PodHistory()
    failed: list[dict[str, Any]] = []
    history.observe(KEY, failed, TEMPLATES, 0.0)
    for minute in range(20):
        failed.append(pod(f"p{minute}", "Failed"))
        history.observe(KEY, failed, TEMPLATES, minute * FAILED_S)
        assert history.held(KEY, failed) == {}


def test_an_edit_is_tried_at_once_and_pods_that_are_up_stay() -> None:
    history = PodHistory()
    history.observe(KEY, [], TEMPLATES, 0.0)
    failed = [pod(f"p{n}", "Failed") for n in range(5)]
    history.observe(KEY, failed, TEMPLATES, 1.0)
    assert history.held(KEY, failed) == {"edge": "stop"}
    assert history.held(KEY, [*failed, pod("old", "Running", ready=True)]) == {"edge": "gate"}
    history.observe(KEY, failed, {"edge": "another"}, 2.0)
    assert history.held(KEY, failed) == {}


def test_what_failed_before_a_leader_looked_holds_nobody_up() -> None:
    history = PodHistory()
    failed = [pod(f"p{n}", "Failed") for n in range(50)]
    history.observe(KEY, failed, TEMPLATES, 1.0)
    assert history.held(KEY, failed) == {}


def test_a_held_worker_has_no_pods_or_gated_ones() -> None:
    def edge(held: Any, existing: Any = None) -> Any:
        of = built().holding(held, existing or {})
        return next(b for b in of.objects if b["metadata"]["name"].endswith("deployment-edge"))

    plain = edge({})
    assert edge({"cloud": "stop"}) == plain
    stopped, gated = edge({"edge": "stop"}), edge({"edge": "gate"})
    assert (stopped["spec"]["replicas"], stopped["spec"]["template"]) == (0, plain["spec"]["template"])
    assert (gated["spec"]["replicas"], gated["spec"]["template"]["metadata"]) == (
        1, plain["spec"]["template"]["metadata"]
    )  # fmt: skip
    assert gated["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "halimede.io/failing"}]
    digests = {body["metadata"]["annotations"]["halimede.io/digest"] for body in (plain, stopped, gated)}
    assert len(digests) == 3


def test_an_autoscaled_worker_gets_its_first_pod_again() -> None:
    of = built(service(edgeWorker={"hpa": {"maxReplicas": 3}}))
    (plain,) = (b for b in of.objects if b["metadata"]["name"] == "helmet-deployment-edge")
    assert "replicas" not in plain["spec"]
    existing = {Ref.of(plain): {**plain, "spec": {**plain["spec"], "replicas": 0}}}
    (again,) = (b for b in of.holding({}, existing).objects if b["metadata"]["name"] == "helmet-deployment-edge")
    assert again["spec"]["replicas"] == 1
