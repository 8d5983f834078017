"""`make demo` shows what it promises; `make demo-loop` as well, on a stream that is shorter than its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from examples.digits import report
from examples.learning_loop import report as loop_report
from examples.learning_loop.demo import STEP_S
from tests.e2e.demos import run_demo
from tests.html_page import HtmlPage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("options", [[], ["--tls"]], ids=["passwords", "tls"])
async def test_the_demo_answers_every_sample_and_beats_the_edge_at_a_fifth_of_the_uploads(
    tmp_path: Path, options: list[str]
) -> None:
    demo = await run_demo(tmp_path, report.table, "halimede", "demo", *options)
    assert demo.code == 0, demo.output
    found = demo.report
    assert found["samples"] == found["answered"] >= 890
    assert (found["lost"], found["skipped"], found["degraded"]) == (0, 0, 0)
    assert abs(found["edge_only_accuracy"] - 0.925) < 0.01
    assert abs(found["cloud_only_accuracy"] - 0.988) < 0.01
    assert found["joint_accuracy"] >= 0.975
    assert found["upload_ratio"] <= 0.20
    metrics = {m["key"]: m["value"] for m in found["status"]["status"]["metrics"]}
    assert int(metrics["inferenceNumber"]) == found["samples"]
    assert int(metrics["cloudInferenceNumber"]) == found["answered_by"]["cloud"]
    _check_page(found, demo.page)


def _check_page(found: dict[str, Any], page: HtmlPage) -> None:
    """The page has the figures of report.json, and what travelled adds up."""
    assert [tile for tile in page.tiles if not tile[-1]] == []
    assert f"{found['joint_accuracy']:.4f}" in {value for value, *_ in page.tiles}
    sums: Counter[str] = Counter()
    for link in found["links"]:
        sums[f"{link['what']}: messages"] += link["messages"]
        sums[f"{link['what']}: bytes"] += link["bytes"]
    assert (sums["frames: messages"], sums["frames: bytes"]) == (found["samples"], found["all_bytes"])
    uploads = found["answered_by"]["cloud"], found["uploaded_bytes"]
    assert (sums["hard samples: messages"], sums["hard samples: bytes"]) == uploads
    assert sums["results: messages"] == found["answered"]
    for by in ("edge", "cloud"):
        assert sum(found["over_time"][by]) == found["answered_by"][by]
    assert len(found["hardest"]) == report.HARDEST


@pytest.mark.timeout(700)
async def test_the_demo_of_a_loop_learns_the_drift_and_refuses_a_bad_candidate(tmp_path: Path) -> None:
    command = ("examples.learning_loop.demo", "--seconds", "10")
    demo = await run_demo(tmp_path, loop_report.table, *command, silence_s=STEP_S)
    # other tests share the machine, and its time: how long answers take there proves nothing
    assert [line for line in loop_report.missed(demo.report) if "p99" not in line] == []
    assert demo.report["refused_reasons"] == ["CandidateWorse"]
    assert demo.report["frames_while_training"] > 0
