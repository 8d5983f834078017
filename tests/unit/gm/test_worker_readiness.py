"""How GM counts what nodes say of a service's workers."""

from __future__ import annotations

from halimede.messages import NodeStatus, WorkerReport
from halimede.names import Key
from services.gm.cluster.port import NodeReport
from services.gm.nodes import Node
from services.gm.service_status import ReadinessTally, Share, count_share, judge

KEY = Key("jointinferenceservices", "default", "helmet")


def share(worker: WorkerReport) -> Share:
    told = NodeStatus(phase="Running", status="running", uid="u1", observed_generation=1, workers=[worker])
    return Share("edge0", frozenset({"edge"}), Node("edge0", online=True, epoch=1), NodeReport(KEY, "edge0", told))


def test_a_worker_that_runs_and_gets_no_frames_degrades_its_service_and_says_why() -> None:
    tally = ReadinessTally()
    worker = WorkerReport(
        name="w", role="edge", phase="Running", reason="SourceFailed", message="gate: Unreachable: nobody is there"
    )
    count_share(share(worker), 1, tally)
    verdict = judge(tally, [])
    assert (verdict.phase, verdict.reason) == ("Degraded", "SourceFailed")
    assert "edge0: gate: Unreachable" in verdict.message


def test_a_worker_that_runs_is_enough() -> None:
    tally = ReadinessTally()
    count_share(share(WorkerReport(name="w", role="edge", phase="Running")), 1, tally)
    assert judge(tally, []).phase == "Running"
