"""Each accepted frame gets exactly one result, and the result has all its fields."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halimede.messages import Prediction
from tests.blackbox.models import EASY, HARD, POISON, big, model_file, small
from tests.blackbox.world import World
from tests.waiting import eventually


async def test_an_easy_frame_gets_the_edges_answer(world: World) -> None:
    async with world.worker("edge", "e0", small()):
        result = await world.ask(EASY, sequence=3, captured_ns=7)
        assert (result.by, result.hard, result.degraded, result.reason) == ("edge", False, False, "")
        assert (result.label, result.score, result.edge) == ("small", 0.9, None)
        assert result.prediction == Prediction(label="small", score=0.9, probabilities=[0.9, 0.1])
        assert (result.service, result.camera, result.sequence, result.captured_ns) == ("svc", "cam0", 3, 7)
        assert (result.worker, result.node, result.tier) == ("e0", "node-e0", "")
        assert not result.audit
        assert not result.mixed
        assert result.total_ms >= result.edge_ms > 0
        assert result.offload_ms == 0
        assert set(world.copies.values()) == {1}


async def test_a_hard_frame_gets_the_clouds_answer(world: World) -> None:
    async with world.pair(big(), small()):
        result = await world.ask(HARD)
        assert (result.by, result.hard, result.degraded, result.reason) == ("cloud", True, False, "")
        assert (result.label, result.score, result.worker, result.node) == ("big", 0.9, "c0", "node-e0")
        assert result.edge == Prediction(label="small", score=0.55, probabilities=[0.55, 0.45])
        assert result.hardness is not None
        assert result.cut is not None
        assert result.hardness >= result.cut
        assert result.total_ms >= result.offload_ms > 0
        assert result.edge_ms > 0
        assert set(world.copies.values()) == {1}


async def test_results_name_the_version_of_the_model_that_answered(world: World, onnx_file: Path) -> None:
    cloud = world.worker("cloud", "c0", **model_file(world.folder, onnx_file, "big"))
    async with cloud, world.worker("edge", "e0", **model_file(world.folder, onnx_file, "small")):
        await world.knows("e0", "c0")
        easy, hard = await world.ask(EASY), await world.ask(HARD)
        assert (easy.by, easy.label, easy.model) == ("edge", "small", "v-small")
        assert (hard.by, hard.label, hard.model) == ("cloud", "big", "v-big")
        assert hard.edge is not None
        assert hard.edge.label == "small"


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_bare_picture_is_answered(world: World, form: str, qos: int) -> None:
    out = io.BytesIO()
    Image.fromarray(np.full((8, 8), EASY, np.uint8)).save(out, format=form)
    async with world.worker("edge", "e0", small()):
        await world.ask(EASY)  # the cameras are subscribed to
        await world.publish(out.getvalue(), qos=qos)
        await eventually(lambda: len(world.results) == 2)
        result = list(world.results.values())[1]
        assert (result.by, result.label, result.camera) == ("edge", "small", "cam0")


async def test_what_the_small_model_fails_on_is_answered_by_the_cloud(world: World) -> None:
    async with world.pair(big(), small(fails_at={POISON})):
        result = await world.ask(POISON)
        assert (result.by, result.hard, result.label, result.edge) == ("cloud", True, "big", None)


async def test_results_of_easy_frames_keep_the_order_of_the_camera(world: World) -> None:
    async with world.worker("edge", "e0", small()):
        sent = [await world.send(EASY, sequence=number) for number in range(60)]
        results = await world.answered(sent)
        assert [result.sequence for result in results] == list(range(60))
        assert list(world.results) == sent


async def test_workers_of_one_service_share_the_frames_of_a_camera(world: World) -> None:
    async with world.worker("edge", "e0", small()), world.worker("edge", "e1", small()):
        results = await world.answered([await world.send(EASY) for _ in range(40)])
        assert {result.worker for result in results} == {"e0", "e1"}
