"""What pods make of a service's phase: the same words as for nodes that start workers themselves."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.messages import Status
from services.gm.status import service_status
from services.gm.tally import Problem
from services.gm.workloads.pods import PodView

WANTED = {"edge": 1, "cloud": 1}


def pod(role: Any = "edge", phase: Any = "Running", **more: Any) -> PodView:
    return PodView(role=role, name=f"helmet-{role}", node="n0", phase=phase, ready=phase == "Running", **more)


def status(*views: PodView, missing: tuple[Problem, ...] = (), wanted: Any = WANTED) -> Status:
    return service_status(
        generation=3, shares=[], left=[], missing=missing, previous=None, now="now", pods=views, wanted=wanted
    )


def said(found: Status) -> tuple[str, str]:
    return found.phase, found.conditions[-1].reason


def test_all_pods_up_is_running() -> None:
    found = status(pod(), pod("cloud"))
    assert (said(found), found.active, found.failed, found.observed_generation) == (
        ("Running", "AllWorkersRun"),
        2,
        0,
        3,
    )


def test_without_a_pod_it_is_pending() -> None:
    assert said(status()) == ("Pending", "WorkerNotUp")


def test_a_pod_that_waits_says_why() -> None:
    waiting = pod(phase="Pending", reason="Unschedulable", message="0/3 nodes are available")
    found = status(waiting, pod("cloud"))
    assert said(found) == ("Pending", "Unschedulable")
    assert "0/3 nodes" in found.conditions[-1].message
    assert "helmet-edge on node n0" in found.conditions[-1].message


def test_without_the_cloud_samples_are_answered_all_the_same() -> None:
    found = status(pod(), pod("cloud", "Failed", reason="CrashLoopBackOff"))
    assert (said(found), found.active, found.failed) == (("Degraded", "CrashLoopBackOff"), 1, 1)


def test_a_failed_edge_is_a_failed_service() -> None:
    assert said(status(pod(phase="Failed", reason="OOMKilled"), pod("cloud"))) == ("Failed", "OOMKilled")


def test_old_pods_serve_while_the_new_ones_come() -> None:
    assert said(status(pod(current=False), pod("cloud"))) == ("Degraded", "Updating")
    found = status(pod(current=False), pod(phase="Pending", reason="ImagePullBackOff"), pod("cloud"))
    assert said(found) == ("Degraded", "ImagePullBackOff")


def test_a_pod_that_runs_and_is_not_ready_does_not_count() -> None:
    starting = PodView(role="edge", name="p", node="n0", phase="Running", ready=False)
    found = status(starting, pod("cloud"))
    assert (said(found), found.active) == (("Pending", "WorkerNotUp"), 1)


def test_fewer_than_wanted_is_not_all() -> None:
    found = status(pod(), pod(phase="Pending", reason="Unschedulable"), pod("cloud"), wanted={"edge": 2, "cloud": 1})
    assert said(found) == ("Degraded", "Unschedulable")


@pytest.mark.parametrize(("views", "phase"), [((), "Pending"), ((pod(),), "Degraded")])
def test_what_is_missing_comes_first(views: tuple[PodView, ...], phase: str) -> None:
    found = status(*views, missing=(Problem("ModelNotFound", "apply it"),), wanted={"edge": 1})
    assert said(found) == (phase, "ModelNotFound")
