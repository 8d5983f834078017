"""`make demo-loop` shows what it promises, on a stream that is shorter than its own."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from examples.learning_loop import report
from examples.learning_loop.demo import STEP_S
from tests.e2e.running import ROOT
from tests.html_page import HtmlPage
from tests.waiting import output_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]


async def test_the_service_learns_the_drift_and_refuses_a_bad_candidate(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.learning_loop.demo", "--out", str(tmp_path), "--seconds", "10"]
    # in a session of its own, as in a terminal of its own: trainers run when no other process of their session does
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True
    )
    output = await output_of(process, STEP_S)
    assert (tmp_path / "report.json").exists(), output
    found = json.loads((tmp_path / "report.json").read_text())
    # other tests share the machine, and its time: how long answers take there proves nothing
    assert [line for line in report.missed(found) if "p99" not in line] == []
    assert found["refused_reasons"] == ["CandidateWorse"]
    assert found["frames_while_training"] > 0
    page = HtmlPage((tmp_path / "report.html").read_text())
    assert (page.mistakes, page.external) == ([], [])
    assert all(list(line) in page.rows for line in report.table(found))
