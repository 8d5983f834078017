"""A line that the settings of pods lose is noticed by a fact."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halimede import api
from halimede.api.neptune import to_sedna
from halimede.errors import InvalidFieldError
from halimede.names import Key
from services.gm.workloads import deployments, serving_objects
from services.gm.workloads.pod_settings import PodSettings, parse
from tests.integration.inference_models import SEDNA, inference_model, read
from tests.seeds.facts import facts, holds
from tests.seeds.samples import NAME, model, service

ROOT = Path(__file__).parents[2]
BROKER = {"HALIMEDE_PODS_BROKER": "mqtt://broker:1883"}
WORKERS = {"edge-worker", "cloud-worker"}
#: the settings of pods that are shipped, and the parts of them that the documents need
SHIPPED = {"base": ("serving",), "overlays/scripts": ("serving", "images", "hostPaths")}


def shipped(folder: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "deploy" / folder / "pods.json").read_text()))


def lines(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each entry of a table is, at any depth."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*at, key)
        yield from lines(value[key], (*at, key))


def without(table: dict[str, Any], at: tuple[Any, ...]) -> dict[str, Any]:
    made = copy.deepcopy(table)
    part: Any = made
    for key in at[:-1]:
        part = part[key]
    del part[at[-1]]
    return made


def pods(settings: PodSettings) -> dict[str, Any]:
    """Return what the pods of the samples run, by the names that the table uses."""
    found = {}
    bodies = {"tensorflow": read(SEDNA), "pytorch": inference_model(frameworkType="pytorch", servingPort=8501)}
    for framework, body in bodies.items():
        found[f"{framework}-pod"] = container(serving_objects.build(api.parse(body), {}, settings).objects)
    models = {Key("models", "default", name): api.parse(model(name)) for name in ("small-model", "big-model")}
    secrets = {f"halimede-{role}-worker": {} for role in ("edge", "cloud")}
    joint = api.parse(to_sedna(api.parse(service())))
    made = deployments.build(joint, models, secrets, settings)
    for role in ("edge", "cloud"):
        own = [each for each in made.objects if each["metadata"]["name"] == f"{NAME}-deployment-{role}"]
        found[f"{role}-worker"] = container(own) if own else {}
    return found


def container(objects: Any) -> dict[str, Any]:
    deployments = [each for each in objects if each["kind"] == "Deployment"]
    return dict(deployments[0]["spec"]["template"]["spec"]["containers"][0]) if deployments else {}


def broken(table: dict[str, Any], documents: set[str]) -> list[str]:
    """Return the facts about pods that do not hold with these settings."""
    try:
        found = pods(parse(table, BROKER))
    except InvalidFieldError as error:
        return [str(error)]
    about = [fact for fact in facts("kubernetes") if fact["document"] in documents]
    return [
        f"{fact['document']}:{fact['path']}"
        for fact in about
        if not fact["path"].startswith(("env", "node")) and not holds(fact, found)
    ]


@pytest.mark.parametrize("folder", SHIPPED)
def test_settings_of_pods_without_a_line_fail_a_fact(folder: str) -> None:
    table = shipped(folder)
    about = {"tensorflow-pod", "pytorch-pod"} | (WORKERS if "images" in SHIPPED[folder] else set())
    assert not broken(table, about)
    removed = [at for at in lines(table) if at[0] in SHIPPED[folder]]
    assert len(removed) > 15
    unnoticed = [at for at in removed if not broken(without(table, at), about)]
    assert not unnoticed
