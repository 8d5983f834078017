"""Every kind of resource: whatever is spoiled in it, it is accepted as it is or refused as an invalid field."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import api
from halimede.api.base import NEPTUNE
from halimede.api.neptune import to_sedna
from halimede.api.placement import matches, placements
from halimede.errors import InvalidFieldError
from tests.anything import attempt, json_values, names, spoiled, valid
from tests.properties import examples
from tests.unit.api.samples import SAMPLES
from tests.unit.api.test_resources import sedna_service

RESOURCES = {
    "model": SAMPLES["a model with steps"], "dataset": SAMPLES["a dataset of Sedna's"], "sedna": sedna_service(),
    "neptune": SAMPLES["the proposal's"], "several edges": SAMPLES["several edges"],
}  # fmt: skip


def read(body: Any) -> api.Resource[Any] | None:
    """Parse; what is accepted is accepted again as it is stored and sent: as JSON."""
    accepted, refused = attempt(api.parse, body, refusal=InvalidFieldError)
    if accepted is None:
        assert refused.field
        return None
    again = api.parse(msgspec.json.decode(msgspec.json.encode(accepted.body)))
    assert (again.key, again.spec) == (accepted.key, accepted.spec)
    return accepted


def test_each_kind_has_its_resource_here() -> None:
    needed = [kind for kind in api.kinds() if kind.kind in {"Model", "Dataset"} or "Joint" in kind.kind]
    assert {(b["apiVersion"], b["kind"]) for b in RESOURCES.values()} >= {(k.api_version, k.kind) for k in needed}
    assert all(read(body) for body in RESOURCES.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RESOURCES))
@examples(30)  # whole pod templates take their time to make
@given(st.data())
def test_a_spoiled_resource_is_accepted_or_refused_by_field(name: str, data: st.DataObject) -> None:
    service = read(data.draw(spoiled(RESOURCES[name])))
    if service is None or "spec" not in service.body or "Joint" not in service.kind.kind:
        return
    if service.kind.api_version == NEPTUNE:
        service = read(to_sedna(service))
        if service is None:
            return  # the translation has stricter rules than the seed's form; GM checks it before it stores anything
    for placement in placements(service.spec):
        assert matches(placement.pod, "edge0", {}) in {True, False}


@given(json_values)
def test_any_plain_data_is_no_resource(value: Any) -> None:
    assert read(value) is None


@pytest.mark.parametrize("kind", {kind.spec: kind for kind in api.kinds()}.values(), ids=lambda kind: kind.kind)
@examples(30)  # whole pod templates take their time to make
@given(st.data())
def test_a_valid_spec_is_read_as_it_was_written(kind: Any, data: st.DataObject) -> None:
    spec = msgspec.to_builtins(data.draw(valid(kind.spec)))
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": data.draw(names)}, "spec": spec}
    with contextlib.suppress(InvalidFieldError):  # types do not say all: templates, paths, one source
        assert msgspec.to_builtins(api.parse(body).spec) == spec
