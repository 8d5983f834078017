"""What ``bench.accuracy`` has measured, summed up over seeds: what is written, the targets, and a table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halimede.calibration.measurement import mean_interval

Array = NDArray[Any]

#: shares of samples that go up, as they are written
RATIOS = ("0.10", "0.15", "0.20")
#: joint / cloud-only that learned deferral has to reach
LEAST = {"0.10": 0.976, "0.15": 0.988, "0.20": 0.994}
#: of the budget, and of the risk
TARGET, RISK = 0.2, 0.02


def summed_up(seeds: list[dict[str, Any]], splits: list[tuple[float, float]]) -> tuple[dict[str, Any], list[Any]]:
    """Return what is written, and each target with what was measured."""

    def mean(name: str) -> Array:
        return np.mean([seed[name] for seed in seeds], axis=0)

    report: dict[str, Any] = {"seeds": len(seeds), "digits": {}}
    for name in ("edge_only", "cloud_only"):
        report["digits"][name] = round(float(mean(name)), 5)
    for rule in ("margin", "learned", "learned_with_features", "oracle"):
        report["digits"][rule] = {ratio: round(float(v), 5) for ratio, v in zip(RATIOS, mean(rule), strict=True)}
    paired = np.array([seed["learned"] - seed["margin"] for seed in seeds])
    intervals = {ratio: mean_interval(paired[:, i]) for i, ratio in enumerate(RATIOS)}
    report["learned_minus_margin"] = {ratio: round(m, 5) for ratio, (m, _, _) in intervals.items()}
    report["learned_minus_margin_ci"] = {r: [round(lo, 5), round(hi, 5)] for r, (_, lo, hi) in intervals.items()}
    lead = mean("learned_grid") - mean("margin_grid")
    report["learned_minus_margin_worst"] = round(float(lead.min()), 5)
    report["fusion"] = {}
    for pair in seeds[0]["fusion"]:
        found = np.array([seed["fusion"][pair] for seed in seeds])
        ends = {name: mean_interval(found[:, i]) for i, name in enumerate(("joint_minus_cloud", "mixture_brings"))}
        report["fusion"][pair] = {
            key: value
            for name, (middle, lo, hi) in ends.items()
            for key, value in ((name, round(middle, 5)), (f"{name}_ci", [round(lo, 5), round(hi, 5)]))
        }
    budgets = np.array([seed["budget"] for seed in seeds])
    report["budget"] = {
        "target": TARGET,
        "long_run_error": round(float(budgets[..., 0].max()), 5),
        "worst_window_error": round(float(budgets[..., 1].max()), 5),
    }
    risks = np.array(splits)
    risk, ratio = risks.mean(axis=0).round(5).tolist()
    report["risk"] = {"limit": RISK, "mean": risk, "upload_ratio": ratio}
    report["risk_held_share"] = round(float((risks[:, 0] <= RISK).mean()), 4)
    report["audit_covered_share"] = round(float(np.mean([seed["audits"] for seed in seeds])), 4)
    return report, targets_of(report)


def targets_of(report: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Return name, wanted, measured and whether it is met, of all targets."""
    rows: list[tuple[str, str, str, bool]] = []

    def least(name: str, value: float, wanted: float, *, over: bool = False) -> None:
        met = value > wanted if over else value >= wanted
        rows.append((name, f"{'over' if over else 'at least'} {wanted:g}", f"{value:.4f}", bool(met)))

    def most(name: str, value: float, wanted: float) -> None:
        rows.append((name, f"at most {wanted:g}", f"{value:.4f}", value <= wanted))

    for ratio in RATIOS:
        least(f"learned / cloud-only at {ratio}", report["digits"]["learned"][ratio], LEAST[ratio])
    for ratio in ("0.15", "0.20"):
        least(f"learned - margin at {ratio}, low end", report["learned_minus_margin_ci"][ratio][0], 0, over=True)
    least("learned - margin at any ratio", report["learned_minus_margin_worst"], -0.002)
    for pair in ("mlp16_forest", "logistic1_forest"):
        least(f"joint - cloud-only at 30 %, {pair}", report["fusion"][pair]["joint_minus_cloud"], 0, over=True)
    least("joint - cloud-only at 30 %, main pair", report["fusion"]["main"]["joint_minus_cloud"], -0.001)
    most("what the mixture costs, main pair", -report["fusion"]["main"]["mixture_brings"], 0.001)
    most("budget, long-run error", report["budget"]["long_run_error"], 0.01)
    most("budget, worst window of 2,000", report["budget"]["worst_window_error"], 0.05)
    least("risk held, share of re-splits", report["risk_held_share"], 0.95)
    least("audit covers the truth, share of runs", report["audit_covered_share"], 0.90)
    return rows


def show(report: dict[str, Any], targets: list[tuple[str, str, str, bool]]) -> None:
    found = report["digits"]
    print(f"{report['seeds']} seeds, {report['seconds']:.0f} s: edge only {found['edge_only']:.4f}, "
          f"cloud only {found['cloud_only']:.4f}; joint / cloud-only:")  # fmt: skip
    print(f"  {'rule':<24}" + "".join(f"{ratio:>9}" for ratio in RATIOS))
    for rule in ("margin", "learned", "learned_with_features", "oracle"):
        print(f"  {rule:<24}" + "".join(f"{found[rule][ratio]:>9.4f}" for ratio in RATIOS))
    for pair, row in report["fusion"].items():
        low, high = row["joint_minus_cloud_ci"]
        print(f"  {pair}: joint - cloud-only {row['joint_minus_cloud']:+.4f} [{low:+.4f}, {high:+.4f}], "
              f"of which the mixture brings {row['mixture_brings']:+.4f}")  # fmt: skip
    print(f"  risk: {report['risk']['mean']:.4f} in the mean, at {report['risk']['upload_ratio']:.1%} upload")
    print(f"{'target':<44}{'wanted':>16}{'measured':>12}")
    for name, wanted, measured, met in targets:
        print(f"{name:<44}{wanted:>16}{measured:>12}  {'met' if met else 'MISSED'}")
