"""A small made-up run of the demo of digits: known answers at known times."""

from __future__ import annotations

from typing import Any

from examples.digits.report import Answer
from halimede.messages import Prediction, Result
from tests.digits import picture


def prediction(label: str, score: float) -> Prediction:
    return Prediction(label=label, score=score, probabilities=[score, 1 - score])


def answer(
    number: int, truth: str, edge: str, cloud: str, *, score: float = 0.95, hard: bool = False, reason: str = "",
    audit: bool = False,
) -> Answer:  # fmt: skip
    """Return what became of one sample: every 100 ms one, from two cameras in turn, on two nodes in turn."""
    node, small, big = f"edge{number // 2 % 2}", prediction(edge, score), prediction(cloud, 0.99)
    asked = hard and not reason
    result = Result(
        id=f"{number:032x}", service="digits", camera=f"cam{number % 2}", sequence=number, node=node,
        by="cloud" if asked else "edge", hard=hard, degraded=bool(reason), reason=reason, audit=audit,
        label=cloud if asked else edge, score=0.99 if asked else score,
        prediction=big if asked else small, edge=small if asked else None,
        worker="digits-cloud-cloud0" if asked else f"digits-edge-{node}", total_ms=4.0 if asked else 0.5, edge_ms=0.25,
        offload_ms=3.0 if asked else 0.0,
    )  # fmt: skip
    png = picture(number)
    return Answer(png, truth, result, cloud, at_s=number / 10, wait_ms=5.0 if asked else 1.0, size=100)


def run() -> list[Answer]:
    """Ten samples: four hard ones, of which the cloud mends two and spoils one."""
    return [
        answer(0, "1", "1", "1"),
        answer(1, "2", "7", "2", score=0.51, hard=True),
        answer(2, "3", "3", "8", score=0.60, hard=True),
        answer(3, "4", "4", "4", score=0.55, hard=True),
        answer(4, "5", "6", "5", score=0.70, hard=True),
        *(answer(number, "0", "0", "0") for number in range(5, 10)),
    ]


def status(*, uploaded: tuple[int, int] = (200, 100), **metrics: int) -> dict[str, Any]:
    counts = {"uploadedBytes": sum(uploaded), "skipped": 0, **metrics}
    return {
        "status": {
            "metrics": [{"key": key, "value": str(value)} for key, value in counts.items()],
            "nodes": [
                {"node": "cloud0", "taskInfo": {"uploadedBytes": 0}},
                *({"node": f"edge{i}", "taskInfo": {"uploadedBytes": count}} for i, count in enumerate(uploaded)),
            ],
        }
    }
