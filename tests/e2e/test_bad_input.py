"""Bad input on a running system: a clear condition or count, and the rest goes on."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import pytest_asyncio
from sklearn.linear_model import LogisticRegression

from halimede import topics
from halimede.cli.manifests import load as load_manifests
from halimede.messages import DeadLetter
from tests.e2e.running import DIGITS, System, digits, running
from tests.inbox import Inbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]


def manifests() -> dict[str, dict[str, Any]]:
    """Return the digits example's resources by name."""
    digits()
    return {m.resource.key.name: copy.deepcopy(m.resource.body) for m in load_manifests([str(DIGITS)])}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A system that follows the digits."""
    async with running(tmp_path_factory.mktemp("shared") / "home", "edge0,cloud0") as made:
        await made.follow("digits")
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def system(shared: System) -> AsyncIterator[System]:
    """The same with nothing applied; what a test applies is deleted after it."""
    yield shared
    for plural, name in (("jointinferenceservices", "digits"), ("models", "digits-small"), ("models", "digits-big")):
        await shared.client.delete(plural, name)
    await shared.until("status cleared", lambda: shared.status is None)
    shared.results.clear()
    shared.sent.clear()


def condition(system: System) -> tuple[str, str]:
    """Return reason and message of the current condition."""
    conditions = system.status.status.conditions if system.status else []
    return (conditions[-1].reason, conditions[-1].message) if conditions else ("", "")


async def test_a_missing_model_is_a_condition_that_heals(system: System) -> None:
    bodies = manifests()
    await system.client.apply(bodies["digits-big"])
    await system.client.apply(bodies["digits"])
    await system.until("a reason", lambda: condition(system)[0] == "ModelNotFound")
    assert system.phase == "Pending"
    assert "digits-small" in condition(system)[1]
    await system.client.apply(bodies["digits-small"])
    await system.until_running(20)


async def test_models_that_are_absent_corrupt_or_unfit_are_named_and_heal_when_replaced(
    system: System, tmp_path: Path
) -> None:
    from skl2onnx import to_onnx

    bodies = manifests()
    unfit = LogisticRegression().fit([[0.0] * 3, [1.0] * 3], [0, 1])
    onnx = to_onnx(unfit, __import__("numpy").zeros((1, 3), "float32"), options={id(unfit): {"zipmap": False}})
    (tmp_path / "corrupt.onnx").write_bytes(b"this is no model")
    (tmp_path / "unfit.onnx").write_bytes(onnx.SerializeToString())
    for file, word in (("absent.onnx", "absent.onnx"), ("corrupt.onnx", "ONNX"), ("unfit.onnx", "64")):
        small = copy.deepcopy(bodies["digits-small"])
        small["spec"]["url"] = (tmp_path / file).as_uri()
        await system.client.apply(small)
        if file == "absent.onnx":
            await system.client.apply(bodies["digits-big"])
            await system.client.apply(bodies["digits"])
        await system.until(
            f"a condition for {file}", lambda w=word: w in condition(system)[1] and system.phase != "Running", 30
        )
    await system.client.apply(bodies["digits-small"])
    await system.until_running(30)
    await system.send(digits()[:20])
    await system.until_answered(20)


async def test_bad_frames_are_refused_counted_and_named_while_good_ones_are_answered(system: System) -> None:
    letters: Inbox[DeadLetter] = Inbox()
    good = digits()[0]
    whole = {"v": 1, "id": b"x" * 16, "encoding": "png", "data": good}
    bad = [
        b"",
        b"\xff\xd8\xffno jpeg after all",
        good[: len(good) // 2],
        msgpack.packb(whole)[:-10],
        msgpack.packb({**whole, "id": "text"}),
        msgpack.packb({**whole, "encoding": "exe"}),
        msgpack.packb({**whole, "encoding": "raw", "dtype": "float32", "shape": [100, 100]}),
        msgpack.packb({**whole, "encoding": "raw", "dtype": "object", "shape": [1]}),
        b"\x81\xa1z" + b"\x91" * 100_000,
    ]
    await system.bus.subscribe(topics.DEAD_LETTER.filter(), letters)
    await system.apply(DIGITS)
    await system.until_running()
    for payload in bad:
        await system.bus.publish(topics.CAMERA_FRAME.at(ns="default", camera="cam0"), payload)
        await asyncio.sleep(0.15)  # at most ten dead letters a second leave a client
    await system.send([good])
    await system.until("the good frame's answer", lambda: len(system.results) == 1, 20)
    await system.until("the count", lambda: system.metric("rejected") == len(bad), 20)
    await system.until("the letters", lambda: len(letters.deliveries) == len(bad), 20)
    assert set(letters.read(lambda letter: letter.topic)) == {"default/sedna/frames/cam0"}
    assert system.metric("lost") == 0
