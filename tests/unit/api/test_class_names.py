"""Models of one service whose classes have different names are named; where names are unknown, nothing is claimed."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.api.base import convert
from halimede.api.class_names import different_names, model_names, unnamed_classes
from halimede.api.jointinference import JointInferenceServiceSpec
from halimede.api.model import ModelSpec

TEMPLATE = {"spec": {"containers": [{"name": "worker", "image": "halimede/worker"}]}}
OWN = {"spec": {"containers": [{"name": "worker", "env": [{"name": "ESTIMATOR", "value": "own:Estimator"}]}]}}
DETECTION = {"task": "detection"}


def service(*tiers: str, edge: dict[str, Any] = TEMPLATE) -> JointInferenceServiceSpec:
    def worker(model: str, template: dict[str, Any] = TEMPLATE) -> dict[str, Any]:
        return {"model": {"name": model}, "hardExampleMining": {"name": "BoxCount"}, "template": template}

    body = {"edgeWorker": worker("small", edge), "tiers": [{"name": name, **worker(name)} for name in tiers]}
    cloud = {"model": {"name": "big"}, "template": TEMPLATE}
    return convert({**body, "cloudWorker": cloud}, JointInferenceServiceSpec, "spec")


def model(*labels: str, postprocess: dict[str, Any] | None = DETECTION, form: str = "onnx") -> ModelSpec:
    body = {"url": "/models/m.onnx", "format": form, "labels": list(labels), "postprocess": postprocess}
    return convert(body, ModelSpec, "spec")


def test_a_model_without_names_beside_one_with_names_is_named() -> None:
    message = different_names(service(), {"small": model("palm"), "big": model()})
    assert message.startswith("small answers palm, and big numbers of classes (it has no spec.labels): no answer of")
    assert message.endswith("set spec.labels of both Models to the same names")
    assert "small numbers of" not in message
    assert "small answers numbers" in different_names(service(), {"small": model(), "big": model("palm")})


@pytest.mark.parametrize("postprocess", [DETECTION, None, {"task": "classification"}])
def test_names_without_one_in_common_are_named(postprocess: dict[str, Any] | None) -> None:
    models = {"small": model("palm", postprocess=postprocess), "big": model("hand", "face", postprocess=postprocess)}
    assert "small answers palm, and big face, hand" in different_names(service(), models)


def test_each_tier_is_compared_with_the_next_one() -> None:
    models = {"small": model("palm"), "middle": model("palm"), "big": model("hand")}
    assert "middle answers palm, and big hand" in different_names(service("middle"), models)
    assert model_names(service("middle")) == {"small", "middle", "big"}


@pytest.mark.parametrize(
    ("small", "big"),
    [
        (model("palm"), model("palm", "face")),
        (model(), model()),
        (model(), model("0", "1")),  # numbers, as the other one answers
        (model("palm"), model(postprocess={**DETECTION, "script": {"file": "boxes.py"}})),
        (model("palm", postprocess={"task": "text"}), model(postprocess={"task": "text"})),
        (model("palm", postprocess={"task": "embedding"}), model(postprocess={"task": "embedding"})),
        (model("palm"), model("hand", postprocess={"task": "classification"})),
        (model("palm"), model(form="own")),
    ],
)
def test_the_same_names_and_unknown_ones_are_in_order(small: ModelSpec, big: ModelSpec) -> None:
    assert different_names(service(), {"small": small, "big": big}) == ""


def test_nothing_is_claimed_of_missing_models_and_own_estimators() -> None:
    assert different_names(service(), {"small": model("palm")}) == ""
    assert different_names(service(edge=OWN), {"small": model("palm"), "big": model()}) == ""


def test_boxes_and_classes_without_names_are_a_note() -> None:
    assert "so boxes are numbered: write spec.labels" in unnamed_classes(model())
    assert "so classes are numbered: write spec.labels" in unnamed_classes(model(postprocess=None))
    for named in (model("palm"), model(postprocess={"task": "text"}), model(form="own")):
        assert unnamed_classes(named) == ""
