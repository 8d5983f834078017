"""The committee of a service: checked fields, delivered models, and the worker that opens them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from halimede import JointModel
from halimede.api import parse
from halimede.api.placement import placements
from halimede.errors import InvalidFieldError
from halimede.evaluation.evaluate import evaluate
from halimede.evaluation.service import Chain, answer_all, read_chain
from halimede.inference import EnsembleModel, open_model
from halimede.worker.joint_inference import joint_inference
from halimede.worker.settings import read
from services.gm.workloads.model_init_container import SLOTS
from services.gm.workloads.pod_status import FETCHES
from tests.unit.evaluation.test_evaluate import data
from tests.unit.evaluation.worlds import joint, model, write
from tests.unit.worker.test_settings import EDGE


def service(*names: str) -> dict:
    body = joint()
    body["spec"]["edgeWorker"] |= {
        "committee": [{"name": name} for name in names],
        "hardExampleMining": {"name": "Agreement"},
    }
    return body


def chain(folder: Path, *names: str) -> Chain:
    models = [model(folder, "small"), model(folder, "middle", -1.0), model(folder, "big", -1.0)]
    return read_chain([write(folder, service(*names), *models)])


def test_evaluate_lets_the_committee_answer_and_draws_agreement(tmp_path: Path) -> None:
    tiers = chain(tmp_path, "middle")
    assert [resource.metadata.name for resource in tiers.models] == ["small", "big", "middle"]
    votes = answer_all(tiers.edge, data())[0].value["votes"]
    assert sorted(votes) == ["a", "b"]
    report = evaluate(tiers, data())
    assert report.operating_point.rule == "Agreement"
    assert "Agreement" in report.curves


def test_a_joint_model_of_the_manifests_has_the_committee(tmp_path: Path) -> None:
    chain(tmp_path, "middle")
    with JointModel.from_file(tmp_path) as joint_model:
        result = joint_model.predict(data().image(0))
    assert result.by == "cloud"


@pytest.mark.parametrize(
    ("names", "value"),
    [(("small",), "small"), (("middle", "middle"), "middle"), (("a/b",), "a/b"), (("one", "two", "three"), "three")],
)
def test_a_model_that_votes_twice_has_no_name_or_is_the_fourth_is_refused(names: tuple[str, ...], value: str) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        parse(service(*names))
    assert refused.value.field.startswith("spec.edgeWorker.committee")
    assert value in refused.value.value


def test_a_model_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        chain(tmp_path, "nowhere")
    assert (refused.value.field, refused.value.value) == ("spec.edgeWorker.committee.name", "'nowhere'")


def test_its_models_are_delivered_like_the_model() -> None:
    edge, _ = placements(parse(service("middle", "large")).spec)
    assert edge.needs == {"model": "small", "committee1": "middle", "committee2": "large"}
    for what in edge.needs:
        assert SLOTS[what].init in FETCHES
    assert len({SLOTS[what].volume for what in edge.needs}) == len(edge.needs)


def test_a_worker_opens_the_models_of_its_environment(tmp_path: Path) -> None:
    tiers = chain(tmp_path, "middle")
    (path, spec) = tiers.edge.committee[0]
    described = json.dumps({"url": str(path), "format": "onnx", "labels": spec.labels})
    settings = read("edge", {**EDGE, "COMMITTEE1_URL": str(path), "COMMITTEE1_SPEC": described})
    compose = joint_inference(settings).compose
    first = open_model(tiers.edge.path, tiers.edge.spec)
    with compose(first) as committee:
        assert isinstance(committee, EnsembleModel)
        sample = committee.prepare(np.array([1.0, -1.0, -9.0], np.float32))
        assert committee.predict([sample])[0].value["votes"] == ["a", "b"]
    alone = joint_inference(read("edge", EDGE)).compose
    with open_model(tiers.edge.path, tiers.edge.spec) as model_alone:
        assert alone(model_alone) is model_alone


def test_an_environment_with_a_bad_spec_names_its_variable() -> None:
    with pytest.raises(InvalidFieldError, match="COMMITTEE2_SPEC"):
        read("edge", {**EDGE, "COMMITTEE2_URL": "/x", "COMMITTEE2_SPEC": "{"})
