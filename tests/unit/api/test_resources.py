"""Resources are accepted as their users write them, and refused with the field, the value and what to do."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import pytest
from msgspec import Meta

from halimede import api
from halimede.api.base import MAX_EXPLAINED_ERRORS, convert
from halimede.api.neptune import ORIGIN, to_sedna
from halimede.api.placement import HOSTNAME, matches, placements
from halimede.api.schema import SHAPE
from halimede.errors import InvalidFieldError
from halimede.names import FIX
from tests.unit.api.samples import SAMPLES, resource


def sedna_service() -> dict[str, Any]:
    edge, cloud = ({"image": "halimede/worker"} for _ in range(2))
    mining = {"name": "IBT", "parameters": [{"key": "threshold_img", "value": "0.9"}]}
    edge_template = {"spec": {"nodeName": "edge0", "containers": [edge]}}
    cloud_template = {"spec": {"nodeSelector": {"zone": "a"}, "containers": [cloud]}}
    spec = {
        "edgeWorker": {"model": {"name": "small"}, "hardExampleMining": mining, "template": edge_template},
        "cloudWorker": {"model": {"name": "big"}, "template": cloud_template},
    }
    return resource("JointInferenceService", spec, "helmet")


def put(body: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return a copy with one field set (or removed, for None)."""
    changed = copy.deepcopy(body)
    *parents, last = path.split(".")
    here: Any = changed
    for step in parents:
        here = here[int(step)] if isinstance(here, list) else here[step]
    place = int(last) if isinstance(here, list) else last
    if value is None:
        del here[place]
    else:
        here[place] = value
    return changed


def refused(body: object, check: Callable[[object], object] = api.parse) -> InvalidFieldError:
    with pytest.raises(InvalidFieldError) as caught:
        check(body)
    return caught.value


def fields_of(body: object) -> list[str]:
    error = refused(body, api.admit)
    return [mistake.field for mistake in (error, *error.further_errors)]


def test_a_service_in_sednas_form_is_read_with_its_types() -> None:
    service = api.parse(sedna_service())
    assert str(service.key) == "default/jointinferenceservices/helmet"
    assert service.spec.edge_worker.hard_example_mining.parameters[0].value == "0.9"
    assert service.spec.edge_worker.deadline_ms == 2000


def test_the_seeds_form_becomes_a_service_in_sednas_form() -> None:
    body = to_sedna(api.parse(SAMPLES["the proposal's"]))
    service = api.parse(body)
    edge, cloud = placements(service.spec)
    worker = edge.pod.containers[0]
    assert body["metadata"]["annotations"][ORIGIN] == "neptune.io/v1alpha1"
    assert (edge.pod.node_name, cloud.pod.node_name) == ("edge0", "solar-corona-cloud")
    assert (worker.command, worker.working_dir) == (["python3", "edge_inference.py"], "/code")
    assert {v.name: v.value for v in worker.env} == {"nms_threshold": "0.6", "PYTHONPATH": "/code"}
    assert edge.pod.volumes[0].host_path.path == worker.volume_mounts[0].mount_path
    assert service.spec.edge_worker.hard_example_mining.name == "IBT"


@pytest.mark.parametrize(
    ("type_", "value", "fix"),
    [
        (Annotated[float, Meta(ge=0, le=1)], 5, "write a number from 0 to 1"),
        (Annotated[float, Meta(gt=0)], 0, "write a number above 0"),
        (Annotated[float, Meta(gt=0, le=9)], 10, "write a number above 0, and up to 9"),
        (Annotated[int, Meta(le=2**53)], 2**54, "write a number of 9007199254740992 or less"),
        (Annotated[str, Meta(max_length=3)], "four", "write at most 3 characters"),
        (Annotated[list[int], Meta(min_length=1, max_length=2)], [], "write 1 to 2 items"),
        (Annotated[dict[str, int], Meta(min_length=1)], {}, "write 1 or more entries"),
    ],
)
def test_a_value_outside_of_its_limits_is_named_with_them(type_: Any, value: object, fix: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        convert(value, type_, "spec.field")
    assert (caught.value.field, caught.value.fix) == ("spec.field", fix)
    with pytest.raises(InvalidFieldError, match=rf"spec\.field\[1\]: .* is not accepted: {fix}"):
        convert([None, value], list[type_ | None], "spec.field")


@pytest.mark.parametrize(
    ("path", "value", "fix"),
    [
        ("spec.edgeWorker.modle", {"name": "x"}, "did you mean model?"),
        ("spec.cloudWorker", None, "it is required"),
        ("spec.edgeWorker.deadlineMs", "1s", "expected `int`"),
        ("spec.edgeWorker.deadlineMs", 0, "write a number "),
        ("spec.edgeWorker.template.spec.containers", [], "write 1 "),
        ("spec.edgeWorker.hardExampleMining.parameters.0.value", 0.9, "put it in quotes"),
        ("spec.edgeWorker.model.name", "a/b", "lower-case"),
        ("spec.edgeWorker.template.spec.nodeName", "../x", "lower-case"),
        ("metadata.name", "Helmet", "lower-case"),
        ("metadata.namespace", "a.b", "lower-case"),
        ("metadata", None, "expected `object`"),
        ("kind", "JointService", "JointInferenceService"),
        ("apiVersion", "sedna.io/v2", "sedna.io/v1alpha1"),
        ("extra", 1, "remove it"),
    ],
)
def test_a_mistake_is_named_with_its_field_and_what_to_do(path: str, value: object, fix: str) -> None:
    error = refused(put(sedna_service(), path, value))
    assert error.field == path.replace(".0", "[0]")
    assert fix in error.fix


def test_a_body_that_aliases_blow_up_is_refused_before_it_is_read() -> None:
    bomb: list[Any] = ["x"] * 10
    for _ in range(12):
        bomb = [bomb] * 10
    with pytest.raises(InvalidFieldError, match="values"):
        api.parse(put(sedna_service(), "spec.edgeWorker.template.spec.bomb", bomb))


def test_a_body_that_contains_itself_is_refused() -> None:
    body = sedna_service()
    body["spec"]["self"] = body
    refused(body)


def test_placement_is_by_node_name_or_by_every_label_of_the_selector() -> None:
    edge, cloud = placements(api.parse(sedna_service()).spec)
    assert matches(edge.pod, "edge0", {})
    assert not matches(edge.pod, "edge1", {"zone": "a"})
    assert matches(cloud.pod, "any", {"zone": "a", "more": "b"})
    assert not matches(cloud.pod, "any", {"zone": "b"})


def test_a_pod_without_node_name_and_selector_belongs_nowhere_and_a_host_name_is_a_label() -> None:
    body = put(sedna_service(), "spec.edgeWorker.template.spec.nodeName", None)
    body = put(body, "spec.cloudWorker.template.spec.nodeSelector", {HOSTNAME: "cloud0"})
    edge, cloud = placements(api.parse(body).spec)
    assert not matches(edge.pod, "edge0", {})
    assert matches(cloud.pod, "cloud0", {})


@pytest.mark.parametrize("word", ["ji", "JointInferenceService", "jointinferenceservices", "jis"])
def test_users_name_a_kind_as_kubectl_does(word: str) -> None:
    assert api.kind_of(word).plural == "jointinferenceservices"


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(InvalidFieldError, match="models"):
        api.kind_of("pods")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("securityContext", "root"),
        ("securityContext", ["root"]),
        ("securityContext", 7),
        ("restartPolicy", ["Always"]),
        ("containers.0.securityContext", True),
    ],
)
def test_a_template_whose_parts_are_of_another_type_is_refused_by_name(path: str, value: object) -> None:
    body = sedna_service()
    body["spec"]["edgeWorker"]["template"]["spec"] |= {"securityContext": {}, "restartPolicy": "Always"}
    body["spec"]["edgeWorker"]["template"]["spec"]["containers"][0]["securityContext"] = {}
    api.parse(body)
    field = f"spec.edgeWorker.template.spec.{path}"
    assert refused(put(body, field, value)).field == field.replace(".0", "[0]")


def test_all_invalid_fields_are_named_at_once() -> None:
    body = put(sedna_service(), "spec.edgeWorker.deadlineMs", "soon")
    body = put(body, "spec.edgeWorker.modle", {"name": "x"})
    body = put(body, "spec.edgeWorker.hardExampleMining.parameters.0", {"value": 0.9, "kye": "k"})
    body = put(body, "spec.cloudWorker.template", None)
    body = put(body, "metadata.name", "Not A Name")
    assert fields_of({**body, "extra": 1}) == [
        "extra",
        "metadata.name",
        "spec.edgeWorker.hardExampleMining.parameters[0].value",
        "spec.edgeWorker.hardExampleMining.parameters[0].kye",
        "spec.edgeWorker.deadlineMs",
        "spec.edgeWorker.modle",
        "spec.cloudWorker.template",
    ]


@pytest.mark.parametrize(
    ("path", "wrong", "meant"),
    [
        ("", "spce", "spec"),
        ("", "metdata", "metadata"),
        ("spec.", "cloudworker", "cloudWorker"),
        ("spec.edgeWorker.", "tempalte", "template"),
        ("spec.edgeWorker.model.", "nam", "name"),
    ],
)
def test_a_misspelled_field_that_is_required_is_one_error_with_what_is_meant(path: str, wrong: str, meant: str) -> None:
    body = sedna_service()
    there = body
    for step in path.split(".")[:-1]:
        there = there[step]
    there[wrong] = there.pop(meant)
    error = refused(body)
    assert (error.field, error.fix, error.further_errors) == (f"{path}{wrong}", f"did you mean {meant}?", ())


def test_a_required_field_is_missing_where_its_misspelling_stands_as_well() -> None:
    body = sedna_service()
    body["spec"]["edgeWorker"]["modle"] = {"name": "x"}
    assert fields_of(body) == ["spec.edgeWorker.modle"]
    del body["spec"]["cloudWorker"]["template"]
    assert fields_of(body) == ["spec.edgeWorker.modle", "spec.cloudWorker.template"]


def test_all_fields_that_do_not_fit_together_are_named_at_once() -> None:
    body = put(sedna_service(), "spec.edgeWorker.source", {"cameras": ["c"], "path": "/x"})
    body = put(body, "spec.edgeWorker.fusion", "mixture")
    body = put(body, "spec.edgeWorker.hardExampleMining.parameters.0.key", "threshold_imgs")
    body = put(body, "spec.cloudWorker.template.spec.containers", [])
    body = put(body, "spec.cloudWorker.model.name", "a/b")
    assert fields_of(body) == [
        "spec.edgeWorker.source",
        "spec.edgeWorker.fusion",
        "spec.cloudWorker.model.name",
        "spec.cloudWorker.template.spec.containers",
        "spec.edgeWorker.hardExampleMining.parameters.threshold_imgs",
    ]


def test_an_error_in_one_step_of_several_forms_is_of_that_form() -> None:
    steps = [{"op": "resize", "width": 0}, {"op": "warp"}, {"op": "cast", "dtype": "int4"}]
    at = "spec.preprocess"
    assert fields_of(model_with(*steps)) == [f"{at}[0].width", f"{at}[0].height", f"{at}[1].op", f"{at}[2].dtype"]


def model_with(*steps: dict[str, Any]) -> dict[str, Any]:
    return resource("Model", {"url": "/m.onnx", "format": "onnx", "preprocess": list(steps)})


@pytest.mark.parametrize("op", ["scale", "normalize"])
@pytest.mark.parametrize("std", [0, 0.0, [0], [1, 0.0]])
def test_nothing_is_divided_by_0(op: str, std: Any) -> None:
    assert fields_of(model_with({"op": op, "std": std})) == ["spec.preprocess[0].std"]


@pytest.mark.parametrize("mean", ["127.5", [[1]], {"r": 1}, [1] * 17, True])
def test_a_mean_is_a_number_or_one_for_each_channel(mean: Any) -> None:
    (field,) = fields_of(model_with({"op": "scale", "mean": mean}))
    assert field.startswith("spec.preprocess[0].mean")


def test_all_fields_of_a_model_that_are_not_valid_are_named_at_once() -> None:
    spec = {"url": "ftp://x/m.onnx", "format": "onnx", "targetVersion": "9", "nodeName": "Edge 0"}
    assert fields_of(resource("Model", spec)) == ["spec.url", "spec.targetVersion", "spec.nodeName"]


def test_a_body_of_many_errors_costs_no_more_than_some() -> None:
    body = sedna_service()
    body["spec"]["edgeWorker"] |= {f"field{i}": i for i in range(20_000)}
    assert len(fields_of(body)) == MAX_EXPLAINED_ERRORS


@pytest.mark.parametrize(("field", "value"), [("nodeName", "$EDGE_NODE"), ("nodeSelector", {"zone": "${ZONE}"})])
def test_a_variable_that_a_shell_has_left_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidFieldError, match="it is a variable that nothing has replaced") as caught:
        api.parse(put(sedna_service(), f"spec.edgeWorker.template.spec.{field}", value))
    assert caught.value.field.startswith(f"spec.edgeWorker.template.spec.{field}")


def test_each_pattern_of_a_resource_has_a_correction_in_words() -> None:
    def metas(part: Any) -> Iterator[msgspec.Meta]:
        if isinstance(part, msgspec.Meta):
            yield part
        if isinstance(part, type) and issubclass(part, msgspec.Struct):
            for hint in get_type_hints(part, include_extras=True).values():
                yield from metas(hint)
        for below in get_args(part):
            yield from metas(below)
        for shape in [(part.extra or {}).get(SHAPE)] if isinstance(part, msgspec.Meta) else []:
            yield from metas(shape)

    patterns = [meta for kind in api.kinds() for meta in metas(kind.spec) if meta.pattern]
    assert len({meta.pattern for meta in patterns}) > 5
    assert not [meta.pattern for meta in patterns if not (meta.extra or {}).get(FIX)]
