"""How a pod is bound to the node that its template names: by the scheduler, and for as long as the node exists."""

from __future__ import annotations

from typing import Any

import pytest

from services.gm.workloads.node_placement import check_placement
from tests.unit.gm.workloads.builds import built, pod, reasons
from tests.unit.gm.workloads.world import service, template

NAMED = {"key": "metadata.name", "operator": "In", "values": ["edge0"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
STAYS = [
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
]
TERMS = f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"


def affine(required: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: required}}}


def terms(spec: dict[str, Any]) -> Any:
    return spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]


def test_a_named_node_is_an_affinity_that_the_scheduler_reads() -> None:
    spec = pod(built())
    assert "nodeName" not in spec
    assert terms(spec) == [{"matchFields": [NAMED]}]


def test_the_users_own_affinity_holds_as_well_in_each_of_its_terms() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    given = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {}]}, "preferred": []}
    spec = pod(built(service(edge=template(affinity={"nodeAffinity": given, "podAffinity": {"x": 1}}))))
    assert terms(spec) == [{"matchExpressions": [zone], "matchFields": [NAMED]}, {}]
    assert spec["affinity"]["podAffinity"] == {"x": 1}
    assert given[REQUIRED]["nodeSelectorTerms"] == [{"matchExpressions": [zone]}, {}]  # type: ignore[call-overload]


def test_who_cannot_run_elsewhere_stays_while_its_node_is_cut_off() -> None:
    edge = {key: value for key, value in template()["spec"].items() if key != "nodeName"}
    selected = {"spec": {**edge, "nodeSelector": {"zone": "a"}}}
    of = built(service(edge=selected, cloud=selected))
    assert [each for each in pod(of)["tolerations"] if each in STAYS] == STAYS
    assert "tolerations" not in pod(of, "cloud"), "it moves to another node"
    assert "affinity" not in pod(of)
    assert [each for each in pod(built(), "cloud")["tolerations"] if each in STAYS] == STAYS
    assert not any("unschedulable" in str(each) for each in pod(built())["tolerations"]), "a drain empties the node"


@pytest.mark.parametrize(
    "own",
    [
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists"},
        {"operator": "Exists"},
    ],
)
def test_a_toleration_of_the_users_own_stands(own: dict[str, Any]) -> None:
    found = pod(built(service(edge=template(tolerations=[own]))))["tolerations"]
    assert found[0] == own
    assert STAYS[1] not in found
    assert (STAYS[0] in found) == bool(own.get("key"))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"affinity": []}, "affinity"),
        ({"affinity": {"nodeAffinity": "edge0"}}, "affinity.nodeAffinity"),
        (affine([1]), f"affinity.nodeAffinity.{REQUIRED}"),
        (affine({"nodeSelectorTerms": {}}), TERMS),
        ({"tolerations": ["all"]}, "tolerations"),
        (affine({"nodeSelectorTerms": [{}, {"matchFields": 5}]}), f"{TERMS}[1].matchFields"),
        ({"tolerations": [{"key": ["a"]}]}, "tolerations[0].key"),
        ({"tolerations": [{"key": "a"}, {"effect": {"a": 1}}]}, "tolerations[1].effect"),
    ],
)
def test_what_is_no_affinity_is_named_and_makes_no_pod(given: dict[str, Any], field: str) -> None:
    (error,) = check_placement(given, "spec")
    assert error.field == f"spec.{field}"
    assert "InvalidTemplate" in reasons(built(service(edge=template(**given))))


def test_an_address_is_no_folder_of_the_node() -> None:
    for path in ("https://models.example/small.onnx", "/https://models.example/a", "https:/models.example/a"):
        volume = {"name": "m", "hostPath": {"path": path}}
        of = built(service(edge=template(volumes=[volume])))
        assert reasons(of) == ["InvalidTemplate"]
        assert "it is an address" in of.problems[0].message
