"""What the demo found, as figures (report.json) and as a page (report.html). Nothing here talks to the system."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np

from halimede.messages import Prediction, Result

mpl.use("Agg")
import matplotlib.pyplot as plt  # after the backend is chosen

PICTURES = 24


@dataclass(frozen=True)
class Answer:
    """One sample of the demo: the picture that was sent, the truth, the system's result, the big model's own label."""

    png: bytes
    truth: str
    result: Result
    cloud_label: str

    @property
    def edge(self) -> Prediction:
        """What the small model said, whoever answered in the end."""
        return self.result.edge or self.result.prediction


def figures(answers: list[Answer], samples: int, status: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of report.json. Accuracies are shares of the answered samples."""
    by_cloud = [a for a in answers if a.result.by == "cloud"]
    metrics = {m["key"]: m["value"] for m in status.get("status", {}).get("metrics", [])}
    return {
        "samples": samples,
        "answered": len(answers),
        "lost": samples - len(answers),
        "skipped": int(metrics.get("skipped", 0)),
        "edge_only_accuracy": _share(a.edge.label == a.truth for a in answers),
        "cloud_only_accuracy": _share(a.cloud_label == a.truth for a in answers),
        "joint_accuracy": _share(a.result.label == a.truth for a in answers),
        "upload_ratio": _share(a.result.hard for a in answers),
        "degraded": sum(a.result.degraded for a in answers),
        "edge_latency_ms": _percentiles([a.result.total_ms for a in answers if a.result.by == "edge"]),
        "offload_latency_ms": _percentiles([a.result.offload_ms for a in by_cloud]),
        "answered_by": {"edge": len(answers) - len(by_cloud), "cloud": len(by_cloud), **_count_workers(answers)},
        "status": status,
    }


def curve(answers: list[Answer]) -> tuple[list[float], list[float]]:
    """Return joint accuracy against upload ratio, had the threshold been set so that this share goes up."""
    margins = np.array([_margin(a.edge) for a in answers])
    edge = np.array([a.edge.label == a.truth for a in answers])
    cloud = np.array([a.cloud_label == a.truth for a in answers])
    order = np.argsort(margins, kind="stable")
    ratios, accuracies = [], []
    for sent in range(0, len(answers) + 1, max(1, len(answers) // 200)):
        up = order[:sent]
        right = int(edge.sum()) - int(edge[up].sum()) + int(cloud[up].sum())
        ratios.append(sent / len(answers))
        accuracies.append(right / len(answers))
    return ratios, accuracies


def page(found: dict[str, Any], answers: list[Answer]) -> str:
    """Return report.html: one file, no scripts, nothing loaded from elsewhere."""
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in table(found))
    hard = sorted((a for a in answers if a.result.hard), key=lambda a: _margin(a.edge))[:PICTURES]
    pictures = "".join(map(_picture, hard))
    return PAGE.format(rows=rows, plot=_plot(found, answers), pictures=pictures, count=len(hard))


def table(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that people read first."""
    edge, offload = found["edge_latency_ms"], found["offload_latency_ms"]
    workers = ", ".join(f"{k} {v}" for k, v in found["answered_by"].items() if k not in {"edge", "cloud"})
    return [
        ("samples / answered", f"{found['samples']} / {found['answered']}"),
        ("lost, skipped, degraded", f"{found['lost']}, {found['skipped']}, {found['degraded']}"),
        ("accuracy edge only", f"{found['edge_only_accuracy']:.4f}"),
        ("accuracy joint", f"{found['joint_accuracy']:.4f}"),
        ("accuracy cloud only", f"{found['cloud_only_accuracy']:.4f}"),
        ("upload ratio", f"{found['upload_ratio']:.4f}"),
        ("answered by edge / cloud", f"{found['answered_by']['edge']} / {found['answered_by']['cloud']}"),
        ("answers by worker", workers),
        ("edge latency p50 / p99", f"{edge['p50']:.2f} / {edge['p99']:.2f} ms"),
        ("offload latency p50 / p99", f"{offload['p50']:.2f} / {offload['p99']:.2f} ms"),
    ]


def _share(values: Any) -> float:
    found = list(values)
    return round(sum(found) / len(found), 4) if found else 0.0


def _percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {"p50": 0.0, "p99": 0.0}
    return {"p50": round(float(np.percentile(values, 50)), 3), "p99": round(float(np.percentile(values, 99)), 3)}


def _count_workers(answers: list[Answer]) -> dict[str, int]:
    workers = sorted(a.result.worker for a in answers)
    return {worker: workers.count(worker) for worker in dict.fromkeys(workers)}


def _margin(prediction: Prediction) -> float:
    best = sorted(prediction.probabilities or [1.0, 0.0])[-2:]
    return best[1] - best[0]


def _plot(found: dict[str, Any], answers: list[Answer]) -> str:
    ratios, accuracies = curve(answers)
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(ratios, accuracies, color="#1f6f8b", label="joint, by share uploaded")
    axes.axhline(found["edge_only_accuracy"], color="#999999", linestyle=":", label="edge only")
    axes.axhline(found["cloud_only_accuracy"], color="#99582a", linestyle="--", label="cloud only")
    axes.plot(found["upload_ratio"], found["joint_accuracy"], "o", color="#c1121f", label="this run")
    axes.set(xlabel="upload ratio", ylabel="accuracy", xlim=(0, 1))
    axes.legend(loc="center right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight")
    plt.close(figure)
    return out.getvalue()[out.getvalue().index("<svg") :]


def _picture(answer: Answer) -> str:
    image = base64.b64encode(answer.png).decode()
    right = "right" if answer.result.label == answer.truth else "wrong"
    text = f"edge {answer.edge.label}, {answer.result.by} {answer.result.label}, truth {answer.truth}"
    return (
        f'<figure class="{right}"><img alt="a handwritten digit" src="data:image/png;base64,{image}">'
        f"<figcaption>{html.escape(text)}</figcaption></figure>"
    )


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>halimede: the digits demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }}
h1 {{ font-weight: 600 }} table {{ border-collapse: collapse }} svg {{ max-width: 100%; height: auto }}
th, td {{ text-align: left; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #ddd; font-weight: 400 }}
td {{ font-variant-numeric: tabular-nums }}
.pictures {{ display: flex; flex-wrap: wrap; gap: .8rem }}
figure {{ margin: 0; width: 8rem; border-top: 4px solid #2a9d8f }} figure.wrong {{ border-color: #c1121f }}
img {{ width: 8rem; height: 8rem; image-rendering: pixelated }} figcaption {{ font-size: .8rem }}
</style></head><body>
<h1>Joint inference of handwritten digits</h1>
<p>Two edge nodes ran a small model, one cloud node a big one; two cameras published the pictures over MQTT.</p>
<table>{rows}</table>
<h2>Accuracy against upload ratio</h2>
{plot}
<p>The line shows what other thresholds would have given on the same samples; the dot is what this run measured.</p>
<h2>The {count} hardest samples</h2>
<div class="pictures">{pictures}</div>
</body></html>
"""
