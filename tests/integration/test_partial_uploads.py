"""Worker processes over a real Mosquitto: the regions of hard frames go up in place of whole frames."""

from __future__ import annotations

import numpy as np
import pytest

from halimede.frames import encode_image
from halimede.messages import Box
from tests.integration.workers import Site
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
