"""Workers as they run: what goes up is written as the service says, and the answer is one of the frame as it came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.frames import new_frame
from halimede.messages import Box, Result
from tests.simulated import eventually
from tests.unit.worker.test_tiers import gate
from tests.unit.worker.world import World, world

pytestmark = pytest.mark.simulated

SIDE = 120
#: by it, what scores below 0.7 is hard
RULE: dict[str, Any] = {"hem_name": "Threshold", "hem_parameters": {"threshold": "0.7"}}


class Unsure:
    """Finds the whole of any picture, but is not sure of it."""

    def predict(self, data: Any) -> dict[str, Any]:
        height, width = np.asarray(data).shape[:2]
        return {"label": "small", "boxes": [[0, 0, width, height, 0.5, "thing"]]}


class Finds:
    """Finds the left half of any picture, and remembers what it was asked about."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def predict(self, data: Any) -> dict[str, Any]:
        pixels = np.asarray(data)
        self.seen.append(pixels.shape)
        height, width = pixels.shape[:2]
        return {"label": "big", "boxes": [[0, 0, width / 2, height, 0.9, "thing"]]}


async def ask(w: World, image: Any, **options: Any) -> Result:
    return await w.answer(await w.show(new_frame(image, **options)))


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)


def boxes(result: Result) -> list[Box]:
    return result.prediction.boxes or []


async def test_what_goes_up_has_no_more_bytes_than_it_may_and_boxes_are_in_the_frames_pixels(tmp_path: Path) -> None:
    big = Finds()
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c0", big),
        w.worker("edge", "e0", Unsure, upload_max_bytes=2000, **RULE),
    ):
        result = await ask(w, noise(SIDE, SIDE, 3))
        assert (result.by, result.label, result.degraded) == ("cloud", "big", False)
        assert boxes(result) == [Box(0, 0, pytest.approx(SIDE / 2), pytest.approx(SIDE), 0.9, "thing")]
        assert result.edge.boxes == [Box(0, 0, SIDE, SIDE, 0.5, "thing")]
        assert max(big.seen[0]) < SIDE
        await eventually(lambda: w.info("e0").inference_number == 1)
        assert 1000 < w.info("e0").uploaded_bytes <= 2000
        small = await ask(w, noise(20, 20))
        assert small.by == "cloud"
        assert big.seen[-1] == (20, 20)
        await eventually(lambda: w.info("e0").inference_number == 2)
        assert w.info("e0").uploaded_bytes <= 2400


async def test_what_cannot_be_written_so_is_answered_at_the_edge_with_the_reason(w: World) -> None:
    options: dict[str, Any] = {"upload_encoding": "jpeg", "target_upload_ratio": 0.5, **RULE}
    async with w.worker("cloud", "c0", Finds()), w.worker("edge", "e0", Unsure, **options):
        result = await ask(w, np.zeros((8, 8), np.float32))
        assert (result.by, result.degraded, result.reason) == ("edge", True, "no-picture")
        assert (await ask(w, noise(8, 8))).by == "cloud"  # and the budget is still there
        await eventually(lambda: w.info("e0").inference_number == 2)
        assert w.info("e0").degraded == 1


async def test_audits_are_written_like_any_upload_and_compared_in_the_frames_pixels(w: World) -> None:
    options: dict[str, Any] = {"upload_max_bytes": 2000, "audit_share": 1.0, **RULE}
    async with w.worker("cloud", "c0", Finds()), w.worker("edge", "e0", Finds(), **options):
        assert (await ask(w, noise(SIDE, SIDE, 3))).by == "edge"
        await eventually(lambda: w.info("e0").audited == 1)
        assert w.info("e0").audit_agreed == 1
        assert w.info("e0").uploaded_bytes <= 2000


async def test_a_tier_writes_what_it_passes_on_and_boxes_come_back_through_both(tmp_path: Path) -> None:
    big = Finds()
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c0", big, tier="cloud"),
        gate(w, upload_max_bytes=1500),
        w.worker("edge", "e0", Unsure, tier="edge", next_tier="gate", upload_max_bytes=6000, **RULE),
    ):
        result = await ask(w, np.full((SIDE, SIDE, 3), 255, np.uint8) - noise(SIDE, SIDE, 3) // 8)
        assert (result.tier, result.worker) == ("cloud", "c0")
        assert boxes(result) == [Box(0, 0, pytest.approx(SIDE / 2), pytest.approx(SIDE), 0.9, "thing")]
        await eventually(lambda: w.info("g0").deferred == 1 and w.info("e0").inference_number == 1)
        assert w.info("g0").uploaded_bytes <= 1500 < w.info("e0").uploaded_bytes <= 6000


class Spots:
    """Finds two objects, and is sure of one."""

    def predict(self, data: Any) -> dict[str, Any]:
        return {"label": "small", "boxes": [[48, 48, 64, 64, 0.5, "thing"], [8, 8, 24, 24, 0.9, "thing"]]}


class Grey:
    """Finds all that is not of one colour, at least a tenth of the picture, and remembers what it was asked about."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def predict(self, data: Any) -> dict[str, Any]:
        pixels = np.asarray(data)
        self.seen.append(pixels)
        rows, columns = np.nonzero(pixels != pixels[-1, -1])
        return {"label": "big", "boxes": [[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1, 0.8, "thing"]]}


REGIONS: dict[str, Any] = {"upload": "regions", "hem_name": "CloudOnly", "hem_parameters": {}}


async def test_regions_of_a_hard_frame_go_up_and_both_answers_are_one(w: World) -> None:
    big, image = Grey(), noise(SIDE, SIDE)
    async with w.worker("cloud", "c0", big), w.worker("edge", "e0", Spots, **REGIONS):
        result = await ask(w, image, encoding="png")
        assert (result.by, result.degraded) == ("cloud", False)
        assert boxes(result) == [Box(40, 40, 72, 72, 0.8, "thing"), Box(8, 8, 24, 24, 0.9, "thing")]
        assert result.edge.boxes == [Box(48, 48, 64, 64, 0.5, "thing"), Box(8, 8, 24, 24, 0.9, "thing")]
        (seen,) = big.seen
        assert np.array_equal(seen[40:72, 40:72], image[40:72, 40:72])
        assert len(np.unique(seen[:40])) == 1
        await eventually(lambda: w.info("e0").inference_number == 1)
        assert w.info("e0").uploaded_bytes < 0.2 * SIDE * SIDE


async def test_a_trace_has_the_number_of_regions_and_their_bytes(w: World) -> None:
    async with w.worker("cloud", "c0", Grey), w.worker("edge", "e0", Spots, **REGIONS):
        result = await ask(w, noise(SIDE, SIDE), encoding="png")
        replies = await w.trace(result.id)
        (step,) = (span for reply in replies for span in reply.spans if span.name == "offload.regions")
        await eventually(lambda: w.info("e0").inference_number == 1)
        assert step.attributes == {"count": 1, "bytes": w.info("e0").uploaded_bytes}


async def test_an_audit_compares_answers_to_the_whole_frame(w: World) -> None:
    big, image = Grey(), noise(SIDE, SIDE)
    rule = REGIONS | {"hem_name": "EdgeOnly", "audit_share": 1.0}
    async with w.worker("cloud", "c0", big), w.worker("edge", "e0", Spots, **rule):
        result = await ask(w, image, encoding="png")
        assert (result.by, result.audit) == ("edge", True)
        await eventually(lambda: bool(big.seen))
        assert np.array_equal(big.seen[0], image)


async def test_frames_without_a_region_and_samples_that_are_no_pictures_go_up_whole(w: World) -> None:
    big = Finds()
    async with w.worker("cloud", "c0", big), w.worker("edge", "e0", Unsure, **REGIONS):
        await ask(w, noise(SIDE, SIDE, 3))
        await ask(w, np.zeros((5, 7), np.float32))
        assert big.seen == [(SIDE, SIDE, 3), (5, 7)]


async def test_an_answer_to_regions_without_boxes_is_no_answer_and_its_upload_counts(
    w: World, capsys: pytest.CaptureFixture[str]
) -> None:
    class Labels:
        def predict(self, data: Any) -> dict[str, Any]:
            return {"label": "big"}

    async with w.worker("cloud", "c0", Labels), w.worker("edge", "e0", Spots, **REGIONS):
        result = await ask(w, noise(SIDE, SIDE), encoding="png")
        assert (result.by, result.degraded, result.reason) == ("edge", True, "error")
        await eventually(lambda: w.info("e0").inference_number == 1)
        assert (w.info("e0").upload_cloud_ratio, w.info("e0").degraded) == (1, 1)
        assert w.info("e0").uploaded_bytes > 0
    assert "the answer to regions of a frame has no boxes: set upload to frame" in capsys.readouterr().out
