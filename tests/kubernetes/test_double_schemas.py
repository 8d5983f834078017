"""Custom resources against their schema: pruned, filled in, and refused field by field."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import invalid_fields, refusal
from tests.kubernetes.things import DEFINITION, GROUP, THING, made, thing


async def test_unknown_fields_are_dropped_and_defaults_filled_in(api: Api) -> None:
    body = await made(api, what=1, parts=[{"name": "a", "else": 2}], template={"node": "n", "more": {"x": [1]}})
    assert body["spec"] == {
        "size": 1,
        "mode": "fast",
        "parts": [{"name": "a", "weight": 5}],
        "template": {"node": "n", "more": {"x": [1]}},
    }


async def test_strict_requests_refuse_unknown_fields(api: Api) -> None:
    await api.install(DEFINITION)
    body = thing("one", what=1, parts=[{"name": "a", "else": 2}])
    refused = await refusal(api.client.create(THING, api.namespace, body, fieldValidation="Strict"))
    assert refused.code == 400
    assert all(f'unknown field "{field}"' in str(refused) for field in ("spec.parts[0].else", "spec.what"))


@pytest.mark.parametrize(
    ("spec", "field", "said"),
    [
        ({"size": 0}, "spec.size", "Invalid value: 0: spec.size in body should be greater than or equal to 1"),
        ({"size": 101}, "spec.size", "Invalid value: 101: spec.size in body should be less than or equal to 100"),
        ({"size": "big"}, "spec.size", 'Invalid value: "string": spec.size in body must be of type integer: "string"'),
        ({"mode": "odd"}, "spec.mode", 'Unsupported value: "odd": supported values: "fast", "slow"'),
        ({"host": "A"}, "spec.host", "Invalid value: \"A\": spec.host in body should match '^[a-z]+$'"),
        ({"parts": [{}]}, "spec.parts[0].name", "Required value"),
        ({"parts": [{"name": "123456789"}]}, "spec.parts[0].name", "Too long: may not be more than 8 bytes"),
        ({"parts": [{"name": "a"}] * 4}, "spec.parts", "Too many: 4: must have at most 3 items"),
        ({"labels": {"a": 1}}, "spec.labels.a",
         'Invalid value: "integer": spec.labels.a in body must be of type string'),
        ({"template": {"node": 5}}, "spec.template.node",
         'Invalid value: "integer": spec.template.node in body must be'),
        ({"size": None}, "spec.size", "Required value"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(api: Api, spec: dict[str, Any], field: str, said: str) -> None:
    await api.install(DEFINITION)
    refused = await refusal(api.client.create(THING, api.namespace, thing("one", **spec)))
    assert refused.answer == (422, "Invalid")
    assert refused.status["message"].startswith(f'Thing.{GROUP} "one" is invalid: {field}: ')
    assert refused.causes[field].startswith(said)
    assert refused.status["details"]["kind"] == "Thing"


async def test_a_missing_field_and_several_errors_are_all_named(api: Api) -> None:
    await api.install(DEFINITION)
    body = thing("one", mode="odd")
    del body["spec"]["size"]
    fields = await invalid_fields(api.client.create(THING, api.namespace, body))
    assert fields.keys() == {"spec.size", "spec.mode"}
    assert fields["spec.size"] == "Required value"


async def test_values_of_two_types_and_nulls_where_they_are_allowed(api: Api) -> None:
    body = await made(api, port="http", note=None)
    assert (body["spec"]["port"], body["spec"]["note"]) == ("http", None)
    assert (await made(api, "two", port=80))["spec"]["port"] == 80
    body = await made(api, "three", mode=None, host=None, parts=None, labels={"a": None, "b": "c"})
    assert body["spec"] == {"size": 1, "mode": "fast", "labels": {"b": "c"}}


async def test_a_status_is_checked_as_well(api: Api) -> None:
    await made(api)
    patch = api.client.patch(THING, api.namespace, "one", {"status": {"active": "two"}}, "status")
    assert "status.active" in await invalid_fields(patch)
    body = await api.client.patch(THING, api.namespace, "one", {"status": {"active": 2, "odd": 1}}, "status")
    assert body["status"] == {"active": 2}


@pytest.mark.parametrize("name", ["Upper", "under_score", "-a", "a..b", "x" * 254])
async def test_names_are_dns_subdomains(api: Api, name: str) -> None:
    await api.install(DEFINITION)
    assert "metadata.name" in await invalid_fields(api.client.create(THING, api.namespace, thing(name)))


async def test_a_definition_is_established_and_gone_with_all_of_its_kind(api: Api) -> None:
    plural = api.unique("gadget").replace("-", "")
    definition = {
        **DEFINITION,
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {**DEFINITION["spec"], "names": {"kind": plural.capitalize(), "plural": plural}},
    }
    await api.install(definition)
    found = await api.client.get("CustomResourceDefinition", None, f"{plural}.{GROUP}")
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert conditions["Established"] == conditions["NamesAccepted"] == "True"
    await api.client.create(f"{plural}.{GROUP}/v1", api.namespace, {**thing("one"), "kind": plural.capitalize()})
    resources = (await api.client.request("GET", f"/apis/{GROUP}/v1"))["resources"]
    assert {plural, f"{plural}/status"} <= {each["name"] for each in resources}
    await api.client.delete("CustomResourceDefinition", None, f"{plural}.{GROUP}")


async def test_a_definition_is_named_after_what_it_defines(api: Api) -> None:
    misnamed = {**DEFINITION, "metadata": {"name": f"other.{GROUP}"}}
    assert "metadata.name" in await invalid_fields(api.client.create("CustomResourceDefinition", None, misnamed))
