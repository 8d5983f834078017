"""What people have today is accepted as it stands; a mistake is refused with the path of its field.

Rules between fields are CEL, which only an API server evaluates. Here each of them is held against ``parse``, which
refuses the same mistake with the same words and at the same field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from halimede import api
from halimede.cli.manifests import load
from halimede.errors import InvalidFieldError
from halimede.messages import Condition, Metric, NodeSummary, Status, TaskInfo
from tests.unit.api.crds import problems, schema_of, with_defaults
from tests.unit.api.mistakes import BROKEN_RULES, BROKEN_STEPS, DATASET, MISTAKES, MODEL, SERVICE, written
from tests.unit.api.samples import AS_STORED, SAMPLES
from tests.unit.api.test_crd_agreement import without_null
from tests.unit.api.test_resources import put, refused

#: as `halimede apply` sends them
EXAMPLES = [f"examples/{path}" for path in ("digits/1-models.yaml", "digits/2-service.yaml", "script/service.yaml")]
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_people_have_is_accepted_as_it_stands(name: str) -> None:
    body = without_null(SAMPLES[name])  # as the API server does it before it looks
    assert problems(body) == {}
    stored = {**body, "metadata": {**body["metadata"], **AS_STORED}, "status": {"phase": "Running", "active": 1}}
    assert problems(stored) == {}
    assert api.admit(stored).metadata.generation == 3


@pytest.mark.parametrize("file", EXAMPLES)
def test_the_examples_are_accepted(file: str) -> None:
    for manifest in load([str(ROOT / file)]):
        assert problems(manifest.resource.body) == {}


@pytest.mark.parametrize("name", SAMPLES)
def test_defaults_change_nothing_in_what_is_read(name: str) -> None:
    body = SAMPLES[name]
    stored = with_defaults(body, schema_of(body["apiVersion"], body["kind"]))
    assert api.parse(stored).spec == api.parse(body).spec


def test_an_empty_node_name_stands_for_none() -> None:
    for body, path in ((SERVICE, "spec.edgeWorker.template.spec.nodeName"), (DATASET, "spec.nodeName")):
        assert problems(put(body, path, "")) == {}
        api.parse(put(body, path, ""))


@pytest.mark.parametrize("spelling", ["device_soc_versions", "deviceSocVersions"])
def test_both_spellings_of_soc_versions_are_read(spelling: str) -> None:
    body = put(MODEL, f"spec.{spelling}", ["Ascend310"])
    assert problems(body) == {}
    api.parse(body)
    assert problems(put(body, f"spec.{spelling}", "Ascend310")) != {}


@pytest.mark.parametrize(("body", "path", "value"), MISTAKES)
def test_a_mistake_is_refused_with_the_path_of_its_field(body: Any, path: str, value: object) -> None:
    wrong = put(body, path, value)
    missing = value is None  # which a JSON schema notices one level up
    assert list(problems(wrong)) == [written(path.rpartition(".")[0] if missing else path)]
    if path != "metadata.name":  # its rules are for what Kubernetes names after a service
        with pytest.raises(InvalidFieldError):
            api.parse(wrong)


@pytest.mark.parametrize(("body", "path", "value", "at"), BROKEN_RULES)
def test_rules_between_fields_blame_the_field_that_parse_blames(body: Any, path: str, value: object, at: str) -> None:
    wrong = put(body, path, value)
    assert problems(wrong) == {}, "a schema alone does not see it"
    error = refused(wrong)
    assert error.field == path + at
    assert (error.field, error.fix) in rules(wrong["apiVersion"], wrong["kind"])


@pytest.mark.parametrize(("step", "at"), BROKEN_STEPS)
def test_a_step_has_the_fields_of_its_op(step: dict[str, Any], at: str) -> None:
    wrong = put(MODEL, "spec.preprocess", [step])
    assert problems(wrong) == {}, "a schema alone does not see it"
    refused(wrong)
    assert f"spec.preprocess[0]{at}" in {field for field, _ in rules("sedna.io/v1alpha1", "Model")}


def rules(api_version: str, kind: str) -> set[tuple[str, str]]:
    """Each rule's field and message, as an API server names them for the first item of a list."""
    found: set[tuple[str, str]] = set()

    def walk(schema: dict[str, Any], path: str) -> None:
        for check in schema.get("x-kubernetes-validations", ()):
            found.add((path + check.get("fieldPath", ""), check["message"]))
        for name, inner in schema.get("properties", {}).items():
            walk(inner, f"{path}.{name}" if path else name)
        if "items" in schema:
            walk(schema["items"], f"{path}[0]")

    walk(schema_of(api_version, kind), "")
    return found


def test_a_status_as_gm_writes_it_is_accepted() -> None:
    """All that GM writes; texts of times that have not come are left out, since a date-time cannot be empty."""
    now = "2026-03-01T10:00:00Z"
    running = Condition(type="Running", last_heartbeat_time=now, last_transition_time=now, reason="AllWorkersRun")
    edge = NodeSummary(node="edge0", online=True, phase="Running", workers=1, task_info=TaskInfo(inference_number=9))
    status = Status(
        phase="Running", observed_generation=3, conditions=[running], start_time=now, active=2,
        metrics=[Metric(key="uploadCloudRatio", value="0.1")], nodes=[edge],
    )  # fmt: skip
    # in a merge patch null means: not there
    told = {name: value for name, value in msgspec.to_builtins(status).items() if value is not None}
    body = {**SERVICE, "status": told}
    assert problems(body) == {}
    wrong = {"status.nodes": told["nodes"] * 101, "status.conditions.0.status": "Maybe", "status.active": -1}
    for path, value in wrong.items():
        assert list(problems(put(body, path, value))) == [written(path)]
