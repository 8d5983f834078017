"""Multi-edge services in the commands' words: lists, descriptions, their workers' logs, and the live view."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from halimede.api import parse
from halimede.cli import tables
from halimede.cli.commands.logs import workers
from halimede.cli.commands.results import HEADER, line
from halimede.cli.commands.top import TopState, screen
from halimede.messages import Box, Load, NodeInfo, Peer, Prediction, Result
from tests.integration.gm_world import multi_edge
from tests.unit.cli.test_describe import rendered
from tests.unit.cli.test_top import document


def crossing() -> dict[str, Any]:
    body = multi_edge(north="edge0", south="edge1", cloud="cloud0")
    body["spec"]["edgeWorkers"][0] |= {"detector": {"name": "finder"}, "source": {"url": "rtsp://u:secret@cam/1"}}
    body["spec"]["application"]["parameters"] = [{"key": "ttl", "value": "600"}]
    body["metadata"] |= {"namespace": "default", "uid": "u"}
    info = {"inferenceNumber": 7, "startTime": "", "currentTime": ""}
    body["status"] = {
        "phase": "Running", "active": 3, "metrics": [{"key": "inferenceNumber", "value": "7"}],
        "workers": [
            {"name": "north", "role": "edge", "node": "edge0", "phase": "Running", "output": {"taskInfo": info}},
            {"name": "south", "role": "edge", "reason": "NodeOffline", "message": "node edge1 is offline"},
        ],
    }  # fmt: skip
    return body


def test_a_list_shows_the_application_and_what_was_answered() -> None:
    columns = tables.columns_of("multiedgeinferenceservices", wide=False, all_namespaces=False)
    row = {column.title: column.cell(crossing()) for column in columns}
    assert row.items() >= {"NAME": "crossing", "APPLICATION": "balance", "ACTIVE": "3", "SAMPLES": "7"}.items()


def test_a_description_says_it_in_words_and_names_no_secret() -> None:
    body = crossing()
    parse(body)
    said = rendered("mei", body)
    for part in (
        "balance(ttl=600), installed", "north: model small, detector finder, on node edge0", "joint on node cloud0",
        "south: model small, on node edge1 frames from camera south", "north edge0 Running 7",
        "NodeOffline: node edge1 is offline",
    ):  # fmt: skip
        assert part in said
    assert "secret" not in said
    del body["spec"]["cloudWorker"]
    assert "joint at the edge worker that has run longest" in rendered("mei", body)


def test_logs_are_looked_for_where_the_workers_are() -> None:
    nodes = [NodeInfo(name=name, online=True) for name in ("cloud0", "edge0", "edge1")]
    assert [(log.node, log.worker, log.role) for log in workers(crossing(), nodes)] == [
        ("edge0", "crossing.north.edge0", "edge"),
        ("edge1", "crossing.south.edge1", "edge"),
        ("cloud0", "crossing.joint.cloud0", "cloud"),
    ]


def test_two_services_of_one_name_are_two_rows_and_peers_are_shown() -> None:
    state = TopState()
    state.take(0.0, document(1), "jointinferenceservices")
    state.take(0.0, document(2, uid="u2"), "multiedgeinferenceservices")
    state.peers["default", "crossing", "crossing.north.edge0"] = Peer(rank=1, life="a", share=Load(credits=3))
    state.peers["default", "crossing", "crossing.joint.cloud0"] = Peer(rank=2, life="b", join=Load(credits=9))
    view = state.view(1.0, "name")
    assert sorted(row["frames"] for row in view["services"]) == [1, 2]
    peers = [(row["worker"], row["credits"], row["joint"]) for row in view["peers"]]
    assert peers == [("crossing.joint.cloud0", 0, True), ("crossing.north.edge0", 3, False)]
    out = Console(file=io.StringIO(), width=120)
    out.print(screen({"broker": {"address": "b", "connected": True}, **view}, 120, rows=0))
    assert "crossing.north.edge0" in out.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("by", ["peer", "joint"])
def test_a_result_says_who_gave_it(by: Any) -> None:
    result = Result(
        id="0" * 32, service="crossing", camera="north", sequence=1, by=by, prediction=Prediction(), worker="w",
        node="edge0",
    )  # fmt: skip
    assert by in line(result).plain


def test_the_columns_of_results_stay_below_their_titles_whatever_the_answer_is() -> None:
    palms = [Box(0, 0, 9, 9, score, "palm") for score in (0.661, 0.718)]
    answers = [
        Result(id="0" * 32, service="s", worker="w", by="edge", prediction=prediction, label=prediction.label)
        for prediction in (Prediction(boxes=palms), Prediction(boxes=palms * 9), Prediction(label="漢" * 99))
    ]
    two, many, wide = (line(answer) for answer in answers)
    assert "2 boxes: palm 0.72, palm 0.66 " in two.plain
    ends = {cell_len(row.plain.partition(" edge ")[0]) for row in (two, many, wide)}
    assert ends == {HEADER.index("BY") - 1}
    assert [row.plain.partition(" edge ")[0].split()[-1] for row in (two, many, wide)] == ["0.718", "0.718", "-"]
