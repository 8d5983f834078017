"""``python -m bench.control`` in short: what it writes, and that it does not lose a node on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import control
from bench.offload_report import filled
from bench.targets import of_control

pytestmark = pytest.mark.slow


def test_a_short_run_writes_every_figure_of_its_size(tmp_path: Path) -> None:
    out = tmp_path / "control.json"
    short = ["--nodes", "20", "--rounds", "1", "--idle", "0.5", "--pace", "0.1", "--no-samples"]
    code = control.main([*short, "--out", str(out)])
    found = json.loads(out.read_text())
    assert set(found["nodes"]) == {"20"}
    for figures in found["nodes"].values():
        assert all(figures[name] >= 0 for name in (*control.GROWING, *control.BESIDE))
        assert all(len(values) == 1 for values in figures["rounds"].values())
    assert found["exponents"] == {}, "of one size"
    assert found["lc_rss_mb"] > 0
    assert found["lc_idle_cpu_pct"] >= 0
    assert "edge_worker_rss_mb" in found
    assert "easy_sample_overhead_us" in found
    assert out.with_suffix(".png").stat().st_size > 1000
    assert code == int(not all(target.met for target in of_control(found)))


def test_the_page_has_a_place_for_the_table() -> None:
    figures = dict.fromkeys((*control.GROWING, *control.BESIDE), 0.5) | {"rounds": {"fanout_ack_s": [0.4, 0.6]}}
    found = {"nodes": {"100": figures, "1000": figures}, "exponents": {}, "lc_rss_mb": 55.0, "lc_idle_cpu_pct": 0.08}
    shown = control.page(found | {"edge_worker_rss_mb": None})
    assert "| nodes | 100 | 1,000 | exponent |" in shown
    assert "Medians of 2 and 2 rounds" in shown
    page = filled(control.DOCS.read_text(), shown, control.BEGIN, control.END)
    assert page.count(shown) == 1
    assert filled(page, shown, control.BEGIN, control.END) == page


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5])
def test_an_exponent_is_that_of_the_growth(power: float) -> None:
    nodes = {str(n): dict.fromkeys(control.GROWING, 0.001 * n**power) for n in (100, 300, 1000)}
    assert control.exponents(nodes) == pytest.approx(dict.fromkeys(control.GROWING, power), abs=0.01)


def test_one_size_has_no_exponent() -> None:
    assert control.exponents({"100": dict.fromkeys(control.GROWING, 1.0)}) == {}
