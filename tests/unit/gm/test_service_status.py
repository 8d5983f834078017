"""How a service stands, from what its nodes report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halimede.messages import Histogram, NodeStatus, Output, Presence, Status, TaskInfo, WorkerReport
from halimede.names import Key
from halimede.stats.histogram import record
from services.gm.cluster.port import NodeReport
from services.gm.nodes import Node
from services.gm.service_status import MAX_SHOWN_NODES, Problem, Share, metrics, service_status

KEY = Key("jointinferenceservices", "default", "helmet")


def share(
    node: str,
    *roles: Any,
    phase: Any = "Running",
    online: bool = True,
    reported: bool = True,
    generation: int = 2,
    node_phase: Any = "",
    info: TaskInfo | None = None,
    worker: Any = None,
) -> Share:
    known = Node(node, online=online, epoch=1, presence=Presence(node=node, epoch=1, online=online))
    workers = [worker or WorkerReport(name=f"w-{role}", role=role, phase=phase) for role in roles]
    output = Output(task_info=info) if info else None
    told = NodeStatus(
        phase=node_phase or phase, uid="u", observed_generation=generation, workers=workers, output=output
    )
    return Share(node, frozenset(roles), known, NodeReport(KEY, node, told, edge="edge" in roles) if reported else None)


def status(*shares: Share, previous: Status | None = None, now: str = "t1", **more: Any) -> Status:
    given = {"former": [], "missing": [], "generation": 2, **more}
    return service_status(shares=shares, previous=previous, now=now, **given)


E, C = "edge", "cloud"
CRASH = WorkerReport(name="w", role="cloud", phase="Pending", restarts=4, reason="CrashLoop", message="exit 1")


@pytest.mark.parametrize(
    ("cloud", "phase"),
    [
        (share("c", C, reported=False), "Pending"),
        (share("c", C, phase="Pending"), "Pending"),
        (share("c", C, online=False, phase="Pending"), "Pending"),
        (Share("c", frozenset({C}), None, None), "Pending"),
        (share("c", C, phase="Failed"), "Degraded"),
        (share("c", C, worker=CRASH), "Degraded"),
        (share("c", C, online=False), "Degraded"),
    ],
)
def test_a_service_of_which_no_cloud_worker_has_started_is_pending_though_its_edge_answers(
    cloud: Share, phase: str
) -> None:
    missing = [] if cloud.state else [Problem("NodeNotFound", "c")]
    first = status(share("e", E), cloud, cloud=True, missing=missing)
    assert first.phase == phase
    ran = status(share("e", E), share("c", C), cloud=True, previous=first)
    assert ran.phase == "Running"
    again = status(share("e", E), cloud, cloud=True, missing=missing, previous=ran)
    assert again.phase == "Degraded", "it had started"


@pytest.mark.parametrize(
    ("shares", "missing", "phase", "reason"),
    [
        ([share("e", E), share("c", C)], [], "Running", "AllWorkersRun"),
        ([share("x", E, C)], [], "Running", "AllWorkersRun"),
        ([share("e", E), share("c", C, phase="Failed")], [], "Degraded", "WorkerFailed"),
        ([share("e", E), share("c", C, worker=CRASH)], [], "Degraded", "CrashLoop"),
        ([share("e", E), share("c", C, online=False)], [], "Degraded", "NodeOffline"),
        ([share("e", E), share("c", C, reported=False)], [], "Degraded", "WaitingForNode"),
        ([share("e", E), share("c", C, generation=1)], [], "Degraded", "Updating"),
        ([share("e", E, node_phase="Pending"), share("c", C)], [], "Degraded", "NodeNotReady"),
        ([share("e", E), share("c", C)], [Problem("ModelNotFound", "no m")], "Degraded", "ModelNotFound"),
        ([share("e1", E), share("e2", E, phase="Failed"), share("c", C)], [], "Degraded", "WorkerFailed"),
        ([share("e", E, phase="Pending"), share("c", C)], [], "Pending", "WorkerNotUp"),
        ([share("e", E, online=False), share("c", C)], [], "Degraded", "NodeOffline"),
        ([share("e", E, online=False, phase="Pending"), share("c", C)], [], "Pending", "NodeOffline"),
        ([share("e", E, online=False, reported=False), share("c", C)], [], "Pending", "NodeOffline"),
        ([share("e", E, online=False, generation=1), share("c", C)], [], "Pending", "NodeOffline"),
        ([share("e1", E, phase="Failed"), share("e2", E, online=False)], [], "Degraded", "WorkerFailed"),
        ([share("e", E, phase="Failed"), share("c", C)], [Problem("ModelNotFound", "")], "Pending", "ModelNotFound"),
        ([share("e", E, phase="Failed"), share("c", C)], [], "Failed", "WorkerFailed"),
        ([share("e", E, phase="Failed"), share("c", C, online=False)], [], "Failed", "WorkerFailed"),
        ([share("e1", E, phase="Failed"), share("e2", E, phase="Pending")], [], "Failed", "WorkerFailed"),
        ([], [Problem("NoNode", "")], "Pending", "NoNode"),
    ],
)
def test_the_phase_says_whether_samples_are_answered_and_the_reason_what_is_wrong(
    shares: list[Share], missing: list[Problem], phase: str, reason: str
) -> None:
    found = status(*shares, missing=missing)
    assert (found.phase, found.conditions[-1].reason) == (phase, reason)
    assert found.conditions[-1].type == phase


def test_a_worker_that_runs_and_gets_no_frames_degrades_its_service_and_says_why() -> None:
    message = "gate: Unreachable: nobody is there"
    worker = WorkerReport(name="w", role="edge", phase="Running", reason="SourceFailed", message=message)
    last = status(share("edge0", E, worker=worker)).conditions[-1]
    assert (last.type, last.reason) == ("Degraded", "SourceFailed")
    assert f"edge0: {message}" in last.message


def test_a_named_node_that_was_never_seen_counts_as_missing_only() -> None:
    never = Share("ghost", frozenset({E}), None, None)
    found = status(never, missing=[Problem("NodeNotFound", "ghost")])
    assert found.conditions[-1].message == "ghost"
    assert found.nodes[0].online is False


def test_exactly_one_condition_is_current_and_it_is_last_and_the_others_remember_when_they_ended() -> None:
    first = status(share("e", E, phase="Pending"), now="t1")
    second = status(share("e", E), previous=first, now="t2")
    third = status(share("e", E), previous=second, now="t3")
    fourth = status(share("e", E, phase="Pending"), previous=third, now="t4")
    assert [(c.type, c.status, c.last_transition_time) for c in third.conditions] == [
        ("Pending", "False", "t2"),
        ("Running", "True", "t2"),
    ]
    assert [(c.type, c.status, c.last_transition_time) for c in fourth.conditions] == [
        ("Running", "False", "t4"),
        ("Pending", "True", "t4"),
    ]
    assert third.conditions[-1].last_heartbeat_time == "t3"
    assert [s.start_time for s in (first, second, third, fourth)] == ["t1", "t1", "t1", "t1"], "when it was accepted"


def test_samples_are_counted_where_they_were_accepted() -> None:
    edge = TaskInfo(inference_number=100, edge_inference_number=80, cloud_inference_number=20, hard_example_number=25)
    cloud = TaskInfo(inference_number=20, served=20)
    gone = TaskInfo(inference_number=7, lost=1)
    left = [replace(share(f"old-{role}", role, info=info).report, live=False) for role, info in ((E, gone), (C, cloud))]
    found = status(share("e", E, info=edge), share("c", C, info=cloud), former=left)
    values = {m.key: m.value for m in found.metrics}
    assert (values["inferenceNumber"], values["cloudInferenceNumber"], values["lost"]) == ("107", "20", "1")
    counted = {n.node: n.task_info.inference_number for n in found.nodes if n.task_info}
    assert counted == {"e": 100, "c": 20, "old-edge": 7}


def test_metrics_weigh_ratios_and_merge_distributions() -> None:
    fast, slow = Histogram(), Histogram()
    for _ in range(99):
        record(fast, 2.0)
    record(slow, 500.0)
    many = TaskInfo(inference_number=300, upload_cloud_ratio=0.1, edge_latency=fast)
    few = TaskInfo(inference_number=100, upload_cloud_ratio=0.5, edge_latency=slow)
    values = {m.key: m.value for m in metrics([many, few])}
    assert values["uploadCloudRatio"] == "0.2"
    assert [float(values[f"edgeLatencyP{n}Ms"]) for n in (50, 99)] == pytest.approx([2, 2], rel=0.05)
    assert "offloadLatencyP50Ms" not in values
    worked = {m.key: m.value for m in metrics([], [TaskInfo(queue_latency=fast), TaskInfo(compute_latency=slow)])}
    latencies = [float(worked[key]) for key in ("queueLatencyP50Ms", "computeLatencyP99Ms")]
    assert latencies == pytest.approx([2, 500], rel=0.05)
    assert {m.key: m.value for m in metrics([])}["uploadCloudRatio"] == "0"


def test_a_status_has_the_latencies_of_all_cloud_workers_and_its_nodes_have_none() -> None:
    taken = Histogram(buckets={})
    record(taken, 3.0)
    cloud = TaskInfo(served=1, queue_latency=taken, compute_latency=taken, edge_latency=taken, offload_latency=taken)
    found = status(share("e", E, info=TaskInfo(queued=2)), share("c", C, info=cloud))
    values = {m.key: m.value for m in found.metrics}
    assert [float(values[f"{part}LatencyP50Ms"]) for part in ("queue", "compute")] == pytest.approx([3, 3], rel=0.05)
    assert values["queued"] == "2"
    assert "edgeLatencyP50Ms" not in values  # of edge workers alone
    (summary,) = [node.task_info for node in found.nodes if node.node == "c" and node.task_info]
    latencies = {summary.queue_latency, summary.compute_latency, summary.edge_latency, summary.offload_latency}
    assert latencies == {None}


def test_a_thousand_nodes_and_more_fit_and_those_in_trouble_are_shown() -> None:
    shares = [share(f"n{n}", E, phase="Pending" if n == 1500 else "Running") for n in range(2000)]
    found = status(*shares)
    assert (found.active, len(found.nodes), found.nodes[0].node) == (1999, MAX_SHOWN_NODES, "n1500")


def condition(found: Status, kind: str) -> tuple[str, str, str, str] | None:
    conditions = (c for c in found.conditions if c.type == kind)
    return next(((c.status, c.reason, c.message, c.last_transition_time) for c in conditions), None)


def test_an_edited_script_is_a_condition_with_both_digests_until_the_service_is_edited() -> None:
    def edge(digest: str) -> Share:
        edge_share = share("e0", E)
        edge_share.report.status.code["/x.py"] = digest
        return edge_share

    before = status(edge("a" * 64))
    assert condition(before, "Code") is None
    changed = status(edge("b" * 64), previous=before, now="t2")
    *_, message, began = condition(changed, "Code")
    assert message.startswith("node e0: /x.py: sha256 aaaaaaaaaaaa.. -> bbbbbbbbbbbb..: workers")
    assert (began, changed.conditions[-1].type) == ("t2", "Running")
    later = status(edge("b" * 64), previous=changed, now="t3")
    assert condition(later, "Code") == condition(changed, "Code")
    assert condition(status(edge("b" * 64), previous=later, now="t4", generation=8), "Code") is None


def test_a_cloud_that_takes_too_little_is_a_condition_beside_the_phase_with_the_figures_of_all_edges() -> None:
    def edges(*, overloaded: int, online: bool = True) -> list[Share]:
        infos = [
            TaskInfo(overloaded=overloaded, hard_per_s=hard * overloaded, taken_per_s=taken * overloaded)
            for hard, taken in ((5.5, 0.5), (3.5, 0.3))
        ]
        return [share(f"e{i}", E, info=info, online=online) for i, info in enumerate(infos)]

    before = status(*edges(overloaded=0))
    assert (condition(before, "Overload"), before.overload) == (None, "")
    during = status(*edges(overloaded=1), previous=before, now="t2")
    later = status(*edges(overloaded=1), previous=during, now="t3")
    for found in (during, later):
        assert condition(found, "Overload") == ("True", "CloudTooSlow", "takes 0.8 samples/s, 9/s are hard", "t2")
    assert during.overload == "CloudTooSlow: takes 0.8 samples/s, 9/s are hard"
    assert (during.phase, during.conditions[-1].type) == ("Running", "Running")
    after = status(*edges(overloaded=0), previous=later, now="t4")
    assert condition(after, "Overload") == ("False", "CloudFastEnough", "it takes what is hard", "t4")
    assert after.overload == ""
    assert status(*edges(overloaded=1, online=False)).overload == "", "what a node said before it went offline is over"
