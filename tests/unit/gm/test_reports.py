"""What is kept of reports."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.bus.ordering import SequenceNumber
from halimede.messages import NodeStatus, Output, TaskInfo, WorkerReport
from halimede.names import Key
from services.gm.reports import NodeReports

KEY = Key("jointinferenceservices", "default", "helmet")
EDGE = [WorkerReport(name="w", role="edge", phase="Running")]


def told(count: int | None = None, *, uid: str = "u", generation: int = 1, workers: Any = EDGE) -> NodeStatus:
    output = None if count is None else Output(task_info=TaskInfo(inference_number=count))
    return NodeStatus(phase="Running", uid=uid, observed_generation=generation, output=output, workers=workers)


def count(reports: NodeReports) -> int | None:
    output = reports.of(KEY)["edge0"].status.output
    return output.task_info.inference_number if output and output.task_info else None


@pytest.fixture
def reports() -> NodeReports:
    return NodeReports()


def test_counts_stay_when_the_node_has_nothing_to_say_or_has_forgotten(reports: NodeReports) -> None:
    reports.take(KEY, "edge0", told(5))
    reports.take(KEY, "edge0", told(None, workers=[]))
    assert (count(reports), reports.of(KEY)["edge0"].edge) == (5, True)
    reports.mark_cleared(KEY, "edge0")
    assert (count(reports), reports.of(KEY)["edge0"].live) == (5, False)


def test_another_uid_starts_at_nothing(reports: NodeReports) -> None:
    reports.take(KEY, "edge0", told(5))
    reports.take(KEY, "edge0", told(None, uid="v", workers=[]))
    assert (count(reports), reports.of(KEY)["edge0"].edge) == (None, False)


def test_a_report_that_was_overtaken_is_ignored(reports: NodeReports) -> None:
    assert reports.take(KEY, "edge0", told(5, generation=2))
    assert not reports.take(KEY, "edge0", told(4, generation=1))
    assert count(reports) == 5
    reports.mark_cleared(KEY, "edge0")
    assert reports.take(KEY, "edge0", told(4, generation=1)), "it may come back with what it holds"


def test_of_two_reports_on_one_generation_the_later_one_counts_whatever_comes_first(reports: NodeReports) -> None:
    assert reports.take(KEY, "n", told(), SequenceNumber(7, 4))
    assert not reports.take(KEY, "n", told(), SequenceNumber(7, 3))
    assert not reports.take(KEY, "n", told(), SequenceNumber(6, 9)), "of an earlier connection"
    assert reports.take(KEY, "n", told(), SequenceNumber(7, 4)), "the same again does no harm"
    reports.begin_epoch("n", 2)
    assert reports.take(KEY, "n", told(), SequenceNumber(2, 1)), "the node has a new store and counts anew"


def test_changes_are_handed_out_once_and_again_if_they_could_not_be_kept(reports: NodeReports) -> None:
    reports.take(KEY, "edge0", told(1))
    reports.take(KEY, "edge0", told(2))
    first = reports.take_dirty()
    assert [r.status for r in first] == [told(2)]
    assert reports.take_dirty() == ()
    reports.take(KEY, "edge0", told(3))
    reports.put_back(first)
    assert [r.status for r in reports.take_dirty()] == [told(3)]
    reports.take(KEY, "edge0", told(4))
    reports.drop(KEY)
    assert (reports.take_dirty(), reports.of(KEY)) == ((), {})


def test_only_what_still_exists_is_restored(reports: NodeReports) -> None:
    reports.take(KEY, "edge0", told(1))
    kept = reports.take_dirty()
    again = NodeReports()
    again.restore(kept, {KEY: "other"})
    assert again.of(KEY) == {}
    again.restore(kept, {KEY: "u"})
    assert count(again) == 1


def test_what_a_sync_does_not_list_was_cleared_unheard(reports: NodeReports) -> None:
    reports.take(KEY, "edge0", told(5))
    assert reports.uncleared_keys("edge0", {KEY: "u"}) == []
    assert reports.uncleared_keys("edge0", {KEY: "another life"}) == [KEY]
    assert (reports.uncleared_keys("edge0", {}), reports.uncleared_keys("edge1", {})) == ([KEY], [])
    reports.mark_cleared(KEY, "edge0")
    assert reports.uncleared_keys("edge0", {}) == []
