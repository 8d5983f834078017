"""A worker that is told another model takes it while it runs, or goes on with the one that it has and says why."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.api.model import ModelSpec, ModelVersion
from halimede.messages import ModelInUse
from halimede.models.desired_state import Desired, DesiredModel, write
from halimede.worker.model_reload import desired_of
from tests.simulated import eventually, simulated
from tests.unit.worker.world import EASY, HARD, World, world


class Named:
    """Answers with the content of its file. It is sure of dark pictures only, and cannot load a file that is bad."""

    open = 0

    def load(self, model_url: str) -> None:
        self.label = Path(model_url).read_text()
        if self.label == "bad":
            raise RuntimeError("this is no model")
        Named.open += 1

    def predict(self, data: Any) -> dict[str, Any]:
        if self.label == "flaky":
            raise RuntimeError("it fails at everything")
        sure = int(np.asarray(data).flat[0]) < 100
        return {"label": self.label, "probabilities": [0.9, 0.1] if sure else [0.55, 0.45]}

    def close(self) -> None:
        Named.open -= 1


class Told:
    """What one worker is told."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.file = folder, folder / name / "model.json"

    def wish(self, label: str, percent: int = 100) -> DesiredModel:
        path = self.folder / f"{label}.model"
        path.write_text(label)
        return DesiredModel(
            name="m", path=str(path), version=f"v-{label}", digest=label * 8, spec={"format": "python"},
            canary_percent=percent,
        )  # fmt: skip

    def tell(self, label: str, percent: int = 100) -> DesiredModel:
        wish = self.wish(label, percent)
        write(self.file, Desired(models=[wish]))
        return wish


def said(w: World, name: str) -> ModelInUse:
    model = w.infos[name][-1].model
    assert model is not None
    return model


async def in_use(w: World, name: str, wish: DesiredModel) -> None:
    await eventually(lambda: said(w, name).mark == wish.mark)


@simulated
async def test_an_edge_worker_changes_its_model_and_every_frame_has_one_answer(tmp_path: Path) -> None:
    told = Told(tmp_path, "e0")
    first = told.tell("a")
    async with world(tmp_path) as w, w.worker("edge", "e0", Named, model_file=told.file):
        await in_use(w, "e0", first)
        sent = [await w.send(EASY) for _ in range(20)]
        second = told.tell("b")
        while said(w, "e0").mark != second.mark:
            sent.append(await w.send(EASY))
            await asyncio.sleep(0.01)
        sent += [await w.send(EASY) for _ in range(20)]
        answers = [await w.answer(id_) for id_ in sent]
        labels = [answer.label for answer in answers]
        assert labels == sorted(labels, key=str)
        assert set(labels[:20]) == {"a"}
        assert set(labels[-20:]) == {"b"}
        assert {(answer.label, answer.model) for answer in answers} == {("a", "v-a"), ("b", "v-b")}
        assert not any(answer.degraded for answer in answers)
        assert max(w.copies.values()) == 1
        assert w.info("e0").inference_number <= len(sent)
        await eventually(lambda: Named.open == 1)
    assert [info.status for info in w.infos["e0"]].count("starting") == 1


@simulated
async def test_a_model_that_cannot_be_opened_changes_nothing_but_what_the_worker_says(tmp_path: Path) -> None:
    told = Told(tmp_path, "e0")
    first = told.tell("a")
    async with world(tmp_path) as w, w.worker("edge", "e0", Named, model_file=told.file):
        await in_use(w, "e0", first)
        bad = told.tell("bad")
        await in_use(w, "e0", bad)
        model = said(w, "e0")
        assert (model.digest, model.version, model.refused, model.reason) == (
            first.digest, first.version, bad.digest, "ModelInvalid",
        )  # fmt: skip
        assert "this is no model" in model.message
        assert (await w.answer(await w.send(EASY))).label == "a"
        good = told.tell("c")
        await in_use(w, "e0", good)
        assert said(w, "e0") == ModelInUse(digest=good.digest, version=good.version, mark=good.mark)
        assert (await w.answer(await w.send(EASY))).label == "c"


@simulated
async def test_what_was_refused_and_is_taken_back_leaves_nothing_to_say(tmp_path: Path) -> None:
    told = Told(tmp_path, "e0")
    first = told.tell("a")
    async with world(tmp_path) as w, w.worker("edge", "e0", Named, model_file=told.file):
        await in_use(w, "e0", told.tell("bad"))
        await in_use(w, "e0", told.tell("a"))
        assert said(w, "e0") == ModelInUse(digest=first.digest, version=first.version, mark=first.mark)
        assert Named.open == 1


@simulated
async def test_what_was_refused_is_tried_again_when_anything_about_it_has_changed(tmp_path: Path) -> None:
    told = Told(tmp_path, "e0")
    first = told.tell("a")
    async with world(tmp_path) as w, w.worker("edge", "e0", Named, model_file=told.file):
        await in_use(w, "e0", told.tell("b", 50))
        await in_use(w, "e0", told.tell("bad"))
        model = said(w, "e0")
        assert (model.version, model.canary_version, model.reason) == ("v-a", "", "ModelInvalid")
        wish = told.wish("bad", 99)
        (tmp_path / "bad.model").write_text("good")
        write(told.file, Desired(models=[wish]))
        await in_use(w, "e0", wish)
        assert said(w, "e0") == ModelInUse(digest=first.digest, version="v-a", canary_version="v-bad", mark=wish.mark)


@simulated
async def test_a_model_on_trial_goes_by_the_version_that_it_was_given_last(tmp_path: Path) -> None:
    told = Told(tmp_path, "c0")
    told.tell("a")
    async with world(tmp_path) as w, w.worker("cloud", "c0", Named, model_file=told.file), w.worker("edge", "e0"):
        await in_use(w, "c0", told.tell("b", 50))
        renamed = told.wish("b")
        renamed.version = "v-new"
        write(told.file, Desired(models=[renamed]))
        await in_use(w, "c0", renamed)
        answer = await w.answer(await w.send(HARD))
        assert (said(w, "c0").version, answer.model, answer.label) == ("v-new", "v-new", "b")


@simulated
async def test_a_share_of_the_hard_samples_goes_to_a_new_big_model_then_all(tmp_path: Path) -> None:
    told = Told(tmp_path, "c0")
    first = told.tell("a")
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c0", Named, model_file=told.file),
        w.worker("edge", "e0"),
    ):
        await in_use(w, "c0", first)
        part = told.tell("b", 30)
        await in_use(w, "c0", part)
        model = said(w, "c0")
        assert (model.digest, model.canary_version) == (first.digest, "v-b")
        answers = [await w.answer(await w.send(HARD)) for _ in range(200)]
        shares = Counter(answer.label for answer in answers)
        assert set(shares) == {"a", "b"}
        assert 30 <= shares["b"] <= 95
        assert {answer.model for answer in answers if answer.label == "b"} == {"v-b"}
        whole = told.tell("b")
        await in_use(w, "c0", whole)
        assert said(w, "c0") == ModelInUse(digest=whole.digest, version="v-b", mark=whole.mark)
        assert {(await w.answer(await w.send(HARD))).label for _ in range(30)} == {"b"}
        await eventually(lambda: Named.open == 1)
        assert not any(answer.degraded for answer in w.results.values())


@simulated
async def test_a_share_that_is_taken_back_goes_to_the_model_before(tmp_path: Path) -> None:
    told = Told(tmp_path, "c0")
    told.tell("a")
    async with world(tmp_path) as w, w.worker("cloud", "c0", Named, model_file=told.file), w.worker("edge", "e0"):
        await in_use(w, "c0", told.tell("b", 50))
        back = told.tell("a")
        await in_use(w, "c0", back)
        assert {(await w.answer(await w.send(HARD))).label for _ in range(30)} == {"a"}
        await eventually(lambda: Named.open == 1)


@simulated
@pytest.mark.parametrize("role", ["edge", "cloud"])
async def test_a_share_that_a_new_model_fails_at_is_taken_back_and_every_sample_is_answered(
    role: Any, tmp_path: Path
) -> None:
    told, value = Told(tmp_path, "w0"), EASY if role == "edge" else HARD
    first = told.tell("a")
    async with contextlib.AsyncExitStack() as stack:
        w = await stack.enter_async_context(world(tmp_path))
        await stack.enter_async_context(w.worker(role, "w0", Named, model_file=told.file))
        if role == "cloud":
            await stack.enter_async_context(w.worker("edge", "e0"))
        await in_use(w, "w0", first)
        flaky = told.tell("flaky", 50)
        await in_use(w, "w0", flaky)
        assert said(w, "w0").canary_version == "v-flaky"
        answers = [await w.answer(await w.send(value)) for _ in range(40)]
        assert {(answer.label, answer.model, answer.degraded) for answer in answers} == {("a", "v-a", False)}
        assert {answer.by for answer in answers} == {role}
        await eventually(lambda: said(w, "w0").reason == "CanaryFailed")
        model = said(w, "w0")
        assert (model.digest, model.version, model.canary_version) == (first.digest, "v-a", "")
        assert (model.refused, model.mark) == (flaky.digest, flaky.mark)
        assert "it fails at everything" in model.message
        await eventually(lambda: Named.open == 1)
        good = told.tell("b")
        await in_use(w, "w0", good)
        assert said(w, "w0") == ModelInUse(digest=good.digest, version="v-b", mark=good.mark)
        assert (await w.answer(await w.send(value))).label == "b"


@simulated
@pytest.mark.parametrize("content", [b"{", b'{"models": []}', b'{"models": 7}'])
async def test_a_wish_that_cannot_be_read_is_said_and_the_next_one_is_followed(content: bytes, tmp_path: Path) -> None:
    told = Told(tmp_path, "e0")
    first = told.tell("a")
    async with world(tmp_path) as w, w.worker("edge", "e0", Named, model_file=told.file):
        await in_use(w, "e0", first)
        told.file.write_bytes(content)
        await eventually(lambda: said(w, "e0").reason == "WishInvalid")
        assert (await w.answer(await w.send(EASY))).label == "a"
        await in_use(w, "e0", told.tell("b"))
        assert said(w, "e0").reason == ""


@simulated
async def test_one_live_object_of_a_user_holds_one_model_and_says_that_it_takes_no_other(tmp_path: Path) -> None:
    told = Told(tmp_path, "e0")
    told.tell("a")
    async with world(tmp_path) as w, w.worker("edge", "e0", Named(), model_file=told.file):
        assert w.infos["e0"][-1].model is None
        told.tell("b")
        await asyncio.sleep(5)
        assert (await w.answer(await w.send(EASY))).label == "a"


@simulated
async def test_without_a_file_a_worker_takes_no_other_model(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0"):
        assert all(info.model is None for info in w.infos["e0"])


def test_the_model_of_a_pod_has_the_version_of_its_spec_and_the_digest_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "small.onnx"
    file.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    plain = desired_of(str(file), ModelSpec(url=str(file), format="onnx"))
    assert (plain.version, plain.digest, plain.calibration) == (digest[:12], digest, "")
    versions = [ModelVersion(version="v2", url=str(file), calibration="{}")]
    named = desired_of(str(file), ModelSpec(url=str(file), format="onnx", versions=versions, target_version="v2"))
    assert (named.version, named.digest, named.calibration) == ("v2", digest, "{}")
    assert (
        desired_of("https://models.example/v1", ModelSpec(url="https://models.example/v1", format="onnx")).digest == ""
    )
    assert desired_of(str(tmp_path), ModelSpec(url=str(tmp_path), format="onnx")).version == ""
