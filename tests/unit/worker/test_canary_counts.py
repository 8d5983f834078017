"""What a worker counts and keeps for a learning loop: labelled samples, audited easy ones, and its canary's samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from halimede.api.jointinference import KeepHardSamples
from halimede.api.processing import pixels_digest
from halimede.bus.memory import MemoryBus
from halimede.hard_samples.client import KeptSamples
from halimede.hard_samples.store import stored_samples
from halimede.hard_samples.stream_counts import read_mining, read_stream
from halimede.messages import PersonLabel
from halimede.mining.calibration_file import CalibrationFile, Reference, write_artefact
from halimede.models.desired_state import DesiredModel
from tests.simulated import eventually, eventually_in_real_time
from tests.unit.worker.world import EASY, HARD, Named, ToldWorker, World, telling

pytestmark = pytest.mark.simulated

KEEP = KeepHardSamples(max_megabytes=1, max_samples=1000)


def calibrated(margin: float, **more: Any) -> str:
    file = CalibrationFile(
        service="s", rule="Margin", parameters={"threshold_margin": str(margin)},
        reference=Reference(hardness=[-0.8] * 20 + [-0.1], classes={"b": 1.0}, samples=500), **more,
    )  # fmt: skip
    return write_artefact(file).decode()


UNFIT = [("{}", "calibration"), ("no json", "calibration"), (calibrated(0.2).replace("Margin", "Entropy"), "Entropy")]


async def send(w: World, *values: int) -> None:
    """Send a frame of each value, and wait for its answer."""
    for value in values:
        await w.answer(await w.send(value))


async def test_audited_easy_samples_are_kept_with_the_big_models_answer_and_counted_by_label(
    w: World, tmp_path: Path
) -> None:
    async with w.worker("cloud", "c0"), w.worker("edge", "e0", keep=KEEP, audit_share=1.0):
        await send(w, EASY, EASY, EASY, HARD)
        await eventually_in_real_time(lambda: w.info("e0").labelled == 4)
        assert w.info("e0").labelled_easy == 3
    samples = {sample.result.audit: sample for sample, _ in stored_samples(tmp_path / "e0" / "hard")}
    easy, hard = samples[True], samples[False]
    assert (easy.result.by, easy.result.label, easy.result.hard, easy.audit_share) == ("cloud", "big", False, 1.0)
    assert (easy.edge.label, hard.result.hard) == ("small", True)


async def test_a_persons_label_counts_where_the_big_model_is_not_sure(w: World, tmp_path: Path) -> None:
    class Unsure:
        def predict(self, data: Any) -> dict[str, Any]:
            return {"label": "big", "probabilities": [0.6, 0.4]}

    async with w.worker("cloud", "c0", Unsure), w.worker("edge", "e0", keep=KEEP):
        id_ = await w.send(HARD)
        await w.answer(id_)
        await eventually_in_real_time(lambda: len(list((tmp_path / "e0" / "hard").glob("*.json"))) == 1)
        assert w.info("e0").labelled == 0
        async with MemoryBus("operator", w.broker) as bus:
            await bus.wait_connected(1)
            kept = KeptSamples(bus)
            await kept.start()
            for by in ("anna", "bert"):
                await kept.label(id_, PersonLabel(label="7", by=by))
        await eventually_in_real_time(lambda: w.info("e0").labelled == 1)


async def test_the_counts_of_the_stream_and_the_rule_are_next_to_the_samples(w: World, tmp_path: Path) -> None:
    async with w.worker("cloud", "c0"), w.worker("edge", "e0", keep=KEEP):
        await send(w, EASY, EASY, HARD)
    intervals = list(read_stream(tmp_path / "e0" / "hard"))
    assert (sum(each.easy for each in intervals), sum(each.hard for each in intervals)) == (2, 1)
    mining = read_mining(tmp_path / "e0" / "hard")
    assert (mining.rule, mining.parameters, mining.temperature) == ("Margin", {"threshold_margin": "0.2"}, 1.0)


@pytest.mark.parametrize(
    ("figures", "budget", "goal"),
    [({"upload_ratio": 0.3}, None, 0.3), ({"upload_ratio": 0.3}, 0.1, 0.1), ({}, None, None)],
)
async def test_a_version_is_calibrated_for_the_budget_or_for_the_uploads_of_the_services_calibration(
    w: World, figures: dict[str, float], budget: float | None, goal: float | None, tmp_path: Path
) -> None:
    service = tmp_path / "service.json"
    service.write_text(calibrated(0.2, metrics=figures, temperature_cloud=2.0))
    async with w.worker("edge", "e0", calibration=service, target_upload_ratio=budget, keep=KEEP):
        pass
    mining = read_mining(tmp_path / "e0" / "hard")
    assert (mining.target_upload_ratio, mining.temperature) == (goal, 2.0)


async def test_samples_that_mining_keeps_from_the_model_count_for_the_version_with_which_they_are_kept(
    w: World, tmp_path: Path
) -> None:
    rule: dict[str, Any] = {
        "hem_mode": "mining-then-inference", "hem_name": "Sharpness", "hem_parameters": {"threshold_sharpness": "1"}
    }  # fmt: skip
    async with w.worker("cloud", "c0"), telling(w, keep=KEEP, **rule):
        for _ in range(3):
            assert (await w.answer(await w.send(HARD))).by == "cloud"
    folder = tmp_path / "e0" / "hard"
    kept = [sample for sample, _ in stored_samples(folder)]
    assert [(sample.edge_model, sample.edge) for sample in kept] == [("v-a", None)] * 3
    intervals = list(read_stream(folder))
    assert {each.version for each in intervals} == {"v-a"}
    assert sum(each.hard for each in intervals) == 3


async def test_samples_of_a_canary_are_counted_apart_and_after_its_promotion_no_more(w: World) -> None:
    async with w.worker("cloud", "c0"), telling(w, audit_share=1.0) as edge:
        await edge.use("b", 50)
        answers = [await w.answer(await w.send(value)) for value in [EASY] * 20 + [HARD] * 20]
        tried = [answer for answer in answers if answer.model == "v-b" or (answer.edge and answer.edge.label == "b")]
        await eventually(lambda: w.info("e0").audited == 20)
        info = w.info("e0")
        easy = [answer for answer in tried if not answer.hard]
        assert (info.canary_answered, info.canary_hard) == (len(tried), len(tried) - len(easy))
        assert (info.canary_audited, info.canary_agreed) == (len(easy), 0)
        await edge.use("b")
        await send(w, *[EASY] * 5)
        await eventually(lambda: w.info("e0").audited == 25)
        assert (w.info("e0").canary_answered, w.info("e0").inference_number) == (len(tried), 45)


async def test_a_larger_share_of_audits_begins_and_ends_without_a_restart(w: World) -> None:
    async with w.worker("cloud", "c0"), telling(w) as edge:
        for share, audited in ((0.0, 0), (1.0, 5), (0.0, 5)):
            await edge.use("a", audit_share=share)
            await send(w, *[EASY] * 5)
            await eventually(lambda audited=audited: w.info("e0").audited == audited)  # type: ignore[misc]
    assert [info.status for info in w.infos["e0"]].count("starting") == 1


async def test_a_canary_is_mined_by_its_own_calibration_and_the_version_before_by_that_of_the_service(w: World) -> None:
    async with w.worker("cloud", "c0"), telling(w) as edge:
        await edge.use("b", 50, calibration=calibrated(0.05))
        answers = [await w.answer(await w.send(HARD)) for _ in range(40)]
        assert {round(answer.cut or 0, 6) for answer in answers if answer.model == "v-b"} == {-0.05}
        assert {answer.hard for answer in answers if answer.model == "v-b"} == {False}
        assert {answer.hard for answer in answers if answer.model != "v-b"} == {True}


async def test_drift_is_measured_against_the_calibration_of_the_version_that_answers(w: World, tmp_path: Path) -> None:
    service = tmp_path / "service.json"
    service.write_text(calibrated(0.2))
    async with w.worker("cloud", "c0"), telling(w, calibration=service) as edge:
        await send(w, *[EASY] * 700)
        await eventually(lambda: w.info("e0").drifting == 1)  # of class a, which the calibration does not have
        await edge.use("b", calibration=calibrated(0.2, temperature_edge=2.0))
        await send(w, *[EASY] * 700)
        await eventually(lambda: w.info("e0").drifting == 0)


@pytest.mark.parametrize(("text", "words"), UNFIT)
async def test_a_version_whose_calibration_does_not_fit_is_refused(w: World, text: str, words: str) -> None:
    async with telling(w) as edge:
        bad = await edge.use("b", 50, calibration=text)
        model = edge.in_use
        assert (model.version, model.canary_version, model.refused) == ("v-a", "", bad.digest)
        assert words in model.message
        assert (await w.answer(await w.send(EASY))).label == "a"


@pytest.mark.parametrize(("text", "words"), UNFIT)
async def test_a_worker_starts_with_the_services_calibration_if_that_of_its_first_version_does_not_fit(
    w: World, text: str, words: str
) -> None:
    edge = ToldWorker(w, "e0")
    edge.tell(edge.desired("a", calibration=text))
    async with w.worker("cloud", "c0"), w.worker("edge", "e0", Named, model_file=edge.file):
        assert (await w.answer(await w.send(EASY))).label == "a"
        assert (await w.answer(await w.send(HARD))).cut == pytest.approx(-0.2)
        info = w.infos["e0"][-1]
        assert (info.status, info.reason) == ("running", "CalibrationInvalid")
        assert words in info.message
        await edge.use("a", calibration=calibrated(0.05))
        await eventually(lambda: w.infos["e0"][-1].reason == "")
        assert (await w.answer(await w.send(HARD))).cut == pytest.approx(-0.05)


async def test_a_calibration_that_was_made_with_other_pixels_is_reported_until_they_are_the_same(
    w: World, tmp_path: Path
) -> None:
    service = tmp_path / "service.json"
    service.write_text(calibrated(0.2, edge_pixels=pixels_digest("scaled", [])))
    async with w.worker("cloud", "c0"), telling(w, calibration=service) as edge:
        assert (await w.answer(await w.send(EASY))).label == "a"
        await eventually(lambda: w.infos["e0"][-1].reason == "CalibrationDiffers")
        assert w.infos["e0"][-1].status == "running"
        await edge.use("b", decode="scaled")
        await eventually(lambda: w.infos["e0"][-1].reason == "")


def test_a_desired_state_of_before_these_fields_is_still_read() -> None:
    old = msgspec.json.decode(b'{"name": "m", "path": "/m"}', type=DesiredModel)
    assert (old.calibration, old.audit_share) == ("", 0.0)
