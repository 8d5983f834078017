"""What a user's model must not return has a bounded outcome: the frame is answered, and the worker goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from halimede import topics
from halimede.messages import Box
from tests.unit.worker.world import HARD, World

pytestmark = pytest.mark.simulated

MARKUP = "<script>alert(1)</script>"
NAN = float("nan")


class Fixed:
    """Answers the same to each sample."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def predict(self, _: Any) -> Any:
        return self.answer


REFUSED = {
    "no list": {"boxes": 5},
    "a box with NaN": [[0, 0, NAN, 1, 0.5, 0]],
    "a score of NaN": {"label": "x", "score": NAN},
    "a line with a score of NaN": {"lines": [{"text": "x", "score": NAN}]},
    "more boxes than a message has": np.tile([[0, 0, 1, 1, 0.5, 0]], (10_001, 1)),
    "a label of 10 kB": {"label": MARKUP * 400},
    "a line of 10 kB": {"lines": [MARKUP * 400]},
    "a box's label of 10 kB": [[0, 0, 1, 1, 0.5, MARKUP * 400]],
    "an endless landmark": {"boxes": [], "landmarks": [[[0, float("inf")]]]},
}


@pytest.mark.parametrize("answer", REFUSED.values(), ids=REFUSED)
async def test_an_answer_that_is_none_makes_the_frame_hard_and_the_worker_goes_on(w: World, answer: Any) -> None:
    small = Fixed(answer)
    async with w.worker("cloud", "c"), w.worker("edge", "e", small, hem_name="IBT", hem_parameters={}):
        broken = await w.answer(await w.send(HARD))
        assert (broken.by, broken.label, broken.reason) == ("cloud", "big", "edge-failed")
        small.answer = []
        await w.answer(await w.send(HARD))
        await asyncio.sleep(3)  # a report of the worker
        assert w.status("e") == "running"
        assert w.info("e").model_errors == 1


async def test_boxes_outside_of_the_frame_and_ten_thousand_of_them_are_an_answer_with_a_bounded_preview(
    w: World,
) -> None:
    small = Fixed([[-9e9, -9e9, -1, -1, 0.125, "outside"]] * 9_999 + [[0, 0, 2, 4, 0.25, MARKUP]])
    big = Fixed({"boxes": [[-4, -4, 8, 2, 1.0, 0]], "lines": [MARKUP * 10]})
    async with w.worker("cloud", "c", big), w.worker("edge", "e", small, hem_name="CloudOnly", hem_parameters={}):
        previews = await w.hears(topics.HARD_SAMPLE.filter())
        result = await w.answer(await w.send(HARD, camera="cam0"))
        assert len(result.edge.boxes) == 10_000
        assert result.prediction.boxes == [Box(-4, -4, 8, 2, 1.0, 0)]
        await asyncio.sleep(1)
    (shown,) = previews
    assert (shown.edge_count, shown.count) == (10_000, 1)
    assert shown.edge_boxes == [Box(0, 0, 0.5, 1, 0.25, MARKUP)]
    assert shown.boxes == [Box(0, 0, 1, 0.5, 1.0, "0")]
    assert shown.label == MARKUP * 10
    assert (shown.total_ms, shown.captured_ns) == (result.total_ms, result.captured_ns)


async def test_the_name_of_a_file_stands_in_the_result_and_the_preview_without_its_folder(pair: World) -> None:
    previews = await pair.hears(topics.HARD_SAMPLE.filter())
    result = await pair.answer(await pair.send(HARD, file="/home/anna/\u202egpj.\n<b>.png"))
    assert result.file == "\u202egpj.\n<b>.png"
    await asyncio.sleep(1)
    (shown,) = previews
    assert (shown.file, shown.hardness, shown.cut) == (result.file, result.hardness, result.cut)
    assert shown.hardness is not None
    assert (await pair.answer(await pair.send(HARD))).file == ""
