"""Worker processes over Mosquitto are told other models under a steady stream of frames: nothing is lost by it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from examples.digits import data
from halimede.messages import ModelInUse
from halimede.models.desired_state import Desired, DesiredModel, write
from services.broker import MosquittoProcess
from tests.integration.workers import PREPROCESS, Site, site, train
from tests.simulated import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FPS = 100


@dataclass
class World:
    """A site whose two workers follow files, and a camera that goes on and on."""

    site: Site
    models: dict[str, Path]
    pictures: list[bytes]

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

    def tell(self, worker: str, wish: DesiredModel) -> DesiredModel:
        write(self.site.folder / f"{worker}.json", Desired(models=[wish]))
        return wish

    def said(self, worker: str) -> ModelInUse:
        return self.site.infos[worker].model or ModelInUse()

    async def followed(self, worker: str, wish: DesiredModel) -> ModelInUse:
        await eventually(lambda: self.said(worker).mark == wish.mark, 60)
        return self.said(worker)

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

    def check(self, *pids: int) -> None:
        """No frame is lost, answered twice or degraded, and the processes are those of the beginning."""
        assert set(self.site.results) == set(self.site.sent)
        assert set(self.site.copies.values()) == {1}
        assert not self.site.reasons()
        assert [worker.process.pid for worker in self.site.workers] == list(pids)
        assert all(worker.process.poll() is None for worker in self.site.workers)

    def versions(self, who: str) -> list[str]:
        """Versions in the order of the frames, without repeats."""
        answers = sorted(self.site.by(who), key=lambda result: list(self.site.sent).index(result.id))
        seen = [result.model for result in answers]
        for result in answers:
            assert (result.label or "").partition(":")[0] == result.model
        return [v for i, v in enumerate(seen) if i == 0 or seen[i - 1] != v]


@contextlib.asynccontextmanager
async def world(broker: MosquittoProcess, name: str, folder: Path) -> AsyncIterator[World]:
    small, big, split = train(folder)
    bad = folder / "bad.onnx"
    bad.write_bytes(big.read_bytes()[:-100])
    pictures = [data.to_png(image) for image in split.test_x[:200]]
    async with site(broker, name, folder) as made:
        w = World(made, {"small": small, "big": big, "bad": bad}, pictures)
        for role, worker, model in (("edge", f"{name}-e", "small"), ("cloud", f"{name}-c", "big")):
            w.tell(worker, w.wish(model, "v1"))
            made.start(role, worker, w.models[model], MODEL_FILE=str(folder / f"{worker}.json"))
        await made.running(f"{name}-e", f"{name}-c")
        yield w


async def test_both_roles_take_another_model_and_no_frame_is_lost_or_degraded(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async with world(mosquitto, unique, tmp_path) as w:
        pids = [worker.process.pid for worker in w.site.workers]
        async with w.stream():
            edge = w.tell(f"{unique}-e", w.wish("small", "v2"))
            await w.followed(f"{unique}-e", edge)
            cloud = w.tell(f"{unique}-c", w.wish("big", "v2"))
            assert (await w.followed(f"{unique}-c", cloud)).version == "v2"
        w.check(*pids)
        assert w.versions("edge") == ["v1", "v2"]
        assert set(w.versions("cloud")) == {"v1", "v2"}


async def test_a_corrupt_model_changes_nothing_but_what_the_worker_says(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async with world(mosquitto, unique, tmp_path) as w:
        pids = [worker.process.pid for worker in w.site.workers]
        async with w.stream():
            for name in (f"{unique}-e", f"{unique}-c"):
                bad = w.tell(name, w.wish("bad", "v2"))
                said = await w.followed(name, bad)
                assert (said.version, said.refused, said.reason) == ("v1", bad.digest, "ModelInvalid")
                assert said.message
        w.check(*pids)
        assert {result.model for result in w.site.results.values()} == {"v1"}
        assert w.site.infos[f"{unique}-e"].status == "running"


async def test_a_share_of_the_hard_samples_goes_to_a_new_big_model_then_all(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async with world(mosquitto, unique, tmp_path) as w:
        pids = [worker.process.pid for worker in w.site.workers]
        async with w.stream():
            part = w.tell(f"{unique}-c", w.wish("small", "v2", 50))
            said = await w.followed(f"{unique}-c", part)
            assert (said.version, said.canary_version) == ("v1", "v2")
            began = len(w.site.by("cloud"))
            await eventually(lambda: len(w.site.by("cloud")) >= began + 100, 60)
            new = [result for result in w.site.by("cloud") if result.model == "v2"]
            assert len(new) >= 20
            whole = w.tell(f"{unique}-c", w.wish("small", "v2"))
            said = await w.followed(f"{unique}-c", whole)
            assert (said.version, said.canary_version) == ("v2", "")
        w.check(*pids)
        last = max(w.site.by("cloud"), key=lambda result: list(w.site.sent).index(result.id))
        assert last.model == "v2"


async def test_a_users_script_takes_another_model_too(mosquitto: MosquittoProcess, unique: str, tmp_path: Path) -> None:
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
        path = tmp_path / f"{label}.txt"
        path.write_text(label)
        return {"models": [{"name": "m", "path": str(path), "version": label, "spec": {"format": "text"}}]}

    file = tmp_path / "model.json"
    file.write_text(json.dumps(wish("one")))
    async with site(mosquitto, unique, tmp_path) as made:
        made.start_script("edge", f"{unique}-e", code, MODEL_FILE=str(file))
        await made.running(f"{unique}-e")
        _, _, split = train(tmp_path)
        pictures = [data.to_png(image) for image in split.test_x[:20]]
        await made.send(pictures)
        await made.answered()
        new = tmp_path / "new.json"
        new.write_text(json.dumps(wish("two")))
        new.replace(file)
        await eventually(lambda: (made.infos[f"{unique}-e"].model or ModelInUse()).version == "two", 30)
        await made.send(pictures)
        await made.answered()
        assert [result.label for result in made.results.values()] == ["one"] * 20 + ["two"] * 20
