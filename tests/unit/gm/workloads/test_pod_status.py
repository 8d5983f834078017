"""What pods say: statuses as kubelet and scheduler write them, in the words that people know."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from services.gm.cluster.port import Ref
from services.gm.workloads.pod_status import PodView, nodes_by_worker, pod_views
from tests.unit.gm.workloads.builds import built
from tests.unit.gm.workloads.world import container, service, template

SIDECAR = {"name": "agent", "image": "x"}  # its status comes first: the kubelet sorts by name
OBJECTS = {
    Ref.of(body): body
    for body in built(service(edge={"spec": {**template()["spec"], "containers": [container(), SIDECAR]}})).objects
}
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
AGENT = {"name": "agent", "state": RUNNING, "restartCount": 9}


def pod(status: dict[str, Any] | None = None, *, role: str = "edge", name: str = "p", **meta: Any) -> dict[str, Any]:
    body = next(b for b in OBJECTS.values() if b["metadata"]["name"] == f"helmet-deployment-{role}")
    labels = copy.deepcopy(body["spec"]["template"]["metadata"]["labels"])
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels, **meta},
        "spec": {"nodeName": "edge0"},
        "status": {"phase": "Running", **(status or {})},
    }


def worker(state: dict[str, Any], last: dict[str, Any] | None = None, restarts: int = 0, **more: Any) -> dict[str, Any]:
    ended = {"terminated": last} if last else {}
    said = {"name": "worker", "state": state, "restartCount": restarts, "lastState": ended}
    return {"containerStatuses": [AGENT, said], **more}


def fetching(state: dict[str, Any], last: dict[str, Any] | None = None) -> dict[str, Any]:
    said = {"name": "fetch", "state": state, "lastState": {"terminated": last} if last else {}}
    waits = {"name": "worker", "state": {"waiting": {"reason": "PodInitializing"}}}
    return {"phase": "Pending", "initContainerStatuses": [said], "containerStatuses": [waits]}


def seen(status: dict[str, Any], **more: Any) -> PodView:
    (view,) = pod_views(OBJECTS, [pod(status)], **more)
    return view


def test_a_worker_that_runs() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    view = seen(worker(RUNNING, restarts=2, conditions=ready))
    assert view == PodView("edge", "p", "edge0", "Running", ready=True, restarts=2)
    assert seen(worker(RUNNING)).ready is False


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "x"'),
        ("ErrImagePull", "not found"),
        ("InvalidImageName", "couldn't parse image name"),
        ("CreateContainerConfigError", 'secret "x" not found'),
        ("CreateContainerError", "no such device"),
    ],
)
def test_a_worker_that_cannot_start(reason: str, message: str) -> None:
    view = seen(worker({"waiting": {"reason": reason, "message": message}}, phase="Pending"))
    assert (view.phase, view.reason, view.message) == ("Failed", reason, f"container worker: {message}")


def test_a_worker_that_keeps_ending() -> None:
    loop = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}}
    view = seen(worker(loop, {"reason": "Error", "exitCode": 2, "message": "MODEL_URL: '' is not accepted\n"}, 5))
    assert (view.phase, view.reason, view.restarts) == ("Failed", "CrashLoopBackOff", 5)
    assert view.message == "container worker: MODEL_URL: '' is not accepted"
    view = seen(worker(loop, {"reason": "OOMKilled", "exitCode": 137}, 5))
    assert (view.phase, view.reason) == ("Failed", "OOMKilled")
    assert "exceeded its memory limit" in view.message
    view = seen(worker({"terminated": {"reason": "Error", "exitCode": 3}}))
    assert (view.phase, view.reason, view.message) == ("Failed", "Error", "container worker: it ended with exit code 3")


def test_a_worker_that_runs_again_is_not_what_it_was() -> None:
    view = seen(worker(RUNNING, {"reason": "OOMKilled", "exitCode": 137}, 1))
    assert (view.phase, view.reason, view.restarts) == ("Running", "", 1)


def test_a_model_that_cannot_be_fetched_says_why_while_the_fetcher_waits() -> None:
    why = {"reason": "Error", "exitCode": 1, "message": "https://me:word@h/x?token=1 answered with HTTP status 404\n"}
    for state, last in (({"waiting": {"reason": "CrashLoopBackOff"}}, why), ({"terminated": why}, None)):
        view = seen(fetching(state, last))
        assert (view.reason, view.message) == ("FetchFailed", "https://***@h/x?*** answered with HTTP status 404")
        assert view.phase == "Failed"
    pull = {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}
    assert seen(fetching(pull)).reason == "ImagePullBackOff"


@pytest.mark.parametrize("state", [RUNNING, {"terminated": {"exitCode": 0, "reason": "Completed"}}, CREATING, {}])
def test_a_pod_that_is_being_made_is_pending(state: dict[str, Any]) -> None:
    view = seen(fetching(state))
    assert (view.phase, view.reason) == ("Pending", "PodInitializing")
    assert seen({"phase": "Pending"}).reason == "ContainerCreating"


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "3 Insufficient cpu."}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Pending", "conditions": [UNSCHEDULABLE]}, ("Pending", "Unschedulable", "3 Insufficient cpu.")),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, ("Failed", "Evicted", "low on memory")),
    ],
    ids=["without a node", "evicted"],
)
def test_a_pod_without_a_place_says_why(status: dict[str, Any], expected: tuple[str, str, str]) -> None:
    view = seen(status)
    assert (view.phase, view.reason, view.message) == expected


def test_a_pod_that_ended_for_good_counts_until_another_is_in_its_place() -> None:
    def evicted(name: str, born: str) -> dict[str, Any]:
        return pod({"phase": "Failed", "reason": "Evicted"}, name=name, creationTimestamp=born)

    old, new = evicted("b", "2026-01-01T00:00:00Z"), evicted("a", "2026-01-02T00:00:00Z")
    cloud = pod(role="cloud", name="d")
    for pods, names in (
        ([new, old], ["a"]),
        ([old, new, pod(name="c"), cloud], ["c", "d"]),
        ([old, cloud], ["b", "d"]),
    ):
        assert [view.name for view in pod_views(OBJECTS, pods)] == names


def test_a_pod_that_failed_is_shown_until_another_has_run() -> None:
    """A node that refuses each pod leaves one that failed, and one that is not there yet, at every moment."""
    refused = pod({"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected"}, name="a")
    coming = pod({"phase": "Pending"}, name="b")
    reasons = [(view.name, view.reason) for view in pod_views(OBJECTS, [refused, coming])]
    assert reasons == [("a", "OutOfcpu"), ("b", "ContainerCreating")]
    several = pod_views(OBJECTS, [refused, {**refused, "metadata": {**refused["metadata"], "name": "c"}}, coming])
    assert "(2 pods have failed)" in several[-1].message or "(2 pods have failed)" in several[0].message
    crashed = pod(worker({"waiting": {"reason": "CrashLoopBackOff"}}, {"exitCode": 1}, 1, phase="Running"), name="b")
    assert [view.name for view in pod_views(OBJECTS, [refused, crashed])] == ["b"]
    refused["metadata"]["labels"]["halimede.io/template"] = "earlier"
    assert [view.name for view in pod_views(OBJECTS, [refused, coming])] == ["b"]


def test_a_sidecar_in_trouble_is_told_and_the_worker_runs() -> None:
    bad = {"name": "agent", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}
    view = seen({"containerStatuses": [bad, {"name": "worker", "state": RUNNING}]})
    assert (view.phase, view.reason, view.message) == ("Running", "ImagePullBackOff", "container agent: no")


def test_which_pods_run_the_present_template() -> None:
    old = pod(worker(RUNNING), name="old")
    old["metadata"]["labels"]["halimede.io/template"] = "earlier"
    views = pod_views(OBJECTS, [old, pod(worker(RUNNING), name="new")])
    assert [(view.name, view.current) for view in views] == [("new", True), ("old", False)]
    assert not pod_views({}, [pod(worker(RUNNING))])[0].current


def test_pods_on_their_way_out_and_those_of_others_do_not_count() -> None:
    leaving = pod(worker(RUNNING), deletionTimestamp="2026-01-01T00:00:00Z")
    foreign = pod(worker(RUNNING))
    foreign["metadata"]["labels"] = {}
    assert pod_views(OBJECTS, [leaving, foreign]) == ()


def test_a_pod_on_its_way_out_is_still_somewhere() -> None:
    leaving = pod(worker(RUNNING), name="old", deletionTimestamp="2026-01-01T00:00:00Z")
    elsewhere = pod(worker(RUNNING), name="new")
    elsewhere["spec"]["nodeName"] = "edge1"
    nowhere = pod({"phase": "Pending"}, role="cloud")
    nowhere["spec"] = {}
    assert nodes_by_worker([leaving, elsewhere, nowhere]) == {"edge": {"edge0", "edge1"}}
    assert nodes_by_worker([elsewhere]) == {"edge": {"edge1"}}


def test_they_come_by_role_and_name() -> None:
    pods = [pod(role="cloud", name="a"), pod(name="c"), pod(name="b")]
    order = [(view.role, view.name) for view in pod_views(OBJECTS, pods)]
    assert order == [("edge", "b"), ("edge", "c"), ("cloud", "a")]


def test_messages_are_bounded_and_keep_their_end() -> None:
    view = seen({"phase": "Failed", "reason": "Evicted", "message": "x" * 5000 + " the end"})
    assert len(view.message) < 1100
    assert view.message.endswith("the end")


def test_pods_that_cannot_be_made_are_told_by_their_deployment() -> None:
    said = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: small"}
    failing = {ref: {**body, "status": {"conditions": [said]}} for ref, body in OBJECTS.items()}
    views = pod_views(failing, [pod(worker(RUNNING), name="old")])
    assert [(view.role, view.name, view.reason) for view in views] == [
        ("edge", "helmet-deployment-edge", "FailedCreate"),
        ("edge", "old", ""),
        ("cloud", "helmet-deployment-cloud", "FailedCreate"),
    ]
    assert views[0].message == "exceeded quota: small"
    over = {"conditions": [{**said, "status": "False"}]}
    assert pod_views({ref: {**body, "status": over} for ref, body in OBJECTS.items()}, []) == ()
