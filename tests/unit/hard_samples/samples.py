"""Kept samples for tests of the room that keeps them."""

from __future__ import annotations

import hashlib
from typing import Any

from halimede.hard_samples.store import describe
from halimede.messages import Box, KeptImage, KeptSample, Prediction, Result


def sample(number: int, data: bytes = b"picture", **changes: Any) -> KeptSample:
    """Return the sample of that number, with what was said of it."""
    id_ = f"{number:032x}"
    boxes = changes.pop("boxes", None)
    said = {"by": "cloud", "label": "5", "camera": "cam0", "hard": True, "worker": "c", "model": "v2", **changes}
    edge = said.pop("edge", Prediction(label="3", score=0.4, embeddings=b"1234"))
    final = Prediction(label=said["label"], score=0.9, boxes=boxes)
    result = Result(id=id_, service="digits", score=0.9, prediction=final, **said)
    made = describe(result, edge, namespace="default", now_ns=number * 10**9, model="v1", digest="d" * 64)
    made.image = KeptImage(form="png", size=len(data), sha256=hashlib.sha256(data).hexdigest(), width=8, height=4)
    return made


def box(label: int | str) -> Box:
    """Return a box of 10 by 20 pixels."""
    return Box(x1=1, y1=2, x2=11, y2=22, score=0.5, label=label)
