"""Models on their way to the node, in simulated time with a fetcher of the test's."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from halimede.api.model_formats import TFLITE
from halimede.messages import ModelFacts
from halimede.messages.file_facts import TrialReason
from halimede.models import Cache, Fetched, FetchError, FetchReason
from halimede.models.model_trial import not_installed
from services.lc.models.cache_janitor import CacheChanges, CacheJanitor
from services.lc.models.preparer import InstalledModel, Preparer, UnusableError
from services.lc.planning.resource_state import RequiredFile
from tests.integration.lc_world import EDGE, HELMET, SMALL, World, cached, model, service
from tests.simulated import eventually
from tests.unit.models.test_model_trial import without

pytestmark = pytest.mark.simulated


class Origin:
    """A fetcher that fails as told, and counts."""

    def __init__(self, *failures: Exception, delay: float = 0.0) -> None:
        self.failures = list(failures)
        self.asked: list[tuple[float, str]] = []
        self.now = self.most = 0
        self.delay = delay

    async def __call__(self, url: str, sha256: str, cache: Cache, progress: Any = None) -> Fetched:
        self.asked.append((asyncio.get_running_loop().time(), url))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for step in range(10):
                progress(step * 10_000_000, 100_000_000)
                await asyncio.sleep(self.delay / 10)
            if self.failures:
                raise self.failures.pop(0)
            return cached(cache, "0" * 64)
        finally:
            self.now -= 1

    def gaps(self) -> list[int]:
        times = [at for at, _ in self.asked]
        return [round(b - a) for a, b in itertools.pairwise(times)]


def temporary() -> FetchError:
    return FetchError(FetchReason.UNREACHABLE, "the host cannot be reached", temporary=True)


async def test_temporary_failures_are_tried_again_with_back_off_and_heal(node: World) -> None:
    node.fetch = origin = Origin(*[temporary() for _ in range(8)])
    await node.gm.insert(model(), service())
    await node.gm.reaches(SMALL, "Pending", "Unreachable")
    await eventually(lambda: "cannot be reached" in node.gm.statuses[HELMET].message)
    assert node.gm.statuses[HELMET].reason == "ModelNotReady"
    await asyncio.sleep(300)
    await node.gm.reaches(SMALL, "Ready", "")
    assert origin.gaps() == [1, 2, 4, 8, 16, 32, 60, 60]
    assert len(node.launcher.alive) == 1


async def test_what_someone_has_to_mend_is_shown_and_heals_when_it_is(node: World) -> None:
    node.fetch = Origin(FetchError(FetchReason.NOT_FOUND, "/models/small.onnx does not exist on this node"))
    await node.gm.insert(model(), service())
    await node.gm.reaches(SMALL, "Failed", "NotFound")
    status = await node.gm.reaches(HELMET, "Failed", "ModelNotReady")
    assert status.message == "Model small: /models/small.onnx does not exist on this node"
    await node.gm.reaches(SMALL, "Ready")
    await eventually(lambda: node.launcher.alive)


async def test_a_model_of_which_its_trial_warns_is_ready_and_runs(node: World) -> None:
    async def bring(want: RequiredFile, cache: Cache, progress: Any) -> InstalledModel:
        return InstalledModel(cached(cache, "0" * 64).path, ModelFacts(digest="0" * 64), warning="add normalize")

    node.bring = bring
    await node.gm.insert(model(), service())
    status = await node.gm.reaches(SMALL, "Ready", "InputNotScaled")
    assert status.message == "add normalize"
    await eventually(lambda: node.launcher.alive)


async def test_a_model_whose_package_is_missing_waits_for_it_and_heals_when_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = World(tmp_path)
    brought: list[str] = []

    async def bring(want: RequiredFile, cache: Cache, progress: Any) -> InstalledModel:
        brought.append(want.format)
        lack = not_installed(TFLITE)
        return InstalledModel(cached(cache, "0" * 64).path, ModelFacts(digest="0" * 64), lack)

    without(monkeypatch, TFLITE.package)
    node.bring = bring
    async with node.gm.running(), node.lc():
        await node.gm.insert(model(format="tflite"), service())
        status = await node.gm.reaches(SMALL, "Ready", "NotInstalled")
        assert "run pip install 'halimede[tflite]'" in status.message
        status = await node.gm.reaches(HELMET, "Failed", "NotInstalled")
        assert status.message.startswith("Model small: the format tflite")
        await asyncio.sleep(600)
        assert (node.launcher.alive, brought) == ([], ["tflite"])
        monkeypatch.undo()
        await node.gm.reaches(SMALL, "Ready", "")
        await eventually(lambda: node.launcher.alive)
        assert brought == ["tflite"] * 2


async def test_what_takes_long_and_is_wrong_is_not_brought_all_day(node: World) -> None:
    wrong = FetchError(FetchReason.DIGEST_MISMATCH, "it is another")
    node.fetch = origin = Origin(wrong, wrong, wrong, delay=60)
    await node.gm.insert(model())
    await node.gm.reaches(SMALL, "Failed", "DigestMismatch")
    await asyncio.sleep(3000)
    await node.gm.reaches(SMALL, "Ready")
    assert origin.gaps() == [660, 660, 660]


async def test_a_model_whose_trial_had_no_result_waits_and_is_tried_again_soon(tmp_path: Path) -> None:
    """A machine that is so busy that trials do not begin is no fault of the model, however long that takes."""
    loop, tried = asyncio.get_running_loop(), list[float]()

    async def bring(*_: Any) -> InstalledModel:
        tried.append(loop.time())
        await asyncio.sleep(270)
        raise UnusableError(TrialReason.FAILED, "the trial did not begin in time")

    async with asyncio.TaskGroup() as tasks:
        cache = Cache(tmp_path)
        preparer = Preparer(cache, tasks, lambda _: None, bring, CacheChanges(cache))
        preparer.set_required({SMALL: RequiredFile(SMALL, "u1", 1, "/models/small.onnx")})
        await asyncio.sleep(1000)
        known = preparer.preparations[SMALL]
        assert (known.phase, known.reason) == ("Pending", "TrialFailed")
        assert len(tried) >= 3
        assert max(later - sooner for sooner, later in itertools.pairwise(tried)) <= 270 + 60
        preparer.set_required({})


async def test_a_model_that_must_not_be_used_takes_room_all_the_same(tmp_path: Path) -> None:
    looked: list[float] = []

    async def bring(*_: Any) -> InstalledModel:
        raise UnusableError("UnsafeModel", "it reads what is not its own")

    cache = Cache(tmp_path)
    changes = CacheChanges(cache)
    janitor = CacheJanitor(cache, changes, lambda: looked.append(0) or (), lambda: (), print, max_bytes=0)
    async with asyncio.TaskGroup() as tasks:
        preparer = Preparer(cache, tasks, lambda _: None, bring, changes)
        tidying = tasks.create_task(janitor.run())
        preparer.set_required({SMALL: RequiredFile(SMALL, "u1", 1, "/models/small.onnx")})
        await asyncio.sleep(10)
        assert preparer.preparations[SMALL].reason == "UnsafeModel"
        assert looked
        preparer.set_required({})
        tidying.cancel()


async def test_a_download_that_breaks_in_an_unknown_way_ends_nothing_else(node: World) -> None:
    node.fetch = Origin(RuntimeError("token=hunter2"))
    await node.gm.insert(model())
    status = await node.gm.reaches(SMALL, "Failed", "Internal")
    assert "hunter2" not in status.message
    await asyncio.sleep(61)
    await node.gm.reaches(SMALL, "Ready")


async def test_a_long_download_tells_its_progress(node: World) -> None:
    node.fetch = Origin(delay=60)
    await node.gm.insert(model())
    status = await node.gm.reaches(SMALL, "Pending", "Downloading")
    assert status.message == "10 of 100 MB downloaded, 1.7 MB/s"
    assert (status.model.done, status.model.size, status.model.rate) == (10_000_000, 100_000_000, 1_666_667)
    await node.gm.reaches(SMALL, "Ready")


async def test_a_model_that_is_no_longer_wanted_is_no_longer_fetched(node: World) -> None:
    node.fetch = origin = Origin(delay=3600)
    await node.gm.insert(model())
    await eventually(lambda: origin.now == 1)
    await node.gm.delete(SMALL, "uid-small")
    await eventually(lambda: origin.now == 0)
    await node.gm.forgotten(SMALL)


async def test_downloads_side_by_side_are_bounded(node: World) -> None:
    node.fetch = origin = Origin(delay=5)
    await node.gm.insert(*(model(f"m{i}") for i in range(6)))
    await eventually(lambda: [status.phase for status in node.gm.statuses.values()] == ["Ready"] * 6, 60)
    assert origin.most == 2


async def test_a_model_whose_file_has_vanished_is_brought_again_before_its_worker_starts_again(node: World) -> None:
    node.fetch = origin = Origin()
    await node.starts()
    origin.delay = 20
    shutil.rmtree(node.config.folders.models)
    node.launcher.of(EDGE).end(-9)
    status = await node.gm.reaches(SMALL, "Pending", "ModelMissing")
    assert "was removed" in status.message
    status = await node.gm.reaches(HELMET, "Pending", "ModelNotReady")
    assert status.workers[0].reason == "ModelMissing"
    assert not node.launcher.alive
    await node.gm.reaches(SMALL, "Ready")
    await eventually(lambda: node.launcher.alive, 60)
    await node.works()
    assert len(origin.asked) == 2


async def test_another_file_of_a_worker_that_has_vanished_is_brought_again_before_it_starts_again(node: World) -> None:
    """Such as the archive of a trainer's class: without it each start, or each step, would fail for ever."""
    delay_s = 0.0

    async def fetch(url: str, _: str, cache: Cache, __: Any = None) -> Fetched:
        await asyncio.sleep(delay_s)
        return cached(cache, ("1" if "curve" in url else "0") * 64)

    node.fetch = fetch
    other = SMALL._replace(name="curve")
    await node.starts(model(), model("curve", format="json"), service(calibration={"name": "curve"}))
    delay_s = 20.0
    start = node.launcher.alive[0].start
    (file,) = start.files
    file.unlink()
    node.launcher.of(EDGE).end(-9)
    await node.gm.reaches(other, "Pending", "ModelMissing")
    assert not node.launcher.alive
    await eventually(lambda: node.launcher.alive, 60)
    assert file.exists()
