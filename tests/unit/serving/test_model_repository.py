"""From one version to the next with real models: what answers meanwhile, and what is told when it fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from halimede.errors import InvalidFieldError
from halimede.messages.file_facts import Trial, TrialReason
from halimede.models.desired_state import Desired, DesiredModel
from halimede.models.rollout import CANARY_FAILED
from halimede.serving import model_repository as room
from halimede.serving.errors import ModelFailedError, ModelNotFoundError, ModelUnavailableError
from halimede.serving.model_repository import Repository
from halimede.serving.tensors import Tensor
from tests.graphs import FLOAT, write_graph
from tests.lite_files import write_weigher
from tests.serving_world import adds, floats, repository, wish
from tests.simulated import eventually


async def answer(models: Repository, name: str = "m", version: str = "") -> float:
    """Return what 0 becomes."""
    _, (found,) = await models.infer(name, version, [floats([[0, 0]])])
    return float(found.array[0, 0])


def only(*wishes: DesiredModel) -> Desired:
    return Desired(models=list(wishes))


async def test_models_come_change_and_go_as_the_wish_says(tmp_path: Path) -> None:
    one, two = adds(tmp_path / "1.onnx", 1), adds(tmp_path / "2.onnx", 2)
    async with repository() as models:
        assert models.not_ready()
        await models.apply(only(wish(one, "a", "1"), wish(two, "b", "1")))
        assert (await answer(models, "a"), await answer(models, "b"), models.not_ready()) == (1, 2, "")
        before = models.get("a").rollout.current
        await models.apply(only(wish(one, "a", "3"), wish(one, "b", "2")))
        assert models.get("a").rollout.current is before, "the same content was opened again"
        assert (before.version, await answer(models, "a", "3")) == ("3", 1)
        assert (await answer(models, "b"), models.in_use()["b"].version) == (1, "2")
        await models.apply(only(wish(one, "a", "3")))
        with pytest.raises(ModelNotFoundError):
            await answer(models, "b")


async def test_a_folder_is_identified_by_all_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "variables").mkdir(parents=True)
    for name, content in (("saved_model.pb", b"graph"), ("variables/index", b"1"), ("variables/data", b"2")):
        (folder / name).write_bytes(content)
    first = room._digest(folder)
    (folder / "variables/data").write_bytes(b"3")
    changed = room._digest(folder)
    (folder / "variables/data").rename(folder / "variables/other")
    assert len({first, changed, room._digest(folder)}) == 3


async def test_a_lite_model_takes_the_place_of_an_onnx_model(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    write_weigher(tmp_path / "folder" / "net.tflite")
    async with repository() as models:
        await models.apply(only(wish(adds(tmp_path / "1.onnx", 1), version="1")))
        await models.apply(only(wish(tmp_path / "folder", version="2", spec={"format": "tflite"})))
        assert models.in_use()["m"].version == "2"
        _, (found,) = await models.infer("m", "", [floats([[1, 1, 1, 1]])])
        assert found.array.argmax() == 1


async def test_requests_under_way_are_answered_by_the_version_that_they_met(tmp_path: Path) -> None:
    async with repository() as models:
        await models.apply(only(wish(adds(tmp_path / "1.onnx", 1), version="1")))
        old = models.get("m").rollout.current
        assert old.loaded._engine
        old.loaded._engine.policy = None  # it goes through its thread
        met = [asyncio.ensure_future(answer(models)) for _ in range(50)]
        await asyncio.sleep(0)
        await models.apply(only(wish(adds(tmp_path / "2.onnx", 2), version="2")))
        assert await asyncio.gather(*met) == [1] * 50
        assert await answer(models) == 2
        await eventually(lambda: old.loaded._tensors is None or old.loaded._tensors._session is None)


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x08\x12" * 1000])
async def test_a_version_that_is_no_model_changes_nothing_but_the_condition(tmp_path: Path, content: bytes) -> None:
    good, bad = adds(tmp_path / "1.onnx", 1), tmp_path / "2.onnx"
    bad.write_bytes(content)
    async with repository(tried=True) as models:
        await models.apply(only(wish(good, version="1")))
        await models.apply(only(wish(bad, version="2")))
        said = models.in_use()["m"]
        assert (said.version, said.reason, said.mark) == ("1", TrialReason.INVALID, wish(bad, version="2").fingerprint)
        assert said.message
        assert said.refused != said.digest
        assert (await answer(models), models.not_ready()) == (1, "")
        await models.apply(only(wish(good, version="1")))
        assert models.in_use()["m"].reason == ""


async def test_a_file_that_is_not_there_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "RETRY_S", 0.05)
    told: list[str] = []
    async with repository() as models:
        models.on_retry = lambda: told.append(models.not_ready())
        await models.apply(only(wish(tmp_path / "late.onnx")))
        assert models.in_use()["m"].reason == room.UNREADABLE
        with pytest.raises(ModelUnavailableError, match="not ready"):
            await answer(models)
        adds(tmp_path / "late.onnx", 3)
        await eventually(lambda: not models.not_ready())
        assert await answer(models) == 3
        await eventually(lambda: told and told[-1] == "")


async def test_a_version_that_breaks_a_library_changes_nothing_else(tmp_path: Path, monkeypatch: Any) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("a defect of a library")

    async with repository() as models:
        await models.apply(only(wish(adds(tmp_path / "1.onnx", 1), version="1")))
        monkeypatch.setattr(room, "open_loaded", breaks)
        await models.apply(only(wish(adds(tmp_path / "2.onnx", 2), version="2")))
        assert (await answer(models), models.in_use()["m"].reason) == (1, TrialReason.INVALID)


async def test_a_model_that_does_not_stand_its_trial_is_never_opened_here(tmp_path: Path) -> None:
    async def crashes(_: Path, __: str) -> Trial:
        return Trial(reason=TrialReason.CRASHED, message="the model ended its process")

    async with Repository(attempt=crashes) as models:
        await models.apply(only(wish(adds(tmp_path / "1.onnx", 1))))
        assert models.in_use()["m"].reason == TrialReason.CRASHED
        await models.apply(only(wish(adds(tmp_path / "1.onnx", 1), tried=True)))
        assert models.in_use()["m"].reason == TrialReason.CRASHED, "what was refused is the same content"
        await models.apply(only(wish(adds(tmp_path / "2.onnx", 2), tried=True)))
        assert await answer(models) == 2


async def test_a_canary_answers_its_share_and_then_all(tmp_path: Path) -> None:
    one, two = adds(tmp_path / "1.onnx", 1), adds(tmp_path / "2.onnx", 2)
    async with repository() as models:
        await models.apply(only(wish(one, version="1")))
        await models.apply(only(wish(two, version="2", percent=25)))
        said = models.in_use()["m"]
        assert (said.version, said.canary_version) == ("1", "2")
        answers = [await answer(models) for _ in range(100)]
        assert (answers.count(1), answers.count(2)) == (75, 25)
        canary = models.get("m").rollout.canary
        await models.apply(only(wish(two, version="2")))
        assert models.get("m").rollout.current is canary, "it was opened again"
        assert await answer(models) == 2


async def test_a_canary_that_fails_where_its_predecessor_does_not_costs_no_request(tmp_path: Path) -> None:
    ints = (TensorProto.INT64, ["N"])

    def table(path: Path, rows: int) -> Path:
        values = {"t": np.arange(rows, dtype=np.float32)}
        return write_graph(path, [("Gather", ["t", "i"], ["y"], {})], {"i": ints}, {"y": (FLOAT, ["N"])}, values)

    async with repository() as models:
        await models.apply(only(wish(table(tmp_path / "1.onnx", 10), version="1")))
        await models.apply(only(wish(table(tmp_path / "2.onnx", 2), version="2", percent=50)))
        for _ in range(20):
            _, (found,) = await models.infer("m", "", [Tensor("i", "INT64", np.array([7]))])
            assert found.array.tolist() == [7]
        said = models.in_use()["m"]
        assert (said.version, said.canary_version, said.reason) == ("1", "", CANARY_FAILED)
        with pytest.raises(ModelFailedError):  # what both fail on is the request's own failure
            await models.infer("m", "", [Tensor("i", "INT64", np.array([70]))])


async def test_a_wish_that_contradicts_itself_is_refused_whole(tmp_path: Path) -> None:
    one = adds(tmp_path / "1.onnx", 1)
    async with repository() as models:
        with pytest.raises(InvalidFieldError, match="name each model once"):
            await models.apply(only(wish(one, "a"), wish(one, "a")))
        await models.apply(only(wish(one, spec={"labels": 7})))
        assert "spec.labels" in models.in_use()["m"].message


async def test_a_model_of_several_inputs_stands_its_trial(tmp_path: Path) -> None:
    rows = (FLOAT, ["N", 2])
    path = write_graph(tmp_path / "m.onnx", [("Add", ["a", "b"], ["y"], {})], {"a": rows, "b": rows}, {"y": rows})
    async with repository(tried=True) as models:
        await models.apply(only(wish(path)))
        assert models.in_use()["m"].reason == ""
        _, (found,) = await models.infer("m", "", [floats([[1, 2]], "a"), floats([[3, 4]], "b")])
        assert found.array.tolist() == [[4, 6]]
