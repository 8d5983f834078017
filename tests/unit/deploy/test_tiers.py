"""deploy/tiers and examples/tiers: a service with a tier that GM takes as it stands, the same in both."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.api import Resource
from halimede.cli.manifests import load
from halimede.mining import create
from halimede.names import Key
from services.gm.workloads.deployments import build
from services.gm.workloads.pod_settings import PodSettings
from tests.rendering import ROOT
from tests.unit.api.crds import problems

FILES = [*sorted((ROOT / "deploy/tiers").glob("[!k]*.yaml")), *sorted((ROOT / "examples/tiers").glob("*.yaml"))]


def resources(folder: str) -> dict[Key, Resource[Any]]:
    """Return what is in a folder, paths of models made absolute."""
    found = [manifest.resource for file in FILES if file.parent == ROOT / folder for manifest in load([str(file)])]
    return {each.key: each for each in found}


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_manifest_is_accepted(file: Any) -> None:
    for manifest in load([str(file)]):
        assert problems(manifest.resource.body) == {}


def test_pods_of_each_tier_are_made_of_it() -> None:
    found: dict[Key, Resource[Any] | None] = {**resources("deploy/tiers")}
    (service,) = (each for each in found.values() if each and each.kind.kind == "JointInferenceService")
    built = build(service, found, {}, PodSettings(broker="mqtt://broker:1883", credentials=False))
    assert built.problems == ()
    assert {body["metadata"]["name"] for body in built.objects} == {
        "tiers-deployment-edge", "tiers-deployment-gate", "tiers-deployment-cloud", "tiers-cloud"
    }  # fmt: skip


def test_both_say_the_same() -> None:
    def rules(folder: str) -> list[Any]:
        (spec,) = (r.spec for r in resources(folder).values() if r.kind.kind == "JointInferenceService")
        return [spec.edge_worker.hard_example_mining, *(tier.hard_example_mining for tier in spec.tiers)]

    assert rules("deploy/tiers") == rules("examples/tiers")
    for rule in rules("examples/tiers"):
        create(rule.name, {each.key: each.value for each in rule.parameters})
