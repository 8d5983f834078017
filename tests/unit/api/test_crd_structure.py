"""The schemas are structural, bounded and described: what an API server asks of them, and what an operator does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import jsonschema
import pytest
from kubernetes_validate import validate
from msgspec import Meta

from halimede.api.base import Spec
from halimede.api.crd.definition import structure
from tests.unit.api.crds import DEFINITIONS, nodes, schema_of

#: Kubernetes knows these itself; of metadata a schema may only bound the name
OWN = {".apiVersion", ".kind", ".metadata"}
KEEP = "x-kubernetes-preserve-unknown-fields"
CHECKS = "x-kubernetes-validations"
#: what a structural schema may hold, of all that OpenAPI knows
KEYWORDS = {
    *("description", "type", "format", "enum", "default", "pattern", "required", "properties", "items"),
    *("additionalProperties", "minLength", "maxLength", "minItems", "maxItems", "maxProperties", "minimum", "maximum"),
    *(KEEP, CHECKS),
}


def levels(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each level of a definition's schema with its path."""
    yield from nodes(DEFINITIONS[file]["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("file", DEFINITIONS)
@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_each_definition_is_one_to_kubernetes(file: str, version: str) -> None:
    validate(DEFINITIONS[file], version, strict=True)


@pytest.mark.parametrize("file", DEFINITIONS)
def test_each_schema_is_a_json_schema(file: str) -> None:
    for version in DEFINITIONS[file]["spec"]["versions"]:
        jsonschema.Draft202012Validator.check_schema(version["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("file", DEFINITIONS)
def test_each_level_is_typed_bounded_and_described(file: str) -> None:
    wrong = {}
    for path, node in levels(file):
        try:
            typed_bounded_and_described(path, node)
        except (AssertionError, KeyError) as error:
            wrong[path] = repr(error)
    assert wrong == {}


def typed_bounded_and_described(path: str, node: dict[str, Any]) -> None:
    assert set(node) <= KEYWORDS, "a structural schema has no such keyword"
    assert node.get("type", KEEP) in {"object", "array", "string", "integer", "number", "boolean", KEEP}
    assert "type" in node or node[KEEP], "only a field that keeps all values has no type"
    if path in OWN:
        return
    if not path.endswith(("[]", "{}")):
        assert 10 <= len(node["description"]) <= (1200 if path.endswith(".op") else 400)
        assert node["description"].endswith(".")
        assert "`" not in node["description"]
    match node.get("type"):
        case "array":
            assert node["maxItems"] >= 1
            assert node["items"]
        case "string":
            assert "enum" in node or node["maxLength"] >= 1
        case "object":
            known = {"properties", "additionalProperties"} & set(node)
            assert len(known) == 1 or (not known and node[KEEP] is True)
            assert "additionalProperties" not in node or node["maxProperties"] >= 1
    assert set(node.get("required", ())) <= set(node.get("properties", ()))
    if "default" in node:
        jsonschema.validate(node["default"], node)
        assert node["default"] not in ("", [], {})
    if "pattern" in node:
        assert "(?" not in node["pattern"], "RE2 has no look-ahead"


@pytest.mark.parametrize("file", DEFINITIONS)
def test_each_rule_speaks_of_fields_that_are_there(file: str) -> None:
    for path, node in levels(file):
        for check in node.get(CHECKS, ()):
            assert set(re.findall(r"self\.([A-Za-z_]+)\b(?!\()", check["rule"])) <= set(node["properties"]), path
            assert check["message"], path
            assert "\n" not in check["rule"], path
            assert check.get("fieldPath", "").removeprefix(".") in {"", *node["properties"]}, path


@pytest.mark.parametrize("group", ["sedna.io/v1alpha1", "neptune.io/v1alpha1"])
def test_a_service_is_named_so_that_a_kubernetes_service_can_be_named_after_it(group: str) -> None:
    metadata = schema_of(group, "JointInferenceService")["properties"]["metadata"]
    assert metadata["properties"]["name"]["maxLength"] == 46
    assert set(metadata) == {"type", "properties"}, "Kubernetes lets a schema say nothing more of metadata"
    for name, right in {"helmet-1": True, "a": True, "1a": False, "a.b": False, "a-": False, "A": False}.items():
        assert bool(re.search(metadata["properties"]["name"]["pattern"], name)) == right


def test_a_pod_template_keeps_what_it_does_not_know_at_each_level() -> None:
    edge = schema_of("sedna.io/v1alpha1", "JointInferenceService")["properties"]["spec"]["properties"]["edgeWorker"]
    for path, node in nodes(edge["properties"]["template"]):
        assert node["type"] != "object" or "additionalProperties" in node or node[KEEP], path
        assert not {"default", "x-kubernetes-embedded-resource"} & node.keys(), path


def test_kubectl_shows_how_a_service_fares() -> None:
    columns = {
        file: {c["name"]: c["jsonPath"] for c in body["spec"]["versions"][0]["additionalPrinterColumns"]}
        for file, body in DEFINITIONS.items()
    }
    shown = columns["sedna.io_jointinferenceservices.yaml"]
    assert list(shown) == ["Phase", "Reason", "Active", "Failed", "Upload", "Age", "Message"]
    assert shown["Upload"] == '.status.metrics[?(@.key=="uploadCloudRatio")].value'
    assert columns["neptune.io_jointinferenceservices.yaml"]["status"] == ".status.conditions[-1].type"
    assert list(columns["sedna.io_models.yaml"]) == ["Phase", "Reason", "Format", "Version", "Ready", "Age", "Message"]
    assert list(columns["sedna.io_datasets.yaml"]) == ["Phase", "Samples", "Node", "Age"]


def test_each_kind_goes_by_the_names_that_its_users_know() -> None:
    short = {body["metadata"]["name"]: body["spec"]["names"]["shortNames"] for body in DEFINITIONS.values()}
    assert short["jointinferenceservices.sedna.io"][0] == "ji"
    assert set(short["jointinferenceservices.neptune.io"]) == {"jis", "jointinferenceservice"}
    assert all(body["spec"]["names"]["categories"] == ["sedna", "halimede"] for body in DEFINITIONS.values())
    assert all(body["spec"]["versions"][0]["subresources"] == {"status": {}} for body in DEFINITIONS.values())


class One(Spec, tag_field="op", tag="one", kw_only=True):
    """One."""

    size: Annotated[int, Meta(ge=0, le=1)]
    both: bool = True


class Two(Spec, tag_field="op", tag="two", kw_only=True):
    """Two."""

    size: Annotated[int, Meta(ge=0, le=2)] = 1
    both: bool = True


class Same(Two, tag_field="op", tag="same", kw_only=True):
    """Same."""


class Untagged(Spec, kw_only=True):
    """Neither."""


class Holder(Spec, kw_only=True):
    two: Two | Same


def test_members_of_a_union_share_fields_of_one_type_and_get_no_defaults() -> None:
    schema = structure(Holder)["properties"]["two"]
    assert schema["properties"]["op"]["enum"] == ["two", "same"]
    assert "default" not in schema["properties"]["both"]
    assert {c["rule"] for c in schema[CHECKS]} == {
        f"!has(self.{name}) || self.op == 'two' || self.op == 'same'" for name in ("size", "both")
    }


@pytest.mark.parametrize("kind", [One | Two, One | Untagged, int | str, bytes])
def test_what_a_structural_schema_cannot_say_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError):
        structure(kind)
