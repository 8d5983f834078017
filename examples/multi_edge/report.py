"""What the demo found, as figures (report.json) and as the lines of a table. Nothing here talks to the system."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.multi_edge import boards
from examples.multi_edge.measure import Board, Run, Street, Takeover

#: what issue 6 asks of a run
LEAST_RANK1, LEAST_IDF1, LEAST_GAIN, MOST_OFF, MOST_TAKEOVER_S = 0.95, 0.9, 0.03, 0.10, 3.0


@dataclass(frozen=True)
class Told:
    """All that the page shows. ``runs``: street, board, full (a belt at full load), calm (the one with the kill)."""

    seconds: float
    runs: Mapping[str, Run]
    street: Street
    board: Board
    shown: boards.Shown
    share: Mapping[str, float]
    wait_ms: Mapping[str, float]
    killed: Takeover
    killed_ns: int
    victim: str
    processes: int
    skipped: int
    repeated: int
    asked: tuple[str, str]
    status: Mapping[str, Any]

    @property
    def asked_for(self) -> str:
        """The identity that the system named first when it was shown a photograph; empty where it named none."""
        found = re.search(r"\b[0-9a-f]{16}\b", self.asked[1])
        return found[0] if found else ""

    @property
    def capacity(self) -> dict[str, float]:
        """Each node's share of what all can do, by the time that a frame takes it."""
        speed = {node: 1 / wait for node, wait in self.wait_ms.items()}
        return {node: value / sum(speed.values()) for node, value in speed.items()}


def figures(told: Told) -> dict[str, Any]:
    """Return the fields of report.json."""
    runs = told.runs
    frames = sum(len(run.sent) for run in runs.values())
    answered = sum(len(run.answers) for run in runs.values())
    usual = [*runs["street"].latencies(), *runs["board"].latencies()]
    return {
        "frames": frames,
        "answered": answered,
        "skipped": told.skipped,
        "lost": frames - answered,
        "repeated": told.repeated,
        "degraded": sum(a.result.degraded for run in runs.values() for a in run.answers.values()),
        "rank1": round(told.street.rank1, 4),
        "idf1": round(told.street.idf1, 4),
        "identities": told.street.identities,
        "fragments": told.street.fragments,
        "asked_for": told.asked[0],
        "asked_found": told.street.names.get(told.asked_for, ""),
        "single_best_accuracy": round(told.board.best, 4),
        "fused_accuracy": round(told.board.fused, 4),
        "single_accuracy": {camera: round(value, 4) for camera, value in told.board.alone.items()},
        "instants": len(told.board.instants),
        "complete_instants": len(told.board.instants) - told.board.incomplete,
        "node_share": {node: round(value, 4) for node, value in told.share.items()},
        "node_capacity": {node: round(value, 4) for node, value in told.capacity.items()},
        "takeover_s": _round(told.killed.takeover_s),
        "longest_wait_s": _round(told.killed.longest_s),
        "taken_over": told.killed.held,
        "node_back_s": _round(told.killed.back_s),
        "p50_ms": percentile(usual, 50),
        "p99_ms": percentile(usual, 99),
        "latency_ms": {
            name: {"p50": percentile(run.latencies(), 50), "p99": percentile(run.latencies(), 99)}
            for name, run in runs.items()
        },
        "frames_by_scene": {name: len(run.sent) for name, run in runs.items()},
        "answered_by": _answered_by(runs),
        "status": told.status,
    }


def missed(found: Mapping[str, Any]) -> list[str]:
    """Say what of the run is not what it should be."""
    gain = found["fused_accuracy"] - found["single_best_accuracy"]
    off = worst_off(found)
    takeover = found["takeover_s"]
    checks = (
        (found["frames"] == 0, "no frame was published"),
        (found["lost"] > 0, f"{found['lost']} frames were not answered"),
        (found["rank1"] < LEAST_RANK1, f"rank-1 is {found['rank1']}, under {LEAST_RANK1}"),
        (found["idf1"] < LEAST_IDF1, f"IDF1 is {found['idf1']}, under {LEAST_IDF1}"),
        (gain < LEAST_GAIN, f"fusion gains {gain:.3f}, less than {LEAST_GAIN}"),
        (off > MOST_OFF, f"a node's share is {off:.0%} off its capacity, more than {MOST_OFF:.0%}"),
        (takeover is None, "nobody took over from the node that was killed"),
        ((takeover or 0) > MOST_TAKEOVER_S, f"the others took over after {takeover} s, more than {MOST_TAKEOVER_S}"),
    )
    return [words for wrong, words in checks if wrong]


def worst_off(found: Mapping[str, Any]) -> float:
    """Return by how much of its capacity a node's share is off it, at most."""
    return float(max(abs(found["node_share"][node] / wanted - 1) for node, wanted in found["node_capacity"].items()))


def table(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that people read first."""
    share = ", ".join(f"{node} {value:.1%} of {found['node_capacity'][node]:.1%}"
                      for node, value in found["node_share"].items())  # fmt: skip
    single = ", ".join(f"{camera} {value:.3f}" for camera, value in found["single_accuracy"].items())
    back = _seconds(found["node_back_s"])
    latency = ", ".join(f"{name} {ms['p50']:g} / {ms['p99']:g}" for name, ms in found["latency_ms"].items())
    return [
        ("frames / answered", f"{found['frames']} / {found['answered']}"),
        ("lost, skipped, degraded", f"{found['lost']}, {found['skipped']}, {found['degraded']}"),
        ("rank-1", f"{found['rank1']:.4f}"),
        ("IDF1", f"{found['idf1']:.4f}"),
        ("identities (and fragments)", f"{found['identities']} ({found['fragments']})"),
        ("shown a photograph of", f"{found['asked_for']}; named {found['asked_found'] or 'nobody'}"),
        ("accuracy of each camera alone", single),
        ("accuracy of all three together", f"{found['fused_accuracy']:.4f} over {found['complete_instants']} instants"),
        ("share of the load, of capacity", share),
        ("taken over after the kill", f"{_seconds(found['takeover_s'])}; longest wait {found['longest_wait_s']:.2f} s"),
        ("frames of the dead node", f"{found['taken_over']} answered by others; back after {back}"),
        ("answered twice (dropped by their id)", str(found["repeated"])),
        ("picture to answer p50 / p99, ms", latency),
        ("answered by", ", ".join(f"{who} {count}" for who, count in found["answered_by"].items())),
    ]  # fmt: skip


def percentile(values: list[float], share: float) -> float:
    """Return a percentile, to a tenth."""
    return round(float(np.percentile(values, share)), 1) if values else 0.0


def _answered_by(runs: Mapping[str, Run]) -> dict[str, int]:
    by = sorted(answer.result.by for run in runs.values() for answer in run.answers.values())
    return {name: by.count(name) for name in dict.fromkeys(by)}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"
