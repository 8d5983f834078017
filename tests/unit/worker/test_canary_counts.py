"""What a worker counts and keeps for a learning loop: labelled samples, audited easy ones, and its canary's samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from halimede.api.jointinference import KeepHardSamples
from halimede.api.processing import pixels_digest
from halimede.bus.memory import MemoryBus
from halimede.hard_samples.client import KeptSamples
from halimede.hard_samples.store import stored_samples
from halimede.hard_samples.stream_counts import read_mining, read_stream
from halimede.messages import PersonLabel
from halimede.mining.calibration_file import CalibrationFile, Reference, write_artefact
from halimede.models.desired_state import Desired, DesiredModel, write
from tests.simulated import eventually, eventually_in_real_time, simulated
from tests.unit.worker.world import EASY, HARD, Big, Small, World, world

KEEP = KeepHardSamples(max_megabytes=1, max_samples=1000)
#: a worker that is told its model while it runs
Told = dict[str, Any]


class Named:
    """Answers with the content of its file; sure of dark pictures, and of bright ones a little."""

    def load(self, model_url: str) -> None:
        self.label = Path(model_url).read_text()

    def predict(self, data: Any) -> dict[str, Any]:
        sure = int(np.asarray(data).flat[0]) < 100
        return {"label": self.label, "probabilities": [0.9, 0.1] if sure else [0.55, 0.45]}


def tell(folder: Path, label: str, percent: int = 100, *, decode: str = "exact", **more: Any) -> DesiredModel:
    path = folder / f"{label}.model"
    path.write_text(label)
    wish = DesiredModel(
        name="m", path=str(path), version=f"v-{label}", digest=label * 8,
        spec={"format": "python", "decode": decode},
        canary_percent=percent, **more,
    )  # fmt: skip
    write(folder / "e" / "model.json", Desired(models=[wish]))
    return wish


async def taken(w: World, wish: DesiredModel) -> None:
    await eventually(lambda: bool(w.infos["e"][-1].model) and w.infos["e"][-1].model.mark == wish.mark)  # type: ignore[union-attr]


def calibrated(margin: float, **more: Any) -> str:
    file = CalibrationFile(
        service="s", rule="Margin", parameters={"threshold_margin": str(margin)},
        reference=Reference(hardness=[-0.8] * 20 + [-0.1], classes={"b": 1.0}, samples=500), **more,
    )  # fmt: skip
    return write_artefact(file).decode()


UNFIT = [("{}", "calibration"), ("no json", "calibration"), (calibrated(0.2).replace("Margin", "Entropy"), "Entropy")]


@simulated
async def test_audited_easy_samples_are_kept_with_the_big_models_answer_and_counted_by_label(tmp_path: Path) -> None:
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c", Big),
        w.worker("edge", "e", Small, keep=KEEP, audit_share=1.0),
    ):
        for _ in range(3):
            await w.answer(await w.send(EASY))
        await w.answer(await w.send(HARD))
        await eventually_in_real_time(lambda: w.info("e").labelled == 4)
        assert w.info("e").labelled_easy == 3
    found = {sample.result.audit: sample for sample, _ in stored_samples(tmp_path / "e" / "hard")}
    easy, hard = found[True], found[False]
    assert (easy.result.by, easy.result.label, easy.result.hard, easy.audit_share) == ("cloud", "big", False, 1.0)
    assert easy.edge is not None
    assert (easy.edge.label, hard.result.hard) == ("small", True)


@simulated
async def test_a_persons_label_counts_where_the_big_model_is_not_sure(tmp_path: Path) -> None:
    class Unsure:
        def predict(self, data: Any) -> dict[str, Any]:
            return {"label": "big", "probabilities": [0.6, 0.4]}

    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c", Unsure),
        w.worker("edge", "e", Small, keep=KEEP),
    ):
        id_ = await w.send(HARD)
        await w.answer(id_)
        await eventually_in_real_time(lambda: len(list((tmp_path / "e" / "hard").glob("*.json"))) == 1)
        assert w.info("e").labelled == 0
        async with MemoryBus("operator", w.broker) as bus:
            await bus.wait_connected(1)
            kept = KeptSamples(bus)
            await kept.start()
            for by in ("anna", "bert"):
                await kept.label(id_, PersonLabel(label="7", by=by))
        await eventually_in_real_time(lambda: w.info("e").labelled == 1)


@simulated
async def test_the_counts_of_the_stream_and_the_rule_are_next_to_the_samples(tmp_path: Path) -> None:
    folder = tmp_path / "e" / "hard"
    async with world(tmp_path) as w, w.worker("cloud", "c", Big), w.worker("edge", "e", Small, keep=KEEP):
        for value in (EASY, EASY, HARD):
            await w.answer(await w.send(value))
    found = list(read_stream(folder))
    assert (sum(each.easy for each in found), sum(each.hard for each in found)) == (2, 1)
    mining = read_mining(folder)
    assert mining is not None
    assert (mining.rule, mining.parameters, mining.temperature) == ("Margin", {"threshold_margin": "0.2"}, 1.0)


@simulated
@pytest.mark.parametrize(
    ("figures", "budget", "goal"),
    [({"upload_ratio": 0.3}, None, 0.3), ({"upload_ratio": 0.3}, 0.1, 0.1), ({}, None, None)],
)
async def test_a_version_is_calibrated_for_the_budget_or_for_the_uploads_of_the_services_calibration(
    figures: dict[str, float], budget: float | None, goal: float | None, tmp_path: Path
) -> None:
    service = tmp_path / "service.json"
    service.write_text(calibrated(0.2, figures=figures, temperature_cloud=2.0))
    options: Told = {"calibration": service, "target_upload_ratio": budget, "keep": KEEP}
    async with world(tmp_path) as w, w.worker("edge", "e", Small, **options):
        pass
    mining = read_mining(tmp_path / "e" / "hard")
    assert mining is not None
    assert (mining.target_upload_ratio, mining.temperature) == (goal, 2.0)


@simulated
async def test_samples_that_mining_keeps_from_the_model_count_for_the_version_with_which_they_are_kept(
    tmp_path: Path,
) -> None:
    tell(tmp_path, "a")
    rule: Told = {
        "hem_mode": "mining-then-inference", "hem_name": "Sharpness", "hem_parameters": {"threshold_sharpness": "1"}
    }  # fmt: skip
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c", Big),
        w.worker("edge", "e", Named, model_file=tmp_path / "e" / "model.json", keep=KEEP, **rule),
    ):
        for _ in range(3):
            assert (await w.answer(await w.send(HARD))).by == "cloud"
    folder = tmp_path / "e" / "hard"
    kept = [sample for sample, _ in stored_samples(folder)]
    assert [(sample.edge_model, sample.edge) for sample in kept] == [("v-a", None)] * 3
    intervals = list(read_stream(folder))
    assert {each.version for each in intervals} == {"v-a"}
    assert sum(each.hard for each in intervals) == 3


@simulated
async def test_samples_of_a_canary_are_counted_apart_and_after_its_promotion_no_more(tmp_path: Path) -> None:
    tell(tmp_path, "a")
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c", Big),
        w.worker("edge", "e", Named, model_file=tmp_path / "e" / "model.json", audit_share=1.0),
    ):
        await taken(w, tell(tmp_path, "b", 50))
        answers = [await w.answer(await w.send(EASY)) for _ in range(20)]
        answers += [await w.answer(await w.send(HARD)) for _ in range(20)]
        tried = [answer for answer in answers if answer.model == "v-b" or (answer.edge and answer.edge.label == "b")]
        await eventually(lambda: w.info("e").audited == 20)
        info = w.info("e")
        easy = [answer for answer in tried if not answer.hard]
        assert (info.canary_answered, info.canary_hard) == (len(tried), len(tried) - len(easy))
        assert (info.canary_audited, info.canary_agreed) == (len(easy), 0)
        await taken(w, tell(tmp_path, "b"))
        for _ in range(5):
            await w.answer(await w.send(EASY))
        await eventually(lambda: w.info("e").audited == 25)
        assert (w.info("e").canary_answered, w.info("e").inference_number) == (len(tried), 45)


@simulated
async def test_a_larger_share_of_audits_begins_and_ends_without_a_restart(tmp_path: Path) -> None:
    first = tell(tmp_path, "a")
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c", Big),
        w.worker("edge", "e", Named, model_file=tmp_path / "e" / "model.json"),
    ):
        await taken(w, first)
        for share, audited in ((0.0, 0), (1.0, 5), (0.0, 5)):
            await taken(w, tell(tmp_path, "a", audit_share=share))
            for _ in range(5):
                await w.answer(await w.send(EASY))
            await eventually(lambda audited=audited: w.info("e").audited == audited)  # type: ignore[misc]
    assert [info.status for info in w.infos["e"]].count("starting") == 1


@simulated
async def test_a_canary_is_mined_by_its_own_calibration_and_the_version_before_by_that_of_the_service(
    tmp_path: Path,
) -> None:
    first = tell(tmp_path, "a")
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c", Big),
        w.worker("edge", "e", Named, model_file=tmp_path / "e" / "model.json"),
    ):
        await taken(w, first)
        await taken(w, tell(tmp_path, "b", 50, calibration=calibrated(0.05)))
        answers = [await w.answer(await w.send(HARD)) for _ in range(40)]
        assert {round(answer.cut or 0, 6) for answer in answers if answer.model == "v-b"} == {-0.05}
        assert {answer.hard for answer in answers if answer.model == "v-b"} == {False}
        assert {answer.hard for answer in answers if answer.model != "v-b"} == {True}


@simulated
async def test_drift_is_measured_against_the_calibration_of_the_version_that_answers(tmp_path: Path) -> None:
    first = tell(tmp_path, "a")
    service = tmp_path / "service.json"
    service.write_text(calibrated(0.2))
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c", Big),
        w.worker("edge", "e", Named, model_file=tmp_path / "e" / "model.json", calibration=service),
    ):
        await taken(w, first)
        for _ in range(700):
            await w.answer(await w.send(EASY))
        await eventually(lambda: w.info("e").drifting == 1)  # of class a, which the calibration does not have
        await taken(w, tell(tmp_path, "b", calibration=calibrated(0.2, temperature_edge=2.0)))
        for _ in range(700):
            await w.answer(await w.send(EASY))
        await eventually(lambda: w.info("e").drifting == 0)


@simulated
@pytest.mark.parametrize(("text", "words"), UNFIT)
async def test_a_version_whose_calibration_does_not_fit_is_refused(text: str, words: str, tmp_path: Path) -> None:
    tell(tmp_path, "a")
    async with world(tmp_path) as w, w.worker("edge", "e", Named, model_file=tmp_path / "e" / "model.json"):
        bad = tell(tmp_path, "b", 50, calibration=text)
        await taken(w, bad)
        model = w.infos["e"][-1].model
        assert model is not None
        assert (model.version, model.canary_version, model.refused) == ("v-a", "", bad.digest)
        assert words in model.message
        assert (await w.answer(await w.send(EASY))).label == "a"


@simulated
@pytest.mark.parametrize(("text", "words"), UNFIT)
async def test_a_worker_starts_with_the_services_calibration_if_that_of_its_first_version_does_not_fit(
    text: str, words: str, tmp_path: Path
) -> None:
    tell(tmp_path, "a", calibration=text)
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c", Big),
        w.worker("edge", "e", Named, model_file=tmp_path / "e" / "model.json"),
    ):
        assert (await w.answer(await w.send(EASY))).label == "a"
        assert (await w.answer(await w.send(HARD))).cut == pytest.approx(-0.2)
        info = w.infos["e"][-1]
        assert (info.status, info.reason) == ("running", "CalibrationInvalid")
        assert words in info.message
        await taken(w, tell(tmp_path, "a", calibration=calibrated(0.05)))
        await eventually(lambda: w.infos["e"][-1].reason == "")
        assert (await w.answer(await w.send(HARD))).cut == pytest.approx(-0.05)


@simulated
async def test_a_calibration_that_was_made_with_other_pixels_is_reported_until_they_are_the_same(
    tmp_path: Path,
) -> None:
    service = tmp_path / "service.json"
    service.write_text(calibrated(0.2, edge_pixels=pixels_digest("scaled", [])))
    tell(tmp_path, "a")
    async with (
        world(tmp_path) as w,
        w.worker("cloud", "c", Big),
        w.worker("edge", "e", Named, model_file=tmp_path / "e" / "model.json", calibration=service),
    ):
        assert (await w.answer(await w.send(EASY))).label == "a"
        await eventually(lambda: w.infos["e"][-1].reason == "CalibrationDiffers")
        assert w.infos["e"][-1].status == "running"
        await taken(w, tell(tmp_path, "b", decode="scaled"))
        await eventually(lambda: w.infos["e"][-1].reason == "")


def test_a_desired_state_of_before_these_fields_is_still_read() -> None:
    old = msgspec.json.decode(b'{"name": "m", "path": "/m"}', type=DesiredModel)
    assert (old.calibration, old.audit_share) == ("", 0.0)
