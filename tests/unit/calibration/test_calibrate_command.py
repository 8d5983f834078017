"""``halimede calibrate`` with the digits' own models, as a user types it."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from examples.digits import data
from halimede import JointModel, api
from halimede.calibration.service import model_digest
from halimede.evaluation.service import read_chain
from halimede.mining.calibration_file import read_artefact
from halimede.models import Cache
from services.lc.models.preparer import ModelFiles
from services.lc.planning.resource_state import RequiredFile
from tests.typed import typed
from tests.unit.api.samples import resource

RULE = """
from dataclasses import dataclass
from halimede.mining import ByHardness


@dataclass(frozen=True)
class Lead(ByHardness):
    cut: float = 0.5

    def hardness(self, prediction):
        return 1 - max(prediction.probabilities)
"""
SERVICE = Path("examples/digits/2-service.yaml")
MODELS = Path("examples/digits/1-models.yaml")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """The half that no model was trained on."""
    split, path = data.load(), tmp_path_factory.mktemp("digits") / "test.npz"
    images = np.rint(split.test_x * 240).astype(np.uint8).reshape(-1, 8, 8)
    np.savez(path, x=images, y=split.test_y)
    return path


def calibrate(*arguments: object, service: Path = SERVICE, code: int = 0):
    return typed("calibrate", "--service", service, *arguments, code=code)


def test_it_writes_a_service_that_can_be_applied_and_the_calibration_that_it_names(pictures, tmp_path):
    shown = calibrate("--data", pictures, "--target-upload", 0.2, "--out", tmp_path).output
    assert "fitted on 629 samples, measured on 270 others; truth: labels" in shown
    assert f"halimede apply -f {tmp_path}/digits.calibration.yaml" in shown
    chain = read_chain([tmp_path / "digits.calibration.yaml"])
    deferral = chain.edge.deferral
    assert (deferral.target_upload_ratio, deferral.audit_share) == (0.2, 0.01)
    assert (deferral.hard_example_mining.name, deferral.calibration.name) == ("Learned", "digits-calibration")
    assert chain.service.spec.edge_worker.source.cameras == ["cam0", "cam1"]
    artefact = read_artefact(chain.edge.calibration)
    assert artefact.edge_digest == hashlib.sha256(chain.edge.path.read_bytes()).hexdigest()
    assert artefact.metrics["joint"] > artefact.metrics["edge_only"]


@pytest.fixture(scope="module")
def written(pictures, tmp_path_factory):
    """A folder with a space in its name, and what the command printed about what it wrote there."""
    folder = tmp_path_factory.mktemp("calibrated") / "my site"
    return folder, calibrate("--data", pictures, "--target-upload", 0.05, "--out", folder, "--accept").output


def test_apply_and_the_joint_model_take_what_it_writes_as_it_is(pictures, written, tmp_path, monkeypatch):
    folder, output = written
    command = re.search(r"^Next: halimede (.*)$", output, re.MULTILINE)
    monkeypatch.chdir(tmp_path)  # nothing in it is relative to where it was written
    applied = typed(*shlex.split(command[1]), "--dry-run=client")
    kinds = ["model/digits-small", "model/digits-big", "model/digits-calibration", "jointinferenceservice/digits"]
    assert applied.stdout.splitlines() == [f"{name} valid (dry run)" for name in kinds]
    assert applied.stderr == ""
    with np.load(pictures) as arrays, JointModel.from_file(folder / "digits.calibration.yaml") as model:
        answers = model.predict_batch(arrays["x"][:20])
        assert np.mean([answer.label == str(y) for answer, y in zip(answers, arrays["y"], strict=False)]) > 0.8


def test_it_says_what_it_changes_in_the_service(written):
    _, output = written
    assert "hardExampleMining Learned (was Margin (threshold_margin 0.19))" in output
    assert "targetUploadRatio 0.05 (was not set)" in output
    assert "auditShare 0.005 (was not set): this share of easy samples goes up as well" in output


def test_a_rule_in_a_file_beside_the_manifest_is_calibrated_and_written_with_its_whole_path(pictures, tmp_path):
    folder = tmp_path / "service"
    folder.mkdir()
    (folder / "lead.py").write_text(RULE)
    body = SERVICE.read_text().replace("name: Margin", "name: lead.py:Lead")
    body = body.replace('{key: threshold_margin, value: "0.19"}', '{key: cut, value: "0.5"}')
    (folder / "service.yaml").write_text(body)
    options = ("--service", MODELS, "--data", pictures, "--out", tmp_path, "--target-upload", 0.2)
    calibrate(*options, "--rule", f"{folder}/lead.py:Lead", service=folder / "service.yaml")
    mining = read_chain([tmp_path / "digits.calibration.yaml"]).edge.deferral.hard_example_mining
    assert (mining.name, [each.key for each in mining.parameters]) == (f"{folder}/lead.py:Lead", ["cut"])
    assert mining.parameters[0].value != "0.5"
    assert typed("apply", "-f", f"{tmp_path}/digits.calibration.yaml", "--dry-run=client").stderr == ""


def test_a_rule_that_is_not_above_chance_is_not_written_unless_it_is_accepted(pictures, tmp_path):
    with np.load(pictures) as arrays:
        noise = np.random.default_rng(0).integers(0, 240, arrays["x"].shape).astype(np.uint8)
        np.savez(tmp_path / "noise.npz", x=noise, y=arrays["y"])
    options = ("--data", tmp_path / "noise.npz", "--target-upload", 0.2, "--out", tmp_path / "out")
    refused = calibrate(*options, code=1).output
    assert "metric: accuracy" in refused
    assert "Not written: the joint answers are not above chance" in refused
    assert not (tmp_path / "out").exists()
    report = json.loads(calibrate(*options, "--json", code=1).stdout)
    assert report.items() >= {"aboveChance": False, "metric": "accuracy", "blockLength": 1}.items()
    assert report["files"] == []
    calibrate(*options, "--accept")
    assert (tmp_path / "out" / "digits.calibration.yaml").exists()


def test_too_few_samples_are_refused_before_a_model_is_opened(pictures, tmp_path, monkeypatch):
    def answer(*_: object, **__: object) -> None:
        raise AssertionError("a model was asked")

    monkeypatch.setattr("halimede.calibration.service.answer_and_time", answer)
    few = tmp_path / "few.npz"
    with np.load(pictures) as arrays:
        np.savez(few, x=arrays["x"][:43], y=arrays["y"][:43])
    refused = calibrate("--data", few, "--target-upload", 0.2, "--out", tmp_path / "out", code=1)
    shortage = "43 samples are too few: with 30 % held out give at least 72"
    assert f"--data {few}: {shortage}" in " ".join(refused.output.split())


def test_a_limit_on_the_risk_leaves_no_budget_to_move_its_cut(pictures, tmp_path):
    done = calibrate("--data", pictures, "--max-risk", 0.05, "--rule", "margin", "--out", tmp_path, "--json")
    said = json.loads(done.stdout)
    assert said["figures"]["risk"] <= 0.05
    assert any(line.startswith("auditShare 0.01 (was not set)") for line in said["changes"])
    assert said["next"] == f"halimede apply -f {tmp_path}/digits.calibration.yaml"
    deferral = read_chain([tmp_path / "digits.calibration.yaml", MODELS]).edge.deferral
    assert (deferral.hard_example_mining.name, deferral.target_upload_ratio) == ("Margin", None)


def test_a_service_that_mines_before_inference_keeps_a_rule_that_can(pictures, tmp_path):
    body = SERVICE.read_text().replace("name: Margin", "name: Sharpness\n      mode: mining-then-inference")
    service = tmp_path / "service.yaml"
    service.write_text(body.replace('{key: threshold_margin, value: "0.19"}', '{key: threshold_sharpness, value: "9"}'))
    options = ("--service", MODELS, "--data", pictures, "--target-upload", 0.2, "--out", tmp_path)
    calibrate(*options, "--accept", service=service)  # sharp digits are no easier
    mining = read_chain([tmp_path / "digits.calibration.yaml", MODELS]).edge.deferral.hard_example_mining
    assert (mining.name, mining.mode) == ("Sharpness", "mining-then-inference")


def test_a_deadline_becomes_the_share_that_can_be_back_in_time(pictures, tmp_path):
    assert "for upload ratio 1" in calibrate("--data", pictures, "--deadline-ms", 100, "--out", tmp_path).output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "one of --target-upload, --max-risk"),
        (("--target-upload", 0.2, "--max-risk", 0.1), 2, "one of --target-upload, --max-risk"),
        (("--max-risk", "nan"), 2, "--max-risk"),
        (("--target-upload", 0.2, "--tier", "fog"), 1, "--tier: 'fog' is not accepted: use one of edge"),
        (("--target-upload", 0.2, "--rule", "Margn"), 1, "did you mean Margin?"),
        (("--max-risk", 0.0001), 1, "are too few to show that"),
        (("--deadline-ms", 10), 1, "--deadline-ms: 10.0 is not accepted: nothing is back by then"),
    ],
)
def test_a_mistake_is_named_with_the_option_and_what_to_do(pictures, tmp_path, arguments, code, said):
    refused = calibrate("--data", pictures, "--out", tmp_path, *arguments, code=code)
    assert said in " ".join(refused.output.replace("│", "").split())
    assert not any(tmp_path.iterdir())


async def test_a_node_takes_a_calibration_as_a_plain_file_that_nothing_tries(tmp_path):
    path = tmp_path / "digits.calibration"
    path.write_bytes(b"{}")
    spec = {"url": str(path), "format": "calibration", "sha256": hashlib.sha256(b"{}").hexdigest()}
    model = api.parse(resource("Model", spec))
    want = RequiredFile(model.key, "u", 1, str(path), model.spec.sha256, model.spec.format)
    brought = await ModelFiles()(want, Cache(tmp_path / "cache"), lambda *_: None)
    assert (brought.path.read_bytes(), brought.facts.inputs) == (b"{}", [])


def test_costs_are_a_goal_that_evaluate_measures_as_well(pictures, tmp_path):
    shown = calibrate("--data", pictures, "--costs", "miss=1,upload=0.1", "--out", tmp_path).output
    assert "for the least cost (miss=1,upload=0.1), bounded with probability 0.99" in shown
    assert "costs miss 1.0, upload 0.1 (was not set)" in shown
    assert "bound on the cost of joint" in shown
    metrics = read_artefact(tmp_path / "digits.calibration").metrics
    assert metrics["cost"] < min(metrics["cost_edge_only"], metrics["cost_cloud_only"])
    deferral = read_chain([tmp_path / "digits.calibration.yaml"]).edge.deferral
    assert (deferral.costs.miss, deferral.costs.upload, deferral.target_upload_ratio) == (1, 0.1, None)
    command = ("evaluate", "--service", tmp_path / "digits.calibration.yaml", "--data", pictures)
    measured = typed(*command, "--out", tmp_path / "report")
    assert re.search(r"cost +0\.0\d+ a sample, 0\.\d+ by the edge alone, 0\.1\d+ by the cloud alone", measured.output)


@pytest.mark.parametrize(
    ("costs", "named"),
    [
        ("miss=-1,upload=1", "--costs.miss: -1.0 is not accepted"),
        ("miss=nan,upload=1", "--costs.miss: nan is not accepted"),
        ("miss=high,upload=1", "--costs.miss: 'high' is not accepted: give a number from 0 to 1e+09"),
        ("miss=1,upload=1,adaptive=perhaps", "--costs.adaptive: 'perhaps' is not accepted: write true or false"),
        ("miss=0,upload=1", "give miss or falseAlarm a cost over 0"),
        ("miss=1", "--costs.upload: None is not accepted: it is required"),
        ("miss=1,upload=1,miss=2", "write each cost once"),
        ("10", "write each cost once"),
        ("miss=1,upload=1,loss=2", "--costs.loss: 2.0 is not accepted"),
    ],
)
def test_costs_that_make_no_sense_are_refused_with_what_to_write(pictures, tmp_path, costs, named):
    refused = calibrate("--data", pictures, "--costs", costs, "--out", tmp_path, code=1)
    assert named in " ".join(refused.output.split())
    assert not list(tmp_path.iterdir())


def test_the_digest_of_a_folder_changes_with_each_name_and_content_in_it(tmp_path):
    (tmp_path / "variables").mkdir()
    first, second = tmp_path / "saved_model.pb", tmp_path / "variables" / "data"
    first.write_bytes(b"graph")
    second.write_bytes(b"weights")
    digests = {model_digest(tmp_path)}
    second.write_bytes(b"other weights")
    digests.add(model_digest(tmp_path))
    second.rename(tmp_path / "variables" / "index")
    digests.add(model_digest(tmp_path))
    assert len(digests) == 3
    assert model_digest(first) == hashlib.sha256(b"graph").hexdigest()
