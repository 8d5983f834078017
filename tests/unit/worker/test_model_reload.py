"""A worker that is told another model takes it while it runs, or goes on with the one that it has and says why."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halimede.api.model import ModelSpec, ModelVersion
from halimede.messages import ModelInUse
from halimede.worker.model_reload import desired_of
from tests.simulated import eventually
from tests.unit.worker.world import EASY, HARD, Named, ToldWorker, World, telling

pytestmark = pytest.mark.simulated


@pytest.fixture
async def edge(w: World) -> AsyncIterator[ToldWorker]:
    async with telling(w) as worker:
        yield worker


async def label(w: World) -> str | int | None:
    return (await w.answer(await w.send(EASY))).label


async def test_what_was_refused_and_is_taken_back_leaves_nothing_to_say(edge: ToldWorker) -> None:
    await edge.use("bad")
    first = await edge.use("a")
    assert edge.in_use == ModelInUse(digest=first.digest, version=first.version, mark=first.fingerprint)
    assert Named.open == 1


async def test_what_was_refused_is_tried_again_when_anything_about_it_has_changed(
    edge: ToldWorker, tmp_path: Path
) -> None:
    await edge.use("b", 50)
    bad = await edge.use("bad")
    model = edge.in_use
    assert (model.version, model.canary_version, model.reason) == ("v-a", "", "ModelInvalid")
    assert (model.refused, "this is no model" in model.message) == (bad.digest, True)
    again = edge.desired("bad", 99)
    (tmp_path / "bad.model").write_text("good")
    await edge.follow(again)
    assert edge.in_use == ModelInUse(digest="a" * 8, version="v-a", canary_version="v-bad", mark=again.fingerprint)


async def test_a_model_on_trial_goes_by_the_version_that_it_was_given_last(w: World) -> None:
    async with telling(w, "cloud") as cloud, w.worker("edge", "e0"):
        await cloud.use("b", 50)
        renamed = cloud.desired("b")
        renamed.version = "v-new"
        await cloud.follow(renamed)
        answer = await w.answer(await w.send(HARD))
        assert (cloud.in_use.version, answer.model, answer.label) == ("v-new", "v-new", "b")


@pytest.mark.parametrize("content", [b"{", b'{"models": []}', b'{"models": 7}'])
async def test_a_wish_that_cannot_be_read_is_said_and_the_next_one_is_followed(
    w: World, edge: ToldWorker, content: bytes
) -> None:
    edge.file.write_bytes(content)
    await eventually(lambda: edge.in_use.reason == "WishInvalid")
    assert await label(w) == "a"
    await edge.use("b")
    assert edge.in_use.reason == ""


async def test_one_live_object_of_a_user_holds_one_model_and_says_that_it_takes_no_other(w: World) -> None:
    worker = ToldWorker(w, "e0")
    worker.tell(worker.desired("a"))
    async with w.worker("edge", "e0", Named(), model_file=worker.file):
        assert worker.in_use is None
        worker.tell(worker.desired("b"))
        await asyncio.sleep(5)
        assert await label(w) == "a"


def test_the_model_of_a_pod_has_the_version_of_its_spec_and_the_digest_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "small.onnx"
    file.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    plain = desired_of(str(file), ModelSpec(url=str(file), format="onnx"))
    assert (plain.version, plain.digest, plain.calibration) == (digest[:12], digest, "")
    versions = [ModelVersion(version="v2", url=str(file), calibration="{}")]
    named = desired_of(str(file), ModelSpec(url=str(file), format="onnx", versions=versions, target_version="v2"))
    assert (named.version, named.digest, named.calibration) == ("v2", digest, "{}")
    url = "https://models.example/v1"
    assert desired_of(url, ModelSpec(url=url, format="onnx")).digest == ""
    assert desired_of(str(tmp_path), ModelSpec(url=str(tmp_path), format="onnx")).version == ""
