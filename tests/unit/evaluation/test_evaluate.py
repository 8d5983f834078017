"""Whole services on data: their ends, their curves, and the point at which they are configured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.evaluate import EvaluationReport, TierLink, evaluate
from halimede.evaluation.quality import with_truth
from halimede.evaluation.report import page, ratio_rows
from halimede.evaluation.service import Chain, read_chain
from halimede.messages import Box, Prediction
from halimede.mining.calibration_file import CalibrationFile, MixtureRule, write_artefact
from tests.typed import typed
from tests.unit.api.samples import resource
from tests.unit.evaluation.worlds import joint, model, samples_of, write

#: rows of three scores: of the first 60 the highest is the truth; the others lie, and the less the surer they are
ROWS = 100


def data() -> LabelledSamples:
    """The big model negates what the small one says: it is right where that lies, about two classes."""
    random = np.random.default_rng(3)
    sure = [random.uniform(1, 3) if i < 60 else random.uniform(0.05, 0.5) for i in range(ROWS)]
    images = [np.array([score, -score, -9], np.float32) for score in sure]
    return samples_of(images, truths=["a" if i < 60 else "b" for i in range(ROWS)])


def chain(folder: Path, body: dict[str, Any] | None = None, **deferral: Any) -> Chain:
    body = body or joint(threshold_margin="0.4")
    body["spec"]["edgeWorker"] |= deferral
    models = [model(folder, "small"), model(folder, "middle", -1.0), model(folder, "big", -1.0)]
    return read_chain([write(folder, body, *models)])


def test_curves_run_from_the_edge_to_the_cloud(tmp_path: Path) -> None:
    report = evaluate(chain(tmp_path), data())
    assert (report.edge_only, report.cloud_only) == (0.6, 0.4)
    assert {"Margin", "Entropy", "MaxProbability", "CrossEntropy", "Threshold"} <= set(report.curves)
    for points in (*report.curves.values(), report.oracle, report.random):
        assert (points[0]["accuracy"], points[-1]["accuracy"]) == (0.6, 0.4)
    margin = {point["upload_ratio"]: point["accuracy"] for point in report.curves["Margin"]}
    assert margin[0.4] == 1.0 == max(point["accuracy"] for point in report.oracle)
    assert report.curves["Random"] == report.random
    assert report.random[50]["accuracy"] == pytest.approx(0.5)
    assert {"CloudOnly", "EdgeOnly", "Learned", "BoxCount"} <= set(report.left_out)


def test_the_configured_point_is_what_the_rule_itself_decides(tmp_path: Path) -> None:
    report = evaluate(chain(tmp_path), data(), link=TierLink(ms=10, kbps=8, assumed=False))
    point = report.operating_point
    assert (point.rule, point.parameters) == ("Margin", {"threshold_margin": "0.4"})
    assert 0 < point.upload_ratio == report.tiers[1].reached < 0.5
    assert point.accuracy == pytest.approx(0.6 + point.upload_ratio, abs=1e-6)
    assert point.bytes_to_cloud == pytest.approx(point.upload_ratio * report.bytes_cloud_only, rel=0.02)
    assert report.bytes_cloud_only > 12
    wire_ms = 10 + report.bytes_cloud_only  # 8 kbit/s: a byte a millisecond
    both = report.tiers[0].model_ms + point.upload_ratio * (wire_ms + report.tiers[1].model_ms)
    assert point.latency_ms == pytest.approx(both, rel=0.02)


def test_a_rule_below_random_uploads_is_a_note(tmp_path: Path) -> None:
    service = chain(tmp_path, targetUploadRatio=0.25)
    assert not [note for note in evaluate(service, data()).notes if "below random" in note]
    truths = ["b" if truth == "a" else "a" for truth in data().truths or ()]
    opposite = replace(data(), truths=truths)  # the surest answers are wrong
    note = "at 25% Margin is below random (0.15, 0.45): halimede calibrate chooses a rule"
    assert note in evaluate(service, opposite).notes
    by_chance = chain(tmp_path, joint(mining="Random", seed="1"), targetUploadRatio=0.25)
    for samples in (data(), opposite):  # one of the two is below the mean
        assert not [note for note in evaluate(by_chance, samples).notes if "below random" in note]


def test_a_budget_is_met_by_the_hardest(tmp_path: Path) -> None:
    point = evaluate(chain(tmp_path, targetUploadRatio=0.25), data()).operating_point
    assert (point.upload_ratio, point.target_upload_ratio, point.accuracy) == pytest.approx((0.25, 0.25, 0.85))


@pytest.mark.parametrize(("mining", "share"), [("CloudOnly", 0.3), ("EdgeOnly", 0.0)])
def test_a_budget_bounds_a_rule_without_numbers(tmp_path: Path, mining: str, share: float) -> None:
    body = joint(mining=mining)
    assert evaluate(chain(tmp_path, body, targetUploadRatio=0.3), data()).operating_point.upload_ratio == share


def test_with_a_mixture_the_curve_ends_at_what_both_say_together(tmp_path: Path) -> None:
    found = CalibrationFile(service="letters", labels=["a", "b", "c"], mixture=MixtureRule(edge=2.0, cloud=1.0))
    (tmp_path / "found.calibration").write_bytes(write_artefact(found))
    named = resource("Model", {"url": "./found.calibration", "format": "calibration"}, "found")
    (tmp_path / "calibration.yaml").write_text(yaml.safe_dump(named))
    report = evaluate(chain(tmp_path, calibration={"name": "found"}, fusion="mixture"), data())
    assert (report.fusion, report.cloud_only) == ("mixture", 0.4)
    assert report.curves["Margin"][-1]["accuracy"] == 0.6  # the edge outweighs the cloud
    assert "no learned rule" in report.left_out["Learned"]


def test_a_calibration_that_is_named_and_missing_is_no_plain_service(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match=r"calibration found of edge.*halimede calibrate"):
        evaluate(chain(tmp_path, calibration={"name": "found"}, fusion="mixture"), data())


def test_a_rule_that_looks_at_samples_spares_the_small_model(tmp_path: Path) -> None:
    body = joint(mining="Random", random_ratio="0.5", seed="1")
    after = evaluate(chain(tmp_path, body), data()).operating_point
    body["spec"]["edgeWorker"]["hardExampleMining"]["mode"] = "mining-then-inference"
    before = evaluate(chain(tmp_path, body), data()).operating_point
    assert before.upload_ratio == pytest.approx(0.5, abs=0.15)
    assert before.bytes_up / before.upload_ratio < after.bytes_up / after.upload_ratio  # no answer goes up with it
    body["spec"]["edgeWorker"]["hardExampleMining"] |= {"name": "Margin", "parameters": []}
    with pytest.raises(InvalidFieldError, match="mining-then-inference"):
        evaluate(chain(tmp_path, body), data())


def test_of_three_tiers_each_sends_on_what_it_finds_hard(tmp_path: Path) -> None:
    body = joint(tiers=["middle"], threshold_margin="0.4")
    three = evaluate(chain(tmp_path, body), data())
    assert [tier.name for tier in three.tiers] == ["edge", "middle", "cloud"]
    assert [tier.measures["accuracy"] for tier in three.tiers] == [0.6, 0.4, 0.4]
    point = three.operating_point
    # the middle is as unsure as the edge is: all that reaches it goes on
    assert point.cloud_ratio == point.upload_ratio == three.tiers[2].reached
    body["spec"]["tiers"][0]["targetUploadRatio"] = 0.5
    held = evaluate(chain(tmp_path, body), data()).operating_point
    assert held.upload_ratio == point.upload_ratio
    assert held.cloud_ratio == pytest.approx(point.upload_ratio / 2, abs=0.01)
    assert held.bytes_to_cloud == pytest.approx(point.bytes_to_cloud / 2, rel=0.05)
    assert held.latency_ms < point.latency_ms
    assert held.accuracy == point.accuracy


def test_without_labels_the_clouds_answers_are_true(tmp_path: Path) -> None:
    report = evaluate(chain(tmp_path), samples_of(data().images))
    assert (report.cloud_only, report.edge_only, report.reference) == (1.0, 0.0, "cloud")


def test_boxes_without_labels_are_those_that_the_cloud_is_sure_of() -> None:
    bare = samples_of([np.zeros((4, 4), np.uint8)])
    cloud = [Prediction(boxes=[Box(0, 0, 1, 1, 0.6, "cat"), Box(0, 0, 1, 1, 0.4, "cat")])]
    assert with_truth(bare, cloud).boxes == [[Box(0, 0, 1, 1, 1.0, "cat")]]


def test_labels_and_answers_of_different_kinds_are_refused(tmp_path: Path) -> None:
    known = data()
    with pytest.raises(InvalidFieldError, match="the model answers no boxes"):
        evaluate(chain(tmp_path), samples_of(known.images, boxes=[[]] * ROWS))
    for samples, answers, message in (
        (known, [Prediction(boxes=[])] * ROWS, "the model answers boxes"),
        (known, [Prediction(label=str(i % 2)) for i in range(ROWS)], "'a, b' .* but 0, 1: set the Model's spec.labels"),
        (samples_of(known.images), [Prediction(value=1)] * ROWS, "neither classes nor boxes"),
    ):
        with pytest.raises(InvalidFieldError, match=message):
            with_truth(samples, answers)


def test_only_the_rules_that_are_wanted(tmp_path: Path) -> None:
    assert set(evaluate(chain(tmp_path), data(), rules=["Margin", "Entropy"]).curves) == {"Margin", "Entropy"}
    with pytest.raises(InvalidFieldError, match=r"--rules: 'Marign' .* did you mean Margin"):
        evaluate(chain(tmp_path), data(), rules=["Marign"])
    with pytest.raises(InvalidFieldError, match=r"--rules: 'Learned' .*calibrat"):
        evaluate(chain(tmp_path), data(), rules=["Learned"])


def test_names_are_escaped_wherever_they_come_from(tmp_path: Path) -> None:
    report = evaluate(chain(tmp_path), data(), rules=["Margin"])
    nasty = "</script><b onload=x>&\"'$heading"
    report.service = report.operating_point.rule = report.tiers[0].name = report.tiers[0].model = nasty
    report.left_out, report.notes = {nasty: nasty}, [nasty]
    report.curves = {nasty: report.curves["Margin"]}
    html = page(report)
    assert "<b onload" not in html
    assert html.count("</script>") == 2
    embedded = html.split('id="data">')[1].split("</script>")[0]
    assert nasty in json.loads(embedded)["curves"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    known = data()
    np.savez(tmp_path / "d.npz", x=np.stack(known.images), y=known.truths or [])
    chain(tmp_path)
    names = {"--service": "service.yaml", "--data": "d.npz", "--out": "o"}
    return [part for option, name in names.items() for part in (option, str(tmp_path / name))]


def test_the_command_writes_figures_page_and_plot_and_shows_tables(tmp_path: Path, files: list[str]) -> None:
    shown = typed("evaluate", *files).output
    for part in ("letters: 100 samples", "oracle", "Margin", "AS CONFIGURED", "evaluation.html", "assumed"):
        assert part in shown
    report = msgspec.json.decode((tmp_path / "o" / "evaluation.json").read_bytes(), type=dict)
    assert {"edge_only", "cloud_only", "curves", "oracle"} <= set(report)
    assert report["curves"]["Margin"][0] == {"upload_ratio": 0.0, "accuracy": 0.6}
    assert (tmp_path / "o" / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "o" / "evaluation.html").read_text()


def test_without_matplotlib_it_is_asked_for(tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    shown = typed("evaluate", *files, "--json", "--rules", "Margin", "--link-ms", "1")
    assert "halimede[demo]" in shown.stderr
    printed = msgspec.json.decode(shown.stdout, type=EvaluationReport)
    assert list(printed.curves) == ["Margin"]
    assert (printed.link.ms, printed.link.assumed) == (1.0, False)
    assert not (tmp_path / "o" / "evaluation.png").exists()
    assert (tmp_path / "o" / "evaluation.html").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--data": "nowhere"}, "--data: 'nowhere'"),
        ({"--service": "nowhere.yaml"}, "--service: 'nowhere.yaml'"),
        ({"--out": "/proc/nothing"}, "--out: '/proc/nothing'"),
    ],
)
def test_a_mistake_is_one_line(files: list[str], changes: dict[str, str], said: str) -> None:
    given = dict(zip(files[::2], files[1::2], strict=True)) | changes
    shown = typed("evaluate", *[part for pair in given.items() for part in pair], code=1)
    assert said in shown.stderr
    assert len(shown.stderr.strip().splitlines()) == 1


def detectors(folder: Path, side: int = 8, **edge: Any) -> str:
    """Evaluate a service of two detectors on pictures of a spot; return the report."""
    from PIL import Image

    from tests.graphs import write_spotter

    write_spotter(folder / "spotter.onnx")
    images, annotations = [], []
    for i in range(6):
        picture = np.zeros((side, side), np.uint8)
        picture[2:4, 2:5] = 140 + 20 * i
        Image.fromarray(picture).save(folder / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png"})
        annotations.append({"image_id": i, "category_id": 1, "bbox": [2, 2, 3, 2]})
    whole = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "spot"}]}
    (folder / "annotations.json").write_text(json.dumps(whole))
    body = joint(mining="Threshold")
    body["spec"]["edgeWorker"] |= edge
    steps = [{"op": "normalize"}, {"op": "layout", "order": "hwc"}]
    spec = {"url": "./spotter.onnx", "format": "onnx", "labels": ["spot"], "preprocess": steps,
            "postprocess": {"task": "detection"}}  # fmt: skip
    service = write(folder, body, *(resource("Model", spec, name) for name in ("small", "big")))
    return typed("evaluate", "--service", service, "--data", folder, "--out", folder / "out", "--json").stdout


def test_a_service_of_detectors_has_curves_too(tmp_path: Path) -> None:
    shown = detectors(tmp_path)
    report = msgspec.json.decode(shown, type=EvaluationReport)
    assert (report.task, report.metric, report.edge_only) == ("detection", "mAP@0.5", 1.0)
    assert {"IBT", "Threshold", "BoxCount", "UncertainBoxes", "SmallestBox"} <= set(report.curves)
    assert set(json.loads(shown)["curves"]["IBT"][0]) == {"upload_ratio", "accuracy", "map_50_95", "recall"}
    assert report.tiers[0].measures == {"accuracy": 1.0, "map_50_95": 1.0, "recall": 1.0}
    _, table = ratio_rows(report)
    assert table[0][0] == "by rewards"
    assert "oracle" not in (tmp_path / "out" / "evaluation.html").read_text()


def test_uploads_of_regions_have_the_bytes_of_their_pictures(tmp_path: Path) -> None:
    rule = {"name": "CloudOnly"}
    whole, parts = (
        msgspec.json.decode(detectors(tmp_path, 64, hardExampleMining=rule, **upload), type=EvaluationReport)
        for upload in ({}, {"upload": "regions", "encoding": "raw"})
    )
    assert (parts.bytes_cloud_only, parts.cloud_only) == (whole.bytes_cloud_only, whole.cloud_only)
    assert whole.operating_point.bytes_up < 64 * 64 < parts.operating_point.bytes_up
    assert [note for note in parts.notes if note.startswith("upload regions: ")]


def test_regions_of_models_without_boxes_are_refused(tmp_path: Path, files: list[str]) -> None:
    chain(tmp_path, upload="regions")
    assert "model small answers no boxes" in typed("evaluate", *files, code=1).stderr
