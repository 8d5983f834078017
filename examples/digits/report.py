"""What the demo found, as figures (report.json) and as the lines of a table. Nothing here talks to the system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from halimede.messages import Prediction, Result

#: share of samples that the demo wants to send at most, where its service sets no targetUploadRatio
GOAL = 0.20
#: how many of the hardest samples are listed
HARDEST = 24
#: seconds that one bar of a chart over time may have; the first that gives few enough bars
STEPS, BARS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0), 60
#: the times of a sample, and what they are to people
TIMES = {
    "edge_model": "in the small model",
    "edge_answer": "from the frame's acceptance to the edge's answer",
    "offload": "from the request to the cloud to its reply",
    "cloud_answer": "from the frame's acceptance to the cloud's answer",
    "edge_received": "from published frame to received result, answered by the edge",
    "cloud_received": "from published frame to received result, answered by the cloud",
}


@dataclass(frozen=True)
class Answer:
    """One sample of the demo: the picture that was sent, the truth, the system's result, the big model's own label.

    ``at_s``: when the result came, in seconds since the first frame was published. ``wait_ms``: from when this frame
    was published. ``size``: bytes of the result's body.
    """

    png: bytes
    truth: str
    result: Result
    cloud_label: str
    at_s: float = 0.0
    wait_ms: float = 0.0
    size: int = 0

    @property
    def edge(self) -> Prediction:
        """What the small model said, whoever answered in the end."""
        return self.result.edge or self.result.prediction

    @property
    def margin(self) -> float:
        """How far the small model's two best classes are apart."""
        best = sorted(self.edge.probabilities or [1.0, 0.0])[-2:]
        return best[1] - best[0]

    @property
    def uploaded(self) -> bool:
        """Whether the cloud got the sample, and replied."""
        return self.result.by == "cloud" or self.result.audit


def figures(
    answers: Sequence[Answer], samples: int, status: Mapping[str, Any], target: float | None = None
) -> dict[str, Any]:
    """Return the fields of report.json. Accuracies are shares of what was answered; ``target``: the upload budget."""
    edge = [a for a in answers if a.result.by == "edge"]
    cloud = [a for a in answers if a.result.by == "cloud"]
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
        "upload_budget": GOAL if target is None else target,
        "upload_budget_of": "the demo's goal" if target is None else "targetUploadRatio",
        "uploaded_bytes": int(metrics.get("uploadedBytes", 0)),
        "all_bytes": sum(len(a.png) for a in answers),
        "uploads": _worth(cloud),
        "audited": int(metrics.get("audited", 0)),
        "audit_agreed": int(metrics.get("auditAgreed", 0)),
        "degraded": sum(a.result.degraded for a in answers),
        "edge_latency_ms": _percentiles([a.result.total_ms for a in edge]),
        "offload_latency_ms": _percentiles([a.result.offload_ms for a in cloud]),
        "times_ms": {
            "edge_model": _percentiles([a.result.edge_ms for a in answers]),
            "edge_answer": _percentiles([a.result.total_ms for a in edge]),
            "offload": _percentiles([a.result.offload_ms for a in cloud]),
            "cloud_answer": _percentiles([a.result.total_ms for a in cloud]),
            "edge_received": _percentiles([a.wait_ms for a in edge]),
            "cloud_received": _percentiles([a.wait_ms for a in cloud]),
        },
        "answered_by": {"edge": len(edge), "cloud": len(cloud), **_count_workers(answers)},
        "links": _links(answers, status),
        "over_time": _over_time(answers),
        "hardest": [_hard(a) for a in hardest(answers)],
        "status": status,
    }


def hardest(answers: Iterable[Answer]) -> list[Answer]:
    """Return the hard samples that the small model was least sure of, the hardest first."""
    return sorted((a for a in answers if a.result.hard), key=lambda a: a.margin)[:HARDEST]


def curve(answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """Return joint accuracy by upload ratio, had the threshold been set so that this share goes up."""
    if not answers:
        return []
    edge = np.array([a.edge.label == a.truth for a in answers])
    cloud = np.array([a.cloud_label == a.truth for a in answers])
    order = np.argsort([a.margin for a in answers], kind="stable")
    points = []
    for sent in range(0, len(answers) + 1, max(1, len(answers) // 200)):
        up = order[:sent]
        right = int(edge.sum()) - int(edge[up].sum()) + int(cloud[up].sum())
        points.append((sent / len(answers), right / len(answers)))
    return points


def table(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines that people read first."""
    edge, offload, uploads = found["edge_latency_ms"], found["offload_latency_ms"], found["uploads"]
    workers = ", ".join(f"{k} {v}" for k, v in found["answered_by"].items() if k not in {"edge", "cloud"})
    audits = [("audits / agreed", f"{found['audited']} / {found['audit_agreed']}")] if found["audited"] else []
    return [
        ("samples / answered", f"{found['samples']} / {found['answered']}"),
        ("lost, skipped, degraded", f"{found['lost']}, {found['skipped']}, {found['degraded']}"),
        ("accuracy edge only", f"{found['edge_only_accuracy']:.4f}"),
        ("accuracy joint", f"{found['joint_accuracy']:.4f}"),
        ("accuracy cloud only", f"{found['cloud_only_accuracy']:.4f}"),
        ("upload ratio / budget", f"{found['upload_ratio']:.4f} / {found['upload_budget']:.4f}"),
        ("uploaded bytes / of all samples", f"{found['uploaded_bytes']} / {found['all_bytes']}"),
        ("uploads: mended / spoiled", f"{uploads['mended']} / {uploads['spoiled']}"),
        *audits,
        ("answered by edge / cloud", f"{found['answered_by']['edge']} / {found['answered_by']['cloud']}"),
        ("answers by worker", workers),
        ("edge latency p50 / p99", f"{edge['p50']:.2f} / {edge['p99']:.2f} ms"),
        ("offload latency p50 / p99", f"{offload['p50']:.2f} / {offload['p99']:.2f} ms"),
    ]


def _links(answers: Sequence[Answer], status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Count messages and bytes by link. Bytes of frames are those of their pictures, of results those of their bodies.

    What the edge sent to the cloud is what its workers count.
    """
    counts: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for a in answers:
        node = a.result.node
        uploads = [(node, "cloud", "hard samples", 0)] if a.uploaded else []
        frame, result = (a.result.camera, node, "frames", len(a.png)), (node, "consumer", "results", a.size)
        for source, to, what, size in (frame, *uploads, result):
            link = counts[source, to, what]
            link[0], link[1] = link[0] + 1, link[1] + size
    for node in status.get("status", {}).get("nodes", []):
        if (link := counts.get((node["node"], "cloud", "hard samples"))) and node.get("taskInfo"):
            link[1] = node["taskInfo"]["uploadedBytes"]
    order = ("frames", "hard samples", "results")
    return [
        {"from": source, "to": to, "what": what, "messages": count, "bytes": size}
        for (source, to, what), (count, size) in sorted(counts.items(), key=lambda e: (order.index(e[0][2]), e[0]))
    ]


def _over_time(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return answers of each step, and the share that had gone to the cloud by its end."""
    seconds = max((a.at_s for a in answers), default=0.0)
    step = next((step for step in STEPS if seconds / step < BARS), STEPS[-1])
    count = int(seconds / step) + 1
    by: dict[str, list[int]] = {"edge": [0] * count, "cloud": [0] * count}
    hard = [0] * count
    for a in answers:
        by["cloud" if a.result.by == "cloud" else "edge"][int(a.at_s / step)] += 1
        hard[int(a.at_s / step)] += a.result.hard
    total = np.cumsum(by["edge"]) + np.cumsum(by["cloud"])
    return {"step_s": step, **by, "upload_ratio": (np.cumsum(hard) / np.maximum(total, 1)).round(4).tolist()}


def _worth(cloud: Sequence[Answer]) -> dict[str, int]:
    """Count what became of the edge's answers that the cloud's took the place of."""
    pairs = [(a.edge.label == a.truth, a.result.label == a.truth) for a in cloud]
    names = {
        "mended": (False, True),
        "spoiled": (True, False),
        "both_right": (True, True),
        "both_wrong": (False, False),
    }
    return {name: pairs.count(pair) for name, pair in names.items()}


def _hard(a: Answer) -> dict[str, Any]:
    final = a.result if a.result.by == "cloud" else None
    return {
        "id": a.result.id,
        "camera": a.result.camera,
        "node": a.result.node,
        "truth": a.truth,
        "margin": round(a.margin, 4),
        "edge": {"label": a.edge.label, "score": round(a.edge.score or 0.0, 4)},
        "cloud": final and {"label": final.label, "score": round(final.score or 0.0, 4)},
        "reason": a.result.reason,
    }


def _share(values: Iterable[bool]) -> float:
    found = list(values)
    return round(sum(found) / len(found), 4) if found else 0.0


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"p50": 0.0, "p99": 0.0}
    return {"p50": round(float(np.percentile(values, 50)), 3), "p99": round(float(np.percentile(values, 99)), 3)}


def _count_workers(answers: Iterable[Answer]) -> dict[str, int]:
    workers = sorted(a.result.worker for a in answers)
    return {worker: workers.count(worker) for worker in dict.fromkeys(workers)}
