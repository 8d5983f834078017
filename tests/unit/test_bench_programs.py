"""Measurements run seldom: a rename must not break one unseen."""

from __future__ import annotations

import importlib

import pytest

from bench import camera_report, control, offload_report, results
from bench.__main__ import programs
from bench.soak_traffic import RUN, Traffic
from examples.digits import data
from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.messages import Prediction, Result


@pytest.mark.parametrize(("name", "text"), list(programs()))
def test_a_program_can_be_imported_and_has_a_line_in_the_list(name: str, text: str) -> None:
    module = importlib.import_module(f"bench.{name}")
    assert callable(module.main)
    assert text.endswith(".")


@pytest.mark.parametrize("module", [camera_report, control, offload_report])
def test_the_document_has_a_place_for_the_tables(module) -> None:
    page = results.filled(results.PERFORMANCE.read_text(), "new", module.BEGIN, module.END)
    assert f"{module.BEGIN}\nnew\n{module.END}" in page
    with pytest.raises(SystemExit, match="the page has no"):
        results.filled("", "new", module.BEGIN, module.END)


async def test_the_soak_counts_each_frame_once() -> None:
    traffic = Traffic(3, 1, [data.to_png(data.load().test_x[0])])
    address = topics.RESULT.at(ns="default", service="digits")
    answers = [(0, "7", "cloud"), (3, "2", "edge"), (0, "7", "cloud"), (0, "1", "cloud"), (0, "1", "edge")]
    for number, label, by in answers:
        id_ = (traffic._run + number.to_bytes(RUN)).hex()
        body = Result(id=id_, service="digits", worker="w", by=by, prediction=Prediction(label=label), label=label)
        await traffic.hear(Delivery(address, {}, body, Packet(address.text, b"")))
    assert (traffic.seen, traffic.seen_large) == (2, 1)
    assert (traffic.repeated, traffic.contradicted, traffic.revised) == (3, 1, 1)
