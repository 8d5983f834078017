"""`make demo` shows what it promises."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.e2e.running import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("options", [[], ["--tls"]], ids=["passwords", "tls"])
async def test_the_demo_answers_every_sample_and_beats_the_edge_at_a_fifth_of_the_uploads(
    tmp_path: Path, options: list[str]
) -> None:
    command = [sys.executable, "-m", "halimede", "demo", "--out", str(tmp_path), *options]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await asyncio.wait_for(process.communicate(), 200))[0].decode()
    assert process.returncode == 0, output
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["samples"] == found["answered"] >= 890
    assert (found["lost"], found["skipped"], found["degraded"]) == (0, 0, 0)
    assert abs(found["edge_only_accuracy"] - 0.925) < 0.01
    assert abs(found["cloud_only_accuracy"] - 0.988) < 0.01
    assert found["joint_accuracy"] >= 0.975
    assert found["upload_ratio"] <= 0.20
    metrics = {m["key"]: m["value"] for m in found["status"]["status"]["metrics"]}
    assert int(metrics["inferenceNumber"]) == found["samples"]
    assert int(metrics["cloudInferenceNumber"]) == found["answered_by"]["cloud"]
    assert "<script" not in (tmp_path / "report.html").read_text()
