"""Glimpses of hard samples: few, of what was answered, and never in the way of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from halimede import topics
from halimede.errors import DisconnectedError
from halimede.frames import new_frame, new_id
from halimede.messages import HardSample
from halimede.worker.preview_publisher import BYTES_PER_S, MAX_PERIOD_S
from halimede.worker.settings import read
from tests.unit.worker.test_settings import EDGE
from tests.unit.worker.world import EASY, HARD, World

pytestmark = pytest.mark.simulated


@pytest.fixture
async def previews(w: World) -> list[HardSample]:
    return await w.hears(topics.HARD_SAMPLE.filter())


async def send(w: World, count: int, period_s: float) -> None:
    for _ in range(count):
        await w.answer(await w.send(HARD))
        await asyncio.sleep(period_s)


async def test_one_a_second_with_both_answers_and_none_of_easy_samples(pair: World, previews: list[HardSample]) -> None:
    await pair.answer(await pair.send(EASY))
    assert not previews
    await send(pair, 25, 0.1)
    assert len(previews) == 3
    first = previews[0]
    result = pair.results[first.id.hex()]
    assert (first.by, first.label, first.edge_label) == ("cloud", "big", "small")
    assert (first.camera, first.worker, first.node) == (result.camera, "e0", "node-e0")
    assert first.data.startswith(b"\x89PNG")


async def test_a_degraded_answer_says_why(lone_edge: World, previews: list[HardSample]) -> None:
    await send(lone_edge, 1, 0.1)
    (sample,) = previews
    assert (sample.by, sample.degraded, sample.reason) == ("edge", True, "no-cloud")
    assert sample.label == sample.edge_label == "small"


async def test_without_a_connection_there_is_none_and_results_wait_for_no_preview(
    lone_edge: World, previews: list[HardSample]
) -> None:
    await lone_edge.send(HARD)
    lone_edge.buses["worker.default.e0"].cut()
    await asyncio.sleep(3)
    lone_edge.buses["worker.default.e0"].heal()
    await asyncio.sleep(10)
    assert len(lone_edge.results) == 1
    assert len(previews) <= 1


async def test_where_they_take_long_there_are_fewer_and_where_they_do_not_again_as_many(
    lone_edge: World, previews: list[HardSample], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, takes_s = lone_edge.buses["worker.default.e0"], 2.0
    publish = bus.publish

    async def slowly(address: Any, body: Any, **more: Any) -> bool:
        if isinstance(body, HardSample):
            await asyncio.sleep(takes_s)
        return await publish(address, body, **more)

    monkeypatch.setattr(bus, "publish", slowly)
    await send(lone_edge, 60, 1)
    assert len(previews) == 2
    takes_s = 0.0
    await asyncio.sleep(MAX_PERIOD_S)
    await send(lone_edge, 10, 1)
    assert len(previews) > 10


async def test_one_that_the_bus_does_not_take_is_left_out_and_the_next_one_is_sent(
    lone_edge: World, previews: list[HardSample], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = lone_edge.buses["worker.default.e0"]
    publish = bus.publish
    refused: list[HardSample] = []

    async def refuse_first(address: Any, body: Any, **more: Any) -> bool:
        if isinstance(body, HardSample) and not refused:
            refused.append(body)
            raise DisconnectedError("the broker is gone")
        return await publish(address, body, **more)

    monkeypatch.setattr(bus, "publish", refuse_first)
    await send(lone_edge, 2, 2)
    assert len(refused) == len(previews) == 1


async def test_large_pictures_cost_no_more_bytes_a_second_than_small_ones(
    lone_edge: World, previews: list[HardSample]
) -> None:
    smooth = np.random.default_rng(0).integers(0, 256, (24, 32), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(smooth).resize((640, 480))).copy()
    pixels[0, 0] = HARD
    large = new_frame(pixels, encoding="png")
    for _ in range(30):
        await lone_edge.show(msgspec.structs.replace(large, id=new_id()))
        await asyncio.sleep(1)
    size = len(previews[0].data)
    assert size > 2 * BYTES_PER_S
    assert 2 <= len(previews) <= 30 * BYTES_PER_S / size + 2


async def test_they_can_be_switched_off(w: World, previews: list[HardSample]) -> None:
    async with w.worker("edge", "e0", hard_samples=False):
        await send(w, 1, 2)
        assert not previews
    assert read("edge", EDGE).hard_samples
    assert not read("edge", {**EDGE, "HARD_SAMPLES": "off"}).hard_samples
