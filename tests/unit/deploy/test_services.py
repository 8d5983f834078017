"""The folders `multi-edge` and `tiers` of deploy/ and of examples/: services that GM takes as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halimede import mining
from halimede.api import Resource, placements
from halimede.cli.manifests import load
from halimede.multiedge.application import OWN, create
from halimede.multiedge.stage import Parameters
from halimede.names import Key
from services.gm.controllers import CONTROLLERS
from services.gm.workloads.deployments import build
from services.gm.workloads.pod_settings import PodSettings
from tests.dockerfile import tags
from tests.rendering import DEPLOY, ROOT, documents, render
from tests.unit.api.crds import problems
from tests.unit.deploy.test_rendering import needs_kustomize

EXAMPLES = ROOT / "examples"
FOLDERS = {
    DEPLOY / "multi-edge": "[!k]*.yaml", EXAMPLES / "multi_edge": "[0-9]-*.yaml",
    DEPLOY / "tiers": "[!k]*.yaml", EXAMPLES / "tiers": "*.yaml",
}  # fmt: skip
FILES = {folder: sorted(map(str, folder.glob(pattern))) for folder, pattern in FOLDERS.items()}
SETTINGS = PodSettings(broker="mqtt://broker:1883", credentials=False)


def resources(folder: Path) -> dict[Key, Resource[Any]]:
    """Return what is in a folder, paths of models made absolute."""
    return {manifest.resource.key: manifest.resource for manifest in load(FILES[folder])}


def services(folder: Path, kind: str) -> list[Resource[Any]]:
    return [resource for resource in resources(folder).values() if resource.kind.kind == kind]


@pytest.mark.parametrize(
    "file", [file for files in FILES.values() for file in files], ids=lambda file: file.removeprefix(f"{ROOT}/")
)
def test_a_manifest_is_accepted(file: str) -> None:
    for manifest in load([file]):
        assert problems(manifest.resource.body) == {}


def test_there_is_a_service_of_each_application_and_its_parameters_are_taken() -> None:
    applications = [
        service.spec.application for service in services(DEPLOY / "multi-edge", "MultiEdgeInferenceService")
    ]
    assert {application.name for application in applications} == set(OWN)
    for application in applications:
        parameters = Parameters({p.key: p.value for p in application.parameters})
        create(application.name, application.entry, parameters)


def test_pods_are_made_of_each_application_from_images_that_are_built_here() -> None:
    references: dict[Key, Resource[Any] | None] = {**resources(DEPLOY / "multi-edge")}
    for service in services(DEPLOY / "multi-edge", "MultiEdgeInferenceService"):
        entry = CONTROLLERS[service.kind.plural].entry(service)
        assert set(entry.references) <= references.keys()
        built = build(entry.resource, references, {}, SETTINGS)
        assert built.problems == ()
        assert len(built.objects) == len(placements(service.spec))
        images = {placement.worker.template["spec"]["containers"][0]["image"] for placement in placements(service.spec)}
        assert images <= set(tags().values())
        assert service.spec.application.name != "reid" or all("worker-reid" in image for image in images)


@needs_kustomize
def test_the_folder_of_applications_renders_to_its_files() -> None:
    rendered = {(body["kind"], body["metadata"]["name"]) for body in documents(render(DEPLOY / "multi-edge"))}
    assert rendered == {
        (resource.kind.kind, resource.metadata.name) for resource in resources(DEPLOY / "multi-edge").values()
    }


def test_pods_of_each_tier_are_made_of_a_service_with_tiers() -> None:
    (service,) = services(DEPLOY / "tiers", "JointInferenceService")
    built = build(service, {**resources(DEPLOY / "tiers")}, {}, SETTINGS)
    assert built.problems == ()
    names = {"tiers-cloud", *(f"tiers-deployment-{part}" for part in ("edge", "gate", "cloud"))}
    assert {body["metadata"]["name"] for body in built.objects} == names


def test_both_folders_of_tiers_say_the_same() -> None:
    def rules(folder: Path) -> list[Any]:
        (spec,) = (service.spec for service in services(folder, "JointInferenceService"))
        return [spec.edge_worker.hard_example_mining, *(tier.hard_example_mining for tier in spec.tiers)]

    assert rules(DEPLOY / "tiers") == rules(EXAMPLES / "tiers")
    for rule in rules(EXAMPLES / "tiers"):
        mining.create(rule.name, {parameter.key: parameter.value for parameter in rule.parameters})
