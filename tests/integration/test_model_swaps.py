"""Worker processes over Mosquitto are told other models under a steady stream of frames: nothing is lost by it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from halimede.messages import ModelInUse
from halimede.models.desired_state import Desired, DesiredModel, write
from tests.digits import Digits
from tests.integration.workers import PREPROCESS, Site
from tests.simulated import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FPS = 100


@dataclass
class World:
    """A site whose two workers follow files, and a camera that goes on and on."""

    site: Site
    models: dict[str, Path]
    pictures: list[bytes]
    pids: list[int] = field(default_factory=list)

    def wish(self, model: str, version: str, percent: int = 100) -> DesiredModel:
        path = self.models[model]
        spec = {
            "format": "onnx", "labels": [f"{version}:{digit}" for digit in range(10)], "preprocess": PREPROCESS,
            "postprocess": {"output": "probabilities"},
        }  # fmt: skip
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return DesiredModel(
            name=model, path=str(path), version=version, digest=digest, spec=spec, canary_percent=percent
        )

    def tell(self, worker: str, wish: DesiredModel) -> None:
        write(self.site.folder / f"{worker}.json", Desired(models=[wish]))

    async def follows(self, worker: str, wish: DesiredModel) -> ModelInUse:
        """Tell a worker, and return what it has once it has followed."""
        self.tell(worker, wish)

        def present() -> ModelInUse:
            return self.site.infos[worker].model or ModelInUse()

        await eventually(lambda: present().mark == wish.fingerprint, 60)
        return present()

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncIterator[None]:
        """Send frames within the block, a second longer on both sides of it; then wait for the answers."""

        async def send() -> None:
            while True:
                await self.site.send(self.pictures, FPS)

        sending = asyncio.create_task(send())
        await asyncio.sleep(1)
        try:
            yield
            await asyncio.sleep(1)
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        last = set(self.site.sent) - set(self.site.results)
        await eventually(lambda: last <= set(self.site.results), 30)

    def check(self) -> None:
        """No frame is lost, answered twice or degraded, and the processes are those of the beginning."""
        assert set(self.site.results) == set(self.site.sent)
        assert set(self.site.copies.values()) == {1}
        assert not self.site.reasons()
        assert [worker.process.pid for worker in self.site.workers] == self.pids
        assert all(worker.process.poll() is None for worker in self.site.workers)

    def versions(self, who: str) -> list[str]:
        """Versions in the order of the frames, without repeats."""
        answers = sorted(self.site.by(who), key=lambda result: list(self.site.sent).index(result.id))
        seen = [result.model for result in answers]
        for result in answers:
            assert (result.label or "").partition(":")[0] == result.model
        return [v for i, v in enumerate(seen) if i == 0 or seen[i - 1] != v]


@pytest.fixture
async def swaps(s: Site, digits: Digits) -> World:
    bad = s.folder / "bad.onnx"
    bad.write_bytes(digits.big.read_bytes()[:-100])
    swaps = World(s, {"small": digits.small, "big": digits.big, "bad": bad}, digits.pictures[:200])
    for role, worker, model in (("edge", s.edge, "small"), ("cloud", s.cloud, "big")):
        swaps.tell(worker, swaps.wish(model, "v1"))
        s.start(role, worker, swaps.models[model], MODEL_FILE=str(s.folder / f"{worker}.json"))
    await s.running(s.edge, s.cloud)
    swaps.pids = [worker.process.pid for worker in s.workers]
    return swaps


async def test_both_roles_take_another_model_and_no_frame_is_lost_or_degraded(swaps: World) -> None:
    async with swaps.stream():
        await swaps.follows(swaps.site.edge, swaps.wish("small", "v2"))
        assert (await swaps.follows(swaps.site.cloud, swaps.wish("big", "v2"))).version == "v2"
    swaps.check()
    assert swaps.versions("edge") == ["v1", "v2"]
    assert set(swaps.versions("cloud")) == {"v1", "v2"}


async def test_a_corrupt_model_changes_nothing_but_what_the_worker_says(swaps: World) -> None:
    async with swaps.stream():
        for name in (swaps.site.edge, swaps.site.cloud):
            bad = swaps.wish("bad", "v2")
            said = await swaps.follows(name, bad)
            assert (said.version, said.refused, said.reason) == ("v1", bad.digest, "ModelInvalid")
            assert said.message
    swaps.check()
    assert {result.model for result in swaps.site.results.values()} == {"v1"}
    assert swaps.site.infos[swaps.site.edge].status == "running"


async def test_a_share_of_the_hard_samples_goes_to_a_new_big_model_then_all(swaps: World) -> None:
    async with swaps.stream():
        said = await swaps.follows(swaps.site.cloud, swaps.wish("small", "v2", 50))
        assert (said.version, said.canary_version) == ("v1", "v2")
        began = len(swaps.site.by("cloud"))
        await eventually(lambda: len(swaps.site.by("cloud")) >= began + 100, 60)
        new = [result for result in swaps.site.by("cloud") if result.model == "v2"]
        assert len(new) >= 20
        said = await swaps.follows(swaps.site.cloud, swaps.wish("small", "v2"))
        assert (said.version, said.canary_version) == ("v2", "")
    swaps.check()
    last = max(swaps.site.by("cloud"), key=lambda result: list(swaps.site.sent).index(result.id))
    assert last.model == "v2"


async def test_a_users_script_takes_another_model_too(s: Site, digits: Digits) -> None:
    code = """
        from halimede.worker import run_edge

        class Mine:
            def load(self, model_url):
                self.label = open(model_url).read()

            def predict(self, data):
                return {"label": self.label, "probabilities": [0.9, 0.1]}

        run_edge(Mine)
    """

    def wish(label: str) -> dict[str, Any]:
        path = s.folder / f"{label}.txt"
        path.write_text(label)
        return {"models": [{"name": "m", "path": str(path), "version": label, "spec": {"format": "text"}}]}

    file = s.folder / "model.json"
    file.write_text(json.dumps(wish("one")))
    await s.run_script("edge", code, MODEL_FILE=str(file))
    await s.send_all(digits.pictures[:20])
    new = s.folder / "new.json"
    new.write_text(json.dumps(wish("two")))
    new.replace(file)
    await eventually(lambda: (s.infos[s.edge].model or ModelInUse()).version == "two", 30)
    await s.send_all(digits.pictures[:20])
    assert [result.label for result in s.results.values()] == ["one"] * 20 + ["two"] * 20
