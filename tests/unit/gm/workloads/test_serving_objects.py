"""What prevents the objects of an InferenceModel, besides what a real API server shows."""

from __future__ import annotations

import pytest

from halimede import api
from services.gm.workloads import serving_objects
from services.gm.workloads.pod_settings import OUR_SERVER, parse
from tests.integration.inference_models import inference_model

SERVING = {"tensorflow": {"image": "tensorflow/serving:2.19.0"}}
WITH_REGISTRY = parse({"broker": "broker", "registry": "registry.example", "serving": SERVING}, {})


@pytest.mark.parametrize("field", ["preprocess", "postprocess"])
def test_another_server_is_not_started_for_a_model_whose_scripts_it_would_not_call(field: str) -> None:
    script = {"file": "both.py"}
    body = inference_model(frameworkType="tensorflow")
    spec = body["spec"]
    assert serving_objects.build(api.admit(body), {}, WITH_REGISTRY).problems == ()
    spec[field] = [{"op": "script", **script}] if field == "preprocess" else {"script": script}
    (problem,) = serving_objects.build(api.admit(body), {}, WITH_REGISTRY).problems
    assert problem.reason == "FrameworkNotSupported"
    assert f"spec.{field}" in problem.message
    spec["frameworkType"] = "onnx"
    assert serving_objects.build(api.admit(body), {}, WITH_REGISTRY).problems == ()


@pytest.mark.parametrize(
    ("framework", "image"),
    [("onnx", f"registry.example/{OUR_SERVER.image}"), ("tensorflow", "tensorflow/serving:2.19.0")],
)
def test_another_registry_has_halimedes_server_and_fetcher_and_no_other_image(framework: str, image: str) -> None:
    made = serving_objects.build(api.parse(inference_model(frameworkType=framework)), {}, WITH_REGISTRY)
    (pod,) = (body["spec"]["template"]["spec"] for body in made.objects if body["kind"] == "Deployment")
    assert [container["image"] for container in pod["containers"]] == [image]
    assert [container["image"] for container in pod["initContainers"]] == [WITH_REGISTRY.fetcher_image]
    assert WITH_REGISTRY.fetcher_image.startswith("registry.example/halimede/lc:")
