"""A small made-up run of the demo of multi-edge inference: three cameras, a few frames, answers at known times."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from examples.multi_edge import scene
from examples.multi_edge.measure import NS, Run
from examples.multi_edge.record import Answered, Sent
from halimede.messages import Box, Prediction, Result

START = 1_795_262_400 * 10**9


def picture(side: tuple[int, int] = scene.VIEW) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((side[1], side[0], 3), 90, np.uint8)).save(out, format="JPEG")
    return out.getvalue()


def id_of(camera: str, index: int) -> str:
    return f"{camera.encode().hex():0<24.24}{index:08x}"


class Made:
    """A run under construction."""

    def __init__(self, fps: float = 6.0) -> None:
        self.fps = fps
        self.sent: dict[str, Sent] = {}
        self.answers: dict[str, Answered] = {}

    def frame(
        self, camera: str, index: int, *, after_ms: float | None = 50.0, node: str = "edge0",
        prediction: Prediction | None = None,
    ) -> None:  # fmt: skip
        """Add a frame and, unless ``after_ms`` is None, its answer."""
        key, taken = id_of(camera, index), START + round(index / self.fps * NS)
        self.sent[key] = Sent(camera, taken, picture())
        if after_ms is not None:
            said = prediction or Prediction()
            result = Result(id=key, service="belt", by="edge", prediction=said, worker="w", node=node)
            self.answers[key] = Answered(result, taken + round(after_ms * 1e6), node)

    def run(self) -> Run:
        return Run(self.sent, self.answers, START, self.fps)


def found(*boxes: tuple[tuple[float, float, float, float], str | None]) -> Prediction:
    return Prediction(boxes=[Box(*corners, 0.9, "motion") for corners, _ in boxes], value=[who for _, who in boxes])
