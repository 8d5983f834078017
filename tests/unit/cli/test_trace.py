"""The cloud's steps stand inside the edge's request, whatever the clocks say; what they say is told apart."""

from __future__ import annotations

from typing import Any

from halimede.cli.commands.trace import Waterfall, timelines
from halimede.messages import Span, TraceReply

MS = 1_000_000
NOON = 1_795_262_400_000 * MS


def span(name: str, start_ms: float, duration_ms: float, **attributes: Any) -> Span:
    return Span(
        name=name, start_ns=NOON + int(start_ms * MS), duration_ns=int(duration_ms * MS), attributes=attributes
    )  # fmt: skip


def edge(**changes: Any) -> TraceReply:
    steps = [
        span("receive", 0, 1),
        span("model", 1, 2),
        span("offload.request", 3, 2, to="c0", answered=False),
        span("offload.request", 6, 10, to="c1", answered=True),
        span("offload", 3, 14),
        span("result", 17, 1),
    ]
    return TraceReply(**{"worker": "e", "role": "edge", "service": "s", "node": "edge0", "spans": steps, **changes})


def cloud(ahead_ms: float, worker: str = "c1", **changes: Any) -> TraceReply:
    steps = [span("receive", ahead_ms, 1), span("compute", ahead_ms + 1, 3), span("reply", ahead_ms + 4, 20)]
    return TraceReply(
        **{"worker": worker, "role": "cloud", "service": "s", "node": "cloud0", "spans": steps, **changes}
    )  # fmt: skip


def at(timeline: Waterfall, worker: str, step: str) -> float:
    (found,) = [row.start_ms for row in timeline.rows if (row.worker, row.step) == (worker, step)]
    return round(found, 3)


def test_the_cloud_stands_in_the_middle_of_the_request_that_it_answered() -> None:
    for ahead in (0.0, 9.0, -86_400_000.0, 86_400_000.0):
        (timeline,) = timelines([cloud(ahead), edge()])
        # 10 ms for the request, 4 of them in the cloud: 3 on the way there and 3 back
        assert at(timeline, "c1", "receive") == 9
        assert at(timeline, "c1", "compute") == 10
        assert [row.step for row in timeline.rows][:4] == ["receive", "model", "offload", "offload.request"]


def test_clocks_that_disagree_are_said_to() -> None:
    (agree,) = timelines([edge(), cloud(11.0)])
    assert not [remark for remark in agree.remarks if "the clock of" in remark]
    for ahead_ms, side in ((1009.0, "ahead of"), (-991.0, "behind")):
        (timeline,) = timelines([edge(), cloud(ahead_ms)])
        assert f"the clock of cloud0 is about 1000 ms {side} edge0's" in timeline.remarks


def test_an_edge_alone_needs_no_remarks() -> None:
    (timeline,) = timelines([edge()])
    assert (timeline.remarks, timeline.length_ms) == ([], 18)


def test_a_cloud_that_nobody_asked_is_left_out_and_one_without_an_edge_has_its_own_clock() -> None:
    (timeline,) = timelines([edge(), cloud(0.0, "c7")])
    assert timeline.remarks == ["e has no request to c7: steps left out"]
    (alone,) = timelines([cloud(5.0)])
    assert at(alone, "c1", "receive") == 0
    assert alone.remarks == ["no edge worker has it: times of c1's clock"]


def test_a_tiers_own_request_is_where_the_next_tiers_steps_stand() -> None:
    steps = [span("receive", 500, 1), span("compute", 501, 1), span("offload.request", 502, 6, to="c7", answered=True)]
    gate = TraceReply(worker="c1", role="cloud", service="s", node="gate0", spans=[*steps, span("reply", 508, 5)])
    (timeline,) = timelines([cloud(-70.0, "c7"), gate, edge()])
    # 10 ms for the request, 8 of them at the gate, which asked from its third millisecond on for 6, 4 in the cloud
    assert at(timeline, "c1", "receive") == 7
    assert at(timeline, "c7", "receive") == 10
    assert not [remark for remark in timeline.remarks if "left out" in remark]


def test_each_service_that_had_the_frame_has_its_own_timeline() -> None:
    found = timelines([edge(), edge(worker="e2", service="t"), cloud(0.0), cloud(0.0, service="t")])
    assert [{row.worker for row in timeline.rows} for timeline in found] == [{"e", "c1"}, {"e2", "c1"}]


def test_replies_without_steps_are_no_timelines() -> None:
    assert timelines([edge(spans=[]), cloud(0.0, spans=[])]) == []
