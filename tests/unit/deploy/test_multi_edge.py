"""deploy/multi-edge and examples/multi_edge: a service of each application that GM takes as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halimede.api import Resource, parse, placements
from halimede.cli.manifests import load
from halimede.multiedge.application import OWN, create
from halimede.multiedge.stage import Parameters
from halimede.names import Key
from services.gm.controllers import CONTROLLERS
from services.gm.workloads.deployments import build
from services.gm.workloads.pod_settings import PodSettings
from tests.dockerfile import tags
from tests.rendering import ROOT, documents, render, renderer
from tests.unit.api.crds import problems

FOLDER = ROOT / "deploy" / "multi-edge"
FILES = sorted(FOLDER.glob("[!k]*.yaml"))
EXAMPLES = sorted((ROOT / "examples" / "multi_edge").glob("[0-9]-*.yaml"))
SETTINGS = PodSettings(broker="mqtt://broker:1883", credentials=False)


def deployed() -> list[Resource[Any]]:
    return [parse(body) for file in FILES for body in documents(file.read_text())]


def services() -> list[Resource[Any]]:
    return [each for each in deployed() if each.kind.kind == "MultiEdgeInferenceService"]


@pytest.mark.parametrize("file", [*FILES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_manifest_is_accepted(file: Path) -> None:
    for manifest in load([str(file)]):
        assert problems(manifest.resource.body) == {}


def test_there_is_a_service_of_each_application_and_its_parameters_are_taken() -> None:
    applications = [service.spec.application for service in services()]
    assert {each.name for each in applications} == set(OWN)
    for each in applications:
        create(each.name, each.entry, Parameters({p.key: p.value for p in each.parameters}))


def test_pods_are_made_of_all_of_them_from_images_that_are_built_here() -> None:
    references: dict[Key, Resource[Any] | None] = {each.key: each for each in deployed()}
    for service in services():
        entry = CONTROLLERS[service.kind.plural].entry(service)
        assert all(reference in references for reference in entry.references)
        built = build(entry.resource, references, {}, SETTINGS)
        assert built.problems == ()
        assert len(built.objects) == len(placements(service.spec))
        for place in placements(service.spec):
            image = place.worker.template["spec"]["containers"][0]["image"]
            assert image in tags().values()
            assert service.spec.application.name != "reid" or "worker-reid" in image


def test_the_folder_renders_to_its_files() -> None:
    if renderer() is None:
        pytest.skip("no kubectl 1.27 or newer here")
    made = {(body["kind"], body["metadata"]["name"]) for body in documents(render(FOLDER))}
    assert made == {(each.kind.kind, each.metadata.name) for each in deployed()}
