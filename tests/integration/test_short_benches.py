"""Short runs of measurements that start many processes: they run, and write their figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from bench import camera, camera_model, control, offload, offload_report
from bench.easy import measure
from bench.peers import plain_model
from bench.targets import of_control

pytestmark = pytest.mark.slow


def test_offload_writes_medians_and_a_plot(tmp_path: Path) -> None:
    out = tmp_path / "offload.json"
    short = ["--ways", "tcp,halimede", "--payloads", "256", "--rounds", "1", "--seconds", "0.1"]
    assert offload.main([*short, "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert list(report["payloads"]["256"]) == ["tcp", "halimede"]
    for row in report["payloads"]["256"].values():
        assert row["rtt_ms"] > 0
        assert row["spread"]["rate"][0] <= row["rate"] <= row["spread"]["rate"][1]
    assert set(report["payloads"]["256"]["halimede"]["cpu_us"]) == {"client", "server", "broker"}
    assert out.with_suffix(".png").stat().st_size > 0
    assert "| **halimede** |" in offload_report.markdown(report)


def test_the_plain_server_of_offload_answers_as_ours() -> None:
    plain_model.check(256, 1, plain_model.open_model().answer(plain_model.request(256, 1)))


def test_control_writes_each_figure_of_its_size(tmp_path: Path) -> None:
    out = tmp_path / "control.json"
    short = ["--nodes", "20", "--rounds", "1", "--idle", "0.5", "--pace", "0.1", "--no-samples"]
    code = control.main([*short, "--out", str(out)])
    report = json.loads(out.read_text())
    assert all(report["nodes"]["20"][name] >= 0 for name in (*control.GROWING, *control.BESIDE))
    assert report["lc_rss_mb"] > 0
    assert out.with_suffix(".png").stat().st_size > 1000
    assert code == int(not all(target.met for target in of_control(report)))
    assert "| nodes | 20 | exponent |" in control.page(report)


def test_camera_counts_each_frame_without_a_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camera_model, "PACKAGES", tmp_path / "packages")
    monkeypatch.setattr(camera_model, "INSTALL", ("false",))
    out = tmp_path / "camera.json"
    short = ["--cameras", "2", "--rounds", "1", "--seconds", "0.5", "--fps", "4", "--side", "64", "--film-frames", "4"]
    systems = "halimede,halimede-qos0,halimede-url,halimede-h264,joint-model,opencv"
    assert camera.main(["--parts", "systems", "--systems", systems, *short, "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert list(report["systems"]["2"]) == systems.split(",")
    rows = report["systems"]["2"].values()
    for row in rows:
        assert row["offered"] == 4, row
        assert row["answered"] <= 4, row
    assert sum(row["answered"] for row in rows) > 0  # on a busy machine, all frames of a system may be late


def test_easy_measures_what_a_sample_takes_in_addition_to_its_model() -> None:
    added = measure(rounds=1, samples=50)
    assert math.isfinite(added)
    assert added > 0
