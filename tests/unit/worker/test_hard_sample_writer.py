"""Hard samples on their way to the disk: kept with both answers, and never in the way of an answer."""

from __future__ import annotations

import asyncio
import errno
import io
import threading
from pathlib import Path

import numpy as np
import pytest

from halimede.api.jointinference import KeepHardSamples
from halimede.frames import new_frame
from halimede.hard_samples.store import HardSampleStore
from halimede.messages import Frame, KeptRequest, Prediction, Result
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.worker.hard_sample_writer import HardSampleWriter
from tests.digits import picture
from tests.simulated import eventually
from tests.unit.worker.world import EASY, HARD, World, world

KEEP = KeepHardSamples(max_megabytes=1, max_samples=100)
ROOT = Path(__file__).parents[3]


def keeper(folder: Path) -> HardSampleWriter:
    slot = ModelSlot(LoadedModel(object(), ModelThread(), "v3", "abc"))  # type: ignore[arg-type]
    settings = World(folder).settings("edge", "e", keep=KEEP)
    return HardSampleWriter(settings, slot, HardSampleStore(folder / "hard", 10**6, 100))


def result(frame: Frame) -> Result:
    said = Prediction(label="5", score=0.9)
    return Result(
        id=frame.id.hex(), service="s", camera="cam0", by="cloud", hard=True, label="5", score=0.9, prediction=said,
        worker="c", model="v7",
    )  # fmt: skip


def offer(keeps: HardSampleWriter, count: int) -> None:
    for _ in range(count):
        frame = new_frame(np.zeros((4, 4), np.uint8))
        keeps.offer(frame, None, result(frame))


async def test_hard_samples_of_a_worker_are_kept_with_both_answers_and_easy_ones_are_not(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("cloud", "c"), w.worker("edge", "e", keep=KEEP):
        await w.answer(await w.send(EASY))
        hard = await w.send(HARD)
        await w.answer(hard)
        store = HardSampleStore(tmp_path / "e" / "hard", 10**6, 100)
        await eventually(lambda: len(list((tmp_path / "e" / "hard").glob("*.json"))) == 1)
        sample, data = store.get(hard)
    assert data == picture(HARD, 4)
    assert (sample.result.by, sample.result.label, sample.result.worker) == ("cloud", "big", "c")
    assert (sample.edge.label, sample.namespace, sample.result.camera) == ("small", "default", "cam0")
    assert (sample.image.form, sample.image.width, sample.image.height) == ("png", 4, 4)


@pytest.mark.parametrize(
    ("frame", "form", "size"),
    [
        (new_frame(np.zeros((4, 6, 3), np.uint8)), "png", (6, 4)),
        (new_frame(np.zeros((4, 6, 1), np.uint8)), "png", (6, 4)),
        (new_frame(np.zeros((4, 6), np.uint8), encoding="png"), "png", (6, 4)),
        (new_frame(np.zeros((4, 6), np.uint8), encoding="jpeg"), "jpeg", (6, 4)),
        (new_frame(np.linspace(0, 1, 7)), "npy", (0, 0)),
        (new_frame(np.zeros((4, 6), np.float32)), "npy", (0, 0)),
    ],
)
async def test_each_sample_is_kept_without_loss(tmp_path: Path, frame: Frame, form: str, size: tuple[int, int]) -> None:
    async with keeper(tmp_path) as keeps:
        keeps.offer(frame, None, result(frame))
    sample, data = keeps.store.get(frame.id.hex())
    assert (sample.image.form, (sample.image.width, sample.image.height)) == (form, size)
    assert (sample.edge, sample.edge_model, sample.edge_digest) == (None, "v3", "abc")
    if frame.encoding != "raw":
        assert data == frame.data
    elif form == "npy":
        kept = np.load(io.BytesIO(data), allow_pickle=False)
        assert kept.tobytes() == frame.data
        assert (kept.dtype.name, list(kept.shape)) == (frame.dtype, frame.shape)


async def test_what_comes_faster_than_the_disk_takes_it_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    add = HardSampleStore.add
    monkeypatch.setattr(HardSampleStore, "add", lambda *args: go.wait(10) and add(*args))
    async with keeper(tmp_path) as keeps:
        offer(keeps, 100)
        dropped = keeps.dropped["busy"]
        assert 30 <= dropped <= 36
        go.set()
    assert len(keeps.store) == 100 - dropped


async def test_a_full_disk_costs_samples_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        async with keeper(tmp_path) as keeps:
            offer(keeps, 5)
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("hard samples not stored") == 1
    assert keeps.dropped == {"busy": 0, "disk": 5}
    assert not keeps.store.page(KeptRequest()).entries


async def test_a_folder_that_cannot_be_made_costs_no_answer(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "hard").write_text("a file is in its way")
    async with world(tmp_path) as w, w.worker("edge", "e", keep=KEEP):
        for _ in range(3):
            answered = await w.answer(await w.send(HARD))
            assert answered.degraded
        await asyncio.sleep(0.05)


def test_its_figures_are_documented(tmp_path: Path) -> None:
    documented = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    for metric in keeper(tmp_path).metrics():
        name = metric.name + ("_total" if metric.type == "counter" else "")
        assert f"| `{name}` | {metric.type} | edge |" in documented
