"""InferenceModel: what of it is to be served, where, and how the two groups' forms become one."""

from __future__ import annotations

from typing import Any

import pytest

from halimede import api
from halimede.api.base import SEDNA as GROUP
from halimede.api.inferencemodel import KUBEEDGE as OTHER
from halimede.api.inferencemodel import InferenceModelSpec, desired_servers, model_spec, pod, target, to_sedna
from halimede.api.model import ModelSpec, in_force, metric_value, task_of
from halimede.errors import InvalidFieldError
from tests.integration.gm_world import model
from tests.integration.inference_models import KUBEEDGE, SEDNA, inference_model, read, version


def spec(**changes: Any) -> InferenceModelSpec:
    parsed: InferenceModelSpec = api.parse(inference_model(**changes)).spec
    return parsed


def model_of(**changes: Any) -> ModelSpec:
    parsed: ModelSpec = api.parse(model("m", **changes)).spec
    return parsed


@pytest.mark.parametrize(("text", "port"), [(SEDNA, 8501), (KUBEEDGE, 8080)], ids=["sedna.io", "ai.kubeedge.io"])
def test_the_seeds_samples_are_read_as_they_stand(text: str, port: int) -> None:
    resource = api.parse(read(text))
    found: Any = target(resource.spec)
    assert (found.version, found.is_checksum_valid) == ("4", True)
    assert found.url.endswith("/model_emotion_4.tar.gz")
    assert (resource.spec.serving_port, desired_servers(resource.spec)) == (port, 1)
    assert pod(resource.spec).node_name == "precision-5820"


def test_the_last_version_is_served_unless_another_is_named() -> None:
    found: list[Any] = [target(spec(targetVersion="1")), target(spec())]
    assert [version.version for version in found] == ["1", "2"]


def test_an_image_wins_over_manifest_and_target_version_and_an_empty_one_is_none() -> None:
    assert target(spec(image="example.io/x:1")) is None
    assert target(spec(image="example.io/x:1", manifest=[], targetVersion="no such one")) is None
    assert all(target(spec(image=empty)) for empty in ("", None))


@pytest.mark.parametrize(
    ("given", "digest"), [("", True), ("A" * 64, True), ("a" * 63, False), ("sha256:" + "a" * 64, False)]
)
def test_a_checksum_that_is_none_is_read_and_told_apart(given: str, digest: bool) -> None:
    asked = spec(manifest=[version("1", sha256sum=given)])
    found: Any = target(asked)
    assert found.is_checksum_valid is digest
    assert model_spec(asked, found).sha256 == (given.lower() if digest else "")


def test_without_a_node_it_asks_for_those_of_its_layer() -> None:
    assert pod(spec()).node_selector == {"node-role.kubernetes.io/cloud": ""}
    assert pod(spec(deployToLayer="edge")).node_selector == {"node-role.kubernetes.io/edge": ""}
    assert pod(spec(nodeSelector={"gpu": "yes"})).node_selector == {"gpu": "yes"}


@pytest.mark.parametrize(
    ("layer", "replicas", "servers"), [("cloud", None, 1), ("cloud", 3, 3), ("edge", 3, 1), ("edge", 0, 0)]
)
def test_at_the_edge_there_is_one_server_at_most(layer: str, replicas: int | None, servers: int) -> None:
    assert desired_servers(spec(deployToLayer=layer, replicas=replicas)) == servers


def test_the_other_groups_form_becomes_sednas() -> None:
    made = api.parse(to_sedna(api.parse(read(KUBEEDGE))))
    assert (made.kind.api_version, made.spec) == (GROUP, api.parse(read(KUBEEDGE)).spec)
    assert made.metadata.annotations["halimede.io/translated-from"] == OTHER


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"ingress": {"host": "A b"}}, "spec.ingress.host"), ({"servingPort": 70_000}, "spec.servingPort")],
)
def test_a_mistake_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFieldError, match=f"^{field}: "):
        spec(**changes)


def test_of_a_models_versions_the_one_in_force_is_what_nodes_see() -> None:
    versions = [{"version": "1", "url": "/1"}, {"version": "2", "url": "/2", "sha256": "b" * 64}]
    named = in_force(model_of(versions=versions, targetVersion="2"))
    assert (named.url, named.sha256, [each.version for each in named.versions]) == ("/2", "b" * 64, ["2"])
    assert in_force(model_of(versions=versions)).url == "/models/m.onnx"
    assert in_force(model_of(versions=versions, url="")).target_version == "2"


def test_measures_are_numbers_and_the_task_may_follow_from_how_the_output_is_read() -> None:
    found = model_of(
        metrics=[{"key": "accuracy", "value": "0.9"}, {"key": "f1", "value": "good"}, {"key": "auc", "value": "nan"}],
        postprocess={"task": "detection"},
    )
    assert [metric_value(found, key) for key in ("accuracy", "f1", "auc", "recall")] == [0.9, None, None, None]
    assert task_of(found) == "detection"
    assert task_of(model_of(task="faces", postprocess={"task": "detection"})) == "faces"
