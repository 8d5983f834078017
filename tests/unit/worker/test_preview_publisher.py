"""Glimpses of hard samples: few, of what was answered, and never in the way of an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from halimede import topics
from halimede.bus import Delivery
from halimede.frames import new_frame, new_id, pack
from halimede.messages import HardSample
from halimede.worker.preview_publisher import BYTES_PER_S, MOST_S
from halimede.worker.settings import read
from tests.simulated import simulated
from tests.unit.worker.world import EASY, HARD, World, world

ENVIRONMENT = {
    "WORKER_NAME": "e", "NODE_NAME": "n", "SERVICE_NAME": "s", "HEM_NAME": "CloudOnly", "ESTIMATOR": "m:C",
}  # fmt: skip


async def watch(w: World) -> list[HardSample]:
    seen: list[HardSample] = []

    async def preview(delivery: Delivery[HardSample]) -> None:
        seen.append(delivery.body)

    await w.camera.subscribe(topics.HARD_SAMPLE.filter(), preview)
    return seen


@simulated
async def test_one_a_second_with_both_answers_and_none_of_easy_samples(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("cloud", "c"), w.worker("edge", "e"):
        seen = await watch(w)
        await w.answer(await w.send(EASY))
        assert not seen
        for _ in range(25):
            await w.answer(await w.send(HARD))
            await asyncio.sleep(0.1)
        assert len(seen) == 3
        first = seen[0]
        result = w.results[first.id.hex()]
        assert (first.by, first.label, first.edge_label) == ("cloud", "big", "small")
        assert (first.camera, first.worker, first.node) == (result.camera, "e", "node-e")
        assert first.data.startswith(b"\x89PNG")


@simulated
async def test_a_degraded_answer_says_why(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e"):
        seen = await watch(w)
        await w.answer(await w.send(HARD))
        await asyncio.sleep(0.1)
        (sample,) = seen
        assert (sample.by, sample.degraded, sample.reason) == ("edge", True, "no-cloud")
        assert sample.label == sample.edge_label == "small"


@simulated
async def test_without_a_connection_there_is_none_and_results_wait_for_no_preview(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e"):
        seen = await watch(w)
        await w.send(HARD)
        w.buses["worker.default.e"].cut()
        await asyncio.sleep(3)
        w.buses["worker.default.e"].heal()
        await asyncio.sleep(10)
        assert len(w.results) == 1
        assert len(seen) <= 1


@simulated
async def test_where_they_take_long_there_are_fewer_and_where_they_do_not_again_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e"):
        seen = await watch(w)
        bus, takes_s = w.buses["worker.default.e"], 2.0
        publish = bus.publish

        async def slowly(address: Any, body: Any, **more: Any) -> bool:
            if isinstance(body, HardSample):
                await asyncio.sleep(takes_s)
            return await publish(address, body, **more)

        monkeypatch.setattr(bus, "publish", slowly)
        for _ in range(60):
            await w.answer(await w.send(HARD))
            await asyncio.sleep(1)
        assert len(seen) == 2
        takes_s = 0.0
        await asyncio.sleep(MOST_S)
        for _ in range(10):
            await w.answer(await w.send(HARD))
            await asyncio.sleep(1)
        assert len(seen) > 10


@simulated
async def test_large_pictures_cost_no_more_bytes_a_second_than_small_ones(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e"):
        seen = await watch(w)
        smooth = np.random.default_rng(0).integers(0, 256, (24, 32), dtype=np.uint8)
        pixels = np.asarray(Image.fromarray(smooth).resize((640, 480))).copy()
        pixels[0, 0] = HARD
        large = new_frame(pixels, encoding="png")
        address = topics.CAMERA_FRAME.at(ns="default", camera="cam0")
        for _ in range(30):
            await w.camera.publish(address, pack(msgspec.structs.replace(large, id=new_id())))
            await asyncio.sleep(1)
        size = len(seen[0].data)
        assert size > 2 * BYTES_PER_S
        assert 2 <= len(seen) <= 30 * BYTES_PER_S / size + 2


@simulated
async def test_they_can_be_switched_off(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e", hard_samples=False):
        seen = await watch(w)
        await w.answer(await w.send(HARD))
        await asyncio.sleep(2)
        assert not seen
    assert read("edge", ENVIRONMENT).hard_samples
    assert not read("edge", {**ENVIRONMENT, "HARD_SAMPLES": "off"}).hard_samples
