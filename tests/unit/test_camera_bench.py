"""What bench.camera counts and compares, on pictures and figures of the test."""

from __future__ import annotations

import asyncio
import io
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bench import camera_input, camera_report
from bench.camera_input import CASES, Case, opencv_name, ratios
from bench.camera_live import LiveCamera, LiveRound, Tally, fairness, joined, medians
from bench.camera_worker import LoopProbe
from bench.offload import DOCS
from bench.offload_report import filled
from bench.targets import of_camera

SYSTEM: dict[str, Any] = {
    "offered": 12, "answered": 8, "rate": 4.0, "dropped": {"skipped": 3}, "unexplained": 1, "age_p50_ms": 10.0,
    "age_p99_ms": 20.0, "cpu_ms": {"edge": 9.0, "broker": 1.0}, "fairness": 0.5,
    "memory_mb": {"slow": 100.0, "full": 170.0}, "loop": {"longest_cpu_ms": 7.0},
}  # fmt: skip


def jpeg(width: int, height: int) -> bytes:
    small = np.random.default_rng(0).integers(0, 256, (height // 20, width // 20, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(file, format="JPEG", quality=90)
    return file.getvalue()


def test_opencv_decodes_as_small_as_it_may_and_never_below_the_size_that_is_needed() -> None:
    assert [(case.fitted, case.reduction) for case in CASES] == [((640, 360), 2), ((224, 224), 4), ((640, 360), 4)]
    assert Case("", "1080p", 1000, letterbox=True, limit=1).reduction == 1


def test_ours_and_opencv_read_the_same_pixels_with_the_same_filter(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(camera_input.SIZES, "small", (320, 180))
    case, data = Case("small", "small", 64, letterbox=True, limit=1), jpeg(320, 180)
    prepares = dict(camera_input.variants(case, tmp_path))
    theirs = prepares[opencv_name("linear", 4)](data)
    assert theirs.shape == (1, 3, 64, 64)
    assert np.abs(prepares["scaled, linear"](data) - theirs[0]).max() < 1.5 / 255
    assert np.abs(prepares["scaled, linear"](data)[:, :10] - camera_input.FILL / 255).max() < 1e-6


def test_a_variant_stands_beside_the_cheaper_decoding_with_its_filter() -> None:
    costs = {"scaled, linear": 4.0, "exact, antialias": 9.0, "scaled, antialias": 6.0, "scaled, area": 5.0}
    costs |= {"OpenCV linear, whole": 5.0, "OpenCV linear, reduced to 1/2": 8.0}
    costs |= {"OpenCV area, whole": 10.0, "OpenCV area, reduced to 1/2": 2.0}
    rows = {row["ours"]: row for row in ratios({CASES[0].name: {name: {"ms": ms} for name, ms in costs.items()}})}
    linear, area = rows["scaled, linear"], rows["scaled, area"]
    assert (linear["to_whole"], linear["to_best"], linear["best"]) == (0.8, 0.8, "OpenCV linear, whole")
    assert (area["to_whole"], area["to_best"], area["best"]) == (0.5, 2.5, "OpenCV area, reduced to 1/2")
    targets = list(of_camera({"ratios": [linear | {"to_best": 1.2}, area]}))
    assert [(target.measured, target.limit, target.met) for target in targets] == [(0.8, 1.1, True), (1.2, 1.1, False)]


def test_who_is_late_gets_the_newest_picture_and_the_others_count_as_skipped() -> None:
    live = LiveRound(["cam0"], fps=10, seconds=1)
    late = LiveCamera("cam0", live, time.monotonic() - 0.35)
    assert (late.newest(), late.skipped) == (3, 3)
    over = LiveCamera("cam0", live, time.monotonic() - 60)
    assert (over.newest(), over.skipped, over.over, over.newest()) == (9, 9, True, None)
    assert over.due(5) == pytest.approx(over.due(0) + 0.5)


def test_frames_that_were_neither_answered_nor_dropped_by_a_name_are_unexplained() -> None:
    live = LiveRound(["cam0", "cam1"], fps=5, seconds=2)
    tally = Tally(offered=20)
    tally.dropped["skipped"] = 3
    for camera, age_s in (("cam0", 0.1), ("cam0", 0.3), ("cam1", 0.2)):
        tally.add(camera, age_s, in_time=age_s < 0.25)
    figures = tally.summary(live)
    assert (figures["answered"], figures["rate"], figures["unexplained"]) == (3, 1.0, 14)
    assert (figures["age_p50_ms"], figures["age_p99_ms"]) == (200.0, 300.0)
    assert fairness(figures["by_camera"], live.cameras) == 0.5
    assert fairness({"cam0": 3}, live.cameras) == 0
    both = joined([figures, figures])
    assert (both["answered"], both["age_p99_ms"], both["dropped"]) == (6, 300.0, {"skipped": 6})


def test_medians_are_of_each_figure_and_a_name_that_a_round_lacks_counts_as_nothing() -> None:
    rounds = [{"rate": n, "dropped": {"skipped": n} if n > 1 else {}, "loop": {"name": "run"}} for n in (1.0, 3.0, 2.0)]
    assert medians(rounds) == {"rate": 2.0, "dropped": {"skipped": 2.0}, "loop": {"name": "run"}}


def test_the_probe_names_the_call_with_the_most_processor_time(monkeypatch) -> None:
    monkeypatch.setattr(asyncio.Handle, "_run", asyncio.Handle._run)  # it is put back
    probe = LoopProbe()
    probe.install()

    async def decode_here() -> None:
        start = time.thread_time()
        while time.thread_time() - start < 0.02:
            pass

    asyncio.run(decode_here())
    calls = probe.take()
    assert calls.long_calls >= 1
    assert calls.longest_cpu_ms >= 20
    assert calls.name.endswith("decode_here")
    assert probe.take().calls == 0


def test_the_tables_name_what_was_dropped_and_what_no_counter_explains() -> None:
    found = {
        "where": {"cores": 2, "load": 0.5}, "rounds": 5, "jpeg_bytes": {"1080p": [250_000, 350_000]}, "fps": 30.0,
        "seconds": 3.0, "detector": "CenterFace, 640 x 640",
        "systems": {
            "1": {"halimede": SYSTEM}, "4": {"halimede": SYSTEM | {"memory_mb": {"slow": 130.0, "full": 500.0}}},
        },
    }  # fmt: skip
    text = camera_report.printed(found)
    assert "9.0 edge + 1.0 broker" in text
    assert "8 of 12, 3 skipped, 1 unexplained" in text
    loop = SYSTEM | {"rate": 2.0, "cpu_ms": {"opencv": 5.0}}
    _, ours = camera_report.ratio_rows({"4": {"halimede": SYSTEM, "opencv": loop}})
    assert ours == ("4", "halimede", "2.00", "", "2.00")
    assert camera_report.memory_a_camera(found["systems"]) == {"halimede": 10.0}
    assert [target.met for target in of_camera(found)] == [False] * 4
    page = camera_report.markdown(found)
    assert "| 4 | halimede | 4.0 | 9.0 edge + 1.0 broker |" in page
    assert filled(DOCS.read_text(), page, camera_report.BEGIN, camera_report.END)
