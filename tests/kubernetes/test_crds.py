"""Our CustomResourceDefinitions on an API server: what people have goes in, mistakes are refused at their field.

Rules between fields (CEL) are evaluated by a real server only.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from halimede.api.crd import definitions
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import TABLE, Body, RefusedError, contains, invalid_fields
from tests.kubernetes.world import path_of
from tests.unit.api.mistakes import BROKEN_RULES, BROKEN_STEPS, MISTAKES, MODEL, SERVICE, written
from tests.unit.api.samples import SAMPLES
from tests.unit.api.test_crd_agreement import without_null
from tests.unit.api.test_resources import put

NOW = "2026-03-01T10:00:00Z"

#: made from the types once: that takes a third of a second
made = functools.cache(definitions)


async def add(api: Api, body: Body) -> Body:
    """Create a resource in the test's namespace, as strictly as kubectl does."""
    group = body["apiVersion"].partition("/")[0]
    await api.install(made()[f"{group}_{body['kind'].lower()}s.yaml"])
    here = {**body, "metadata": {**body["metadata"], "namespace": api.namespace}}
    return await api.client.create(path_of(body), api.namespace, here, fieldValidation="Strict")


def only_real(api: Api) -> None:
    if api.double is not None:
        pytest.skip("needs a real API server: the double evaluates no CEL")


@pytest.mark.parametrize("name", SAMPLES)
async def test_what_people_have_goes_in_as_it_stands(api: Api, name: str) -> None:
    stored = await add(api, SAMPLES[name])
    assert contains(stored["spec"], without_null(SAMPLES[name]["spec"]))
    if name == "a service of Sedna's":
        assert stored["spec"]["edgeWorker"]["deadlineMs"] == 2000


@pytest.mark.parametrize(("body", "path", "value"), MISTAKES)
async def test_a_mistake_is_refused_at_its_field(api: Api, body: Body, path: str, value: object) -> None:
    assert written(path) in await invalid_fields(add(api, put(body, path, value)))


async def test_an_unknown_field_is_refused_by_name(api: Api) -> None:
    with pytest.raises(RefusedError, match=r'unknown field "spec\.edgeWorker\.modle"'):
        await add(api, put(SERVICE, "spec.edgeWorker.modle", {"name": "x"}))


@pytest.mark.parametrize(("body", "path", "value", "at"), BROKEN_RULES)
async def test_a_broken_rule_is_refused_at_its_field(api: Api, body: Body, path: str, value: object, at: str) -> None:
    only_real(api)
    assert written(path) + at in await invalid_fields(add(api, put(body, path, value)))


@pytest.mark.parametrize(("step", "at"), BROKEN_STEPS)
async def test_a_step_with_fields_of_another_is_refused(api: Api, step: dict[str, Any], at: str) -> None:
    only_real(api)
    assert f"spec.preprocess[0]{at}" in await invalid_fields(add(api, put(MODEL, "spec.preprocess", [step])))


async def test_kubectl_shows_how_services_fare(api: Api) -> None:
    runs = {"type": "Running", "lastTransitionTime": NOW, "reason": "AllWorkersRun", "message": "2 workers are running"}
    fares = {
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": [{"type": "Pending", "status": "False"}, runs],
        "startTime": NOW,
        "active": 2,
        "failed": 0,
        "metrics": [{"key": "inferenceNumber", "value": "40"}, {"key": "uploadCloudRatio", "value": "0.1"}],
    }
    for body, shown in (
        (SERVICE, ["Running", "AllWorkersRun", 2, 0, "0.1"]),
        (SAMPLES["the proposal's"], ["Running", "Running", "AllWorkersRun", 2, 0, "0.1"]),
    ):
        name = (await add(api, body))["metadata"]["name"]
        await api.client.patch(path_of(body), api.namespace, name, {"status": fares}, "status")
        table = await api.client.list(path_of(body), api.namespace, accept=TABLE)
        *cells, age, message = table["rows"][0]["cells"]
        assert cells == [name, *shown]
        assert age
        assert message == "2 workers are running"


async def test_an_empty_time_in_a_status_is_refused(api: Api) -> None:
    name = (await add(api, SERVICE))["metadata"]["name"]
    status = {"status": {"startTime": ""}}
    patch = api.client.patch(path_of(SERVICE), api.namespace, name, status, "status")
    assert "status.startTime" in await invalid_fields(patch)
