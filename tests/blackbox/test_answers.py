"""Each accepted frame gets exactly one result, and the result has all its fields."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from halimede.messages import Prediction
from tests.blackbox.models import EASY, HARD, POISON, big, onnx_spec, small, write_desired
from tests.blackbox.world import World
from tests.waiting import eventually

JSON_SMALL, JSON_BIG = onnx_spec("small", "other"), onnx_spec("big", "other")


async def test_an_easy_frame_gets_the_edges_answer(world: World) -> None:
    async with world.worker("edge", "e0", small()):
        result = await world.ask(EASY, sequence=3, captured_ns=7)
        assert (result.by, result.hard, result.degraded, result.reason) == ("edge", False, False, "")
        assert (result.label, result.score, result.edge) == ("small", 0.9, None)
        assert result.prediction == Prediction(label="small", score=0.9, probabilities=[0.9, 0.1])
        assert (result.service, result.camera, result.sequence, result.captured_ns) == ("svc", "cam0", 3, 7)
        assert (result.worker, result.node, result.tier, result.audit, result.mixed) == (
            "e0",
            "node-e0",
            "",
            False,
            False,
        )
        assert result.total_ms >= result.edge_ms > 0
        assert result.offload_ms == 0
        assert set(world.copies.values()) == {1}


async def test_a_hard_frame_gets_the_clouds_answer(world: World) -> None:
    async with world.worker("cloud", "c0", big()), world.worker("edge", "e0", small()):
        await world.knows("e0", "c0")
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
    small_file, big_file = world.folder / "small.json", world.folder / "big.json"
    write_desired(small_file, onnx_file, "v-small", spec=JSON_SMALL)
    write_desired(big_file, onnx_file, "v-big", spec=JSON_BIG)
    async with (
        world.worker("cloud", "c0", MODEL_FILE=str(big_file), MODEL_SPEC=""),
        world.worker("edge", "e0", MODEL_FILE=str(small_file), MODEL_SPEC=""),
    ):
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
    async with world.worker("cloud", "c0", big()), world.worker("edge", "e0", small(fails_at={POISON})):
        await world.knows("e0", "c0")
        result = await world.ask(POISON)
        assert (result.by, result.hard, result.label, result.edge) == ("cloud", True, "big", None)


async def test_what_no_model_can_answer_gets_a_result_that_says_so(world: World) -> None:
    edge = world.worker("edge", "e0", small(fails_at={POISON}))
    async with world.worker("cloud", "c0", big(fails_at={POISON})), edge:
        await world.knows("e0", "c0")
        result = await world.ask(POISON)
        assert (result.by, result.degraded, result.reason) == ("edge", True, "error")
        assert result.prediction == Prediction()
        assert (await world.ask(EASY)).label == "small"


async def test_results_of_easy_frames_keep_the_order_of_the_camera(world: World) -> None:
    async with world.worker("edge", "e0", small()):
        sent = [await world.send(EASY, sequence=number) for number in range(60)]
        results = await world.answered(sent)
        assert [result.sequence for result in results] == list(range(60))
        assert list(world.results) == sent


async def test_a_mix_of_frames_gets_one_result_each(world: World) -> None:
    async with world.worker("cloud", "c0", big()), world.worker("edge", "e0", small()):
        await world.knows("e0", "c0")
        values = [HARD if number % 5 == 0 else EASY for number in range(100)]
        results = await world.answered([await world.send(value) for value in values])
        assert [result.hard for result in results] == [value == HARD for value in values]
        assert {result.by for result in results if not result.hard} == {"edge"}
        assert {result.by for result in results if not result.degraded and result.hard} == {"cloud"}
        assert {result.reason for result in results if result.degraded} <= {"window-full", "shed"}


async def test_pictures_of_a_folder_are_answered_once_each_in_the_order_of_their_names(world: World) -> None:
    folder = world.folder / "pictures"
    folder.mkdir()
    for number in range(20):
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(folder / f"{number:02}.png")
    model = small()
    async with world.worker("edge", "e0", model, SOURCE=f'{{"path": "{folder}"}}'):
        await eventually(lambda: len(world.results) == 20)
        Image.fromarray(np.full((8, 8), HARD, np.uint8)).save(folder / "20.png")
        await eventually(lambda: len(world.results) == 21)
        results = list(world.results.values())
        assert {result.camera for result in results} == {"pictures"}
        assert model.seen == [*range(20), HARD]
        assert [result.hard for result in results] == [False] * 20 + [True]
    async with world.worker("edge", "e0", small(), SOURCE=f'{{"path": "{folder}"}}'):
        Image.fromarray(np.full((8, 8), EASY, np.uint8)).save(folder / "21.png")
        await eventually(lambda: len(world.results) == 22)
    assert set(world.copies.values()) == {1}


async def test_workers_of_one_service_share_the_frames_of_a_camera(world: World) -> None:
    async with world.worker("edge", "e0", small()), world.worker("edge", "e1", small()):
        results = await world.answered([await world.send(EASY) for _ in range(40)])
        assert {result.worker for result in results} == {"e0", "e1"}
