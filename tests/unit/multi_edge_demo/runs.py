"""A small made-up run of the demo of multi-edge inference: three cameras, a few frames, answers at known times."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from examples.multi_edge import boards, measure, report, scene
from examples.multi_edge.measure import NS, Run
from examples.multi_edge.record import Answered, Sent
from halimede.messages import Box, Fused, FusedFrom, Prediction, Result

START = 1_795_262_400 * 10**9


def picture(side: tuple[int, int] = scene.VIEW) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((side[1], side[0], 3), 90, np.uint8)).save(out, format="JPEG")
    return out.getvalue()


def id_of(camera: str, index: int) -> str:
    return f"{camera.encode().hex():0<24.24}{index:08x}"


class Made:
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


def told(*, lost: int = 0, name: str = "8f2b1c7d90e4a35f", late_camera: str = "") -> report.Told:
    street, belt = Made(), Made()
    for index in range(12):
        for camera in boards.CAMERAS:
            boxes = found(((40.0 + index * 9, 60.0, 88.0 + index * 9, 108.0), name), ((200.0, 9.0, 240.0, 49.0), None))
            street.frame(f"street-{camera}", index, prediction=boxes)
            node = ("edge0", "edge1", "edge2")[index % 7 % 3 if index % 7 > 3 else 0]
            belt.frame(f"belt-{camera}", index, node=node, after_ms=None if index < lost else 30.0)
    shown = boards.show(3)
    fused = []
    for i, label in enumerate(map(str, shown.labels)):
        said = {"west": label, "mid": "<b>", "east": label}
        sources = [
            FusedFrom(camera=f"board-{camera}", label=word) for camera, word in said.items() if camera != late_camera
        ]
        fused.append(Fused(instant=START / 1e9 + i / 6, rule="product", label=label, score=0.9, sources=sources))
    runs = {"street": street.run(), "board": Made().run(), "full": belt.run(), "calm": belt.run()}
    shots = sorted(measure._shots(runs["street"]), key=lambda shot: shot.index)
    return report.Told(
        seconds=2.0,
        runs=runs,
        street=measure.Street(rank1=0.99, idf1=0.97, recall=0.97, identities=1, fragments=2, shots=shots),
        board=measure.board(runs["street"], fused, shown),
        shown=shown,
        share={"edge0": 0.57, "edge1": 0.29, "edge2": 0.14},
        wait_ms={"edge0": 30.0, "edge1": 60.0, "edge2": 120.0},
        killed=measure.Takeover(0.4, 0.6, 3, 4.0),
        killed_ns=START + 10**9,
        victim="edge0",
        processes=4,
        skipped=0,
        repeated=1,
        asked=("portrait", f"IDENTITY\n{name}  6"),
        status={},
    )
