"""`make demo-faces` and `make demo-text` show what they promise, on fewer frames than their own.

Skipped where the package index cannot be reached: models and pictures of others are not part of the repository.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.real_pairs import packages, report
from examples.real_pairs.pairs import PAIRS
from halimede.errors import HalimedeError
from tests.e2e.demos import run_demo

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
    command = ("examples.real_pairs.demo", name, "--frames", str(FRAMES), *options)
    demo = await run_demo(tmp_path, report.table, *command)
    assert demo.code == 0, demo.output
    result = demo.report
    assert result["lost"] == 0
    assert result["cameras"][f"{name}-folder"]["published"] == result["cameras"][f"{name}-folder"]["shown"]
    assert result["frames"] == result["answered"] > FRAMES / 2, "a live camera may be behind on a slow machine"
    accuracy = result["accuracy"]
    edge, joint, cloud = (result[by][accuracy]["value"] for by in report.ANSWERS)
    assert edge < joint <= cloud + 0.05
    assert 0 < result["upload_share"]["value"] < result["upload_budget"] + 0.1
    assert 0 < result["bytes_joint"] < result["bytes_cloud"] / 2
