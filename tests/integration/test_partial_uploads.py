"""Worker processes over a real Mosquitto that upload parts of frames: regions of hard frames, and crops of boxes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from halimede.frames import encode_image
from halimede.messages import Box
from tests.graphs import FLOAT
from tests.integration.workers import Site
from tests.serving_world import echo
from tests.simulated import eventually

pytestmark = pytest.mark.timeout(120)

#: the Model of a script that reads pictures as they are
SCRIPT = {"MODEL_SPEC": '{"url": "/none", "format": "python"}'}
#: sides of a frame with noise, and what the small model finds in it: one object of which it is unsure, and one not
SIDE = 120
UNSURE, SURE = [48, 48, 64, 64, 0.5, "thing"], [8, 8, 24, 24, 0.9, "thing"]
SPOTS = f"""
    from halimede.worker import run_edge

    class Spots:
        def predict(self, data):
            return {{"boxes": [{UNSURE}, {SURE}]}}

    run_edge(Spots)
"""
#: finds all that is not of the colour of the last pixel
BOUNDS = """
    import numpy
    from halimede.worker import run_cloud

    class Bounds:
        def predict(self, data):
            pixels = numpy.asarray(data)
            rows, columns = numpy.nonzero(pixels != pixels[-1, -1])
            x1, y1, x2, y2 = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            return {"boxes": [[int(x1), int(y1), int(x2), int(y2), 0.8, "thing"]]}

    run_cloud(Bounds)
"""
#: sure of dark crops only
SMALL = """
    import numpy
    from halimede.worker import run_edge

    class Small:
        def predict(self, data):
            sure = 0.9 if numpy.asarray(data).max() < 100 else 0.55
            return {"label": "small", "probabilities": [sure, 1 - sure]}

    run_edge(Small)
"""
#: answers once there is a file ``go`` in its folder, and notes before that that it was requested
BIG = """
    import pathlib
    import time
    from halimede.worker import run_cloud

    class Big:
        def predict(self, data):
            pathlib.Path("requested").touch()
            while not pathlib.Path("go").exists():
                time.sleep(0.01)
            return {"label": "big", "probabilities": [0.99, 0.01]}

    run_cloud(Big)
"""
#: a frame has so many things of each of these shades in a row; the last ones are hard
SHADES = (40, 60, 200, 220)
#: a map of probabilities that is the picture itself: all that is not black is a thing
DETECTOR: dict[str, Any] = {
    "url": "/none", "format": "onnx", "labels": ["thing"],
    "preprocess": [{"op": "grayscale"}, {"op": "normalize"}, {"op": "layout", "order": "chw"}],
    "postprocess": {"task": "detection", "boxes": {"decode": "db", "threshold": 0.1, "unclip": 0.0}},
}  # fmt: skip


async def test_regions_go_up_and_boxes_are_in_the_pixels_of_the_frame(s: Site) -> None:
    draw = np.random.default_rng(1)
    pictures = [encode_image(draw.integers(0, 256, (SIDE, SIDE)).astype(np.uint8)) for _ in range(20)]
    rule = SCRIPT | {"HEM_NAME": "CloudOnly", "HEM_PARAMETERS": "[]", "UPLOAD": "regions", "DEADLINE_MS": "60000"}
    s.start_script("cloud", s.cloud, BOUNDS, **SCRIPT)
    s.start_script("edge", s.edge, SPOTS, **rule)
    await s.running(s.cloud, s.edge)
    await s.send_all(pictures)
    for result in s.results.values():
        assert (result.by, result.degraded) == ("cloud", False)
        assert result.prediction.boxes == [Box(40, 40, 72, 72, 0.8, "thing"), Box(*SURE)]  # type: ignore[arg-type]
    await eventually(lambda: s.counts(s.edge).inference_number == len(pictures), 30)
    counts = s.counts(s.edge)
    assert (counts.upload_cloud_ratio, counts.lost) == (1, 0)
    assert counts.uploaded_bytes < 0.2 * sum(map(len, pictures))


@pytest.mark.slow
async def test_hard_crops_go_up_and_no_frame_is_lost_when_the_worker_is_killed(s: Site) -> None:
    graph = echo(s.folder / "map.onnx", FLOAT, ["n", 1, "h", "w"])
    page = np.zeros((16, 16 * len(SHADES), 3), np.uint8)
    for number, shade in enumerate(SHADES):
        page[4:12, 16 * number + 4 : 16 * number + 12] = shade
    options = SCRIPT | {
        "DETECTOR_URL": str(graph), "DETECTOR_SPEC": json.dumps(DETECTOR), "DEADLINE_MS": "60000",
        "DETECTOR": json.dumps({"name": "finder", "minScore": 0.0}),
    }  # fmt: skip
    pages = [encode_image(page)] * 20
    folder = s.folder / f"{s.cloud}-script"
    s.start_script("cloud", s.cloud, BIG, **SCRIPT)
    worker = s.start_script("edge", s.edge, SMALL, **options)
    await s.running(s.cloud, s.edge)
    await s.send(pages)
    await eventually((folder / "requested").exists, 30)
    worker.kill()
    assert not s.results
    (folder / "go").touch()
    s.start_script("edge", s.edge, SMALL, **options)
    await s.answered()
    for result in s.results.values():
        assert (result.by, result.hard, result.degraded) == ("cloud", True, False)
        assert [box.label for box in result.prediction.boxes or ()] == ["small", "small", "big", "big"]
        assert [box.x1 for box in result.prediction.boxes or ()] == [4, 20, 36, 52]
    await eventually(lambda: s.counts(s.edge).inference_number == len(pages) * len(SHADES), 30)
    counts = s.counts(s.edge)
    assert (counts.upload_cloud_ratio, counts.lost) == (0.5, 0)
