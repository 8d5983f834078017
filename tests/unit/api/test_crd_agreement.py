"""Whatever ``parse`` accepts, the schema accepts. Known differences, each for a reason:

- ``null`` for a field that may be absent: YAML's empty value. Here it is taken for absent; the API server refuses it.
- Names of services longer than 46 characters, or with dots: only Kubernetes names Services and labels after them.
- Everything in ``metadata`` but the name, and ``status``: Kubernetes knows the first itself, ``parse`` reads neither.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede import api
from halimede.api.model import SCHEMES
from halimede.errors import InvalidFieldError
from tests.anything import attempt, spoiled, valid
from tests.properties import examples
from tests.unit.api.crds import problems, schema_of, with_defaults
from tests.unit.api.samples import SAMPLES

KINDS = [pytest.param(kind, id=f"{kind.api_version} {kind.kind}") for kind in api.kinds()]


def without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_null(item) for name, item in value.items() if item is not None}
    return [without_null(item) for item in value] if isinstance(value, list) else value


def mended(spec: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """Return a spec of the right types in which texts are what rules between fields ask for, mostly."""
    if "url" in spec or "versions" in spec:
        spec["url"] = data.draw(st.sampled_from(SCHEMES)) + spec.get("url", "")
    if "modelName" in spec:
        spec["image"] = data.draw(st.sampled_from([None, "example.io/serve:1"]))
    for version in (*spec.get("versions", ()), *spec.get("manifest", ())):
        field = "url" if "url" in version else "downloadURL"
        version[field] = data.draw(st.sampled_from(SCHEMES)) + version.get(field, "")
    spec |= _postprocess(spec, data)
    names = [version.get("version", "") for version in (*spec.get("versions", ()), *spec.get("manifest", ()))]
    if spec.get("targetVersion"):
        spec["targetVersion"] = data.draw(st.sampled_from(["", *names]))
    if spec.get("ingress"):
        spec["ingress"]["path"] = "/" + spec["ingress"].get("path", "")
    for i, worker in enumerate(spec.get("edgeWorkers", ())):
        worker["name"] = data.draw(st.sampled_from([f"w{i}", worker["name"]]))
    for worker in (
        *(value for name, value in spec.items() if name.endswith("Worker")), *spec.get("edgeWorkers", ()),
        *spec.get("tiers", ()),
    ):  # fmt: skip
        if "selector" in worker.get("model", {}) and data.draw(st.booleans()):
            worker["model"] = {"selector": {"task": "detection"}}
        elif "hardExampleMining" in worker or "template" in worker:
            worker["model"] = {"name": "small"}
        _uploads(worker, data)
        if "workerSpec" in worker:
            worker["workerSpec"]["scriptDir"] = "/" + worker["workerSpec"]["scriptDir"]
        if worker.get("source") and data.draw(st.booleans()):
            worker["source"] = data.draw(
                st.sampled_from([{"cameras": ["cam0"]}, {"path": "/frames"}, {"url": "rtsp://cam"}])
            )
        if worker.get("hpa"):
            least = worker["hpa"].setdefault("minReplicas", 1)  # it stays plain data: nobody fills it in here
            worker["hpa"]["maxReplicas"] = max(least, worker["hpa"]["maxReplicas"])
    _jobs(spec)
    return spec | _training(spec, data)


def _uploads(worker: dict[str, Any], data: st.DataObject) -> None:
    """Make, mostly, what a worker uploads fit together."""
    if "hardExampleMining" in worker and data.draw(st.sampled_from([True, True, True, False])):
        worker.update({"upload": "frame"} if "upload" in worker else {})
        worker.pop(data.draw(st.sampled_from(["costs", "targetUploadRatio"])), None)
        worker.pop("committee", None)


def _training(spec: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """Return, mostly, a training whose parts fit together."""
    if "trainers" not in spec or data.draw(st.sampled_from([False, False, False, True])):
        return {}
    for worker in (spec["aggregator"], *spec["trainers"]):
        worker["template"]["spec"]["nodeName"] = "edge0"
    for i, trainer in enumerate(spec["trainers"]):
        trainer["name"] = f"t{i}"
        chosen = data.draw(st.sampled_from(["dataset", "hardSamples"]))
        trainer.update({"dataset": {"name": "a"}} if chosen == "dataset" else {"hardSamples": {"service": "a"}})
        trainer.pop("hardSamples" if chosen == "dataset" else "dataset", None)
    made = {"trainer": {"entry": "mine:Digits"}, "aggregation": {"name": "Median"}}
    return made | {"minClients": 1, "clientsPerRound": data.draw(st.integers(0, 1))}


def _jobs(spec: dict[str, Any]) -> None:
    """Make the parts of Sedna's jobs that train fit together."""
    image = [{"image": "halimede/worker"}]
    for step in ("trainSpec", "evalSpec", "aggregationWorker"):
        for worker in (*([spec[step]] if step in spec else []), *spec.get("trainingWorkers", ())):
            worker["template"]["spec"] |= {"nodeName": "edge0", "containers": image}
    if "deploySpec" in spec:
        spec["dataset"]["trainProb"] = 0.8
        spec["trainSpec"]["trigger"]["condition"]["metric"] = "num_of_samples"
        spec["deploySpec"]["trigger"]["condition"]["metric"] = "accuracy_delta"


def _postprocess(spec: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """Return, mostly, a reading of outputs whose parts fit together."""
    if not spec.get("postprocess") or data.draw(st.sampled_from([False, False, False, True])):
        return {}
    return {"postprocess": {"task": "classification", "features": spec["postprocess"].get("features", "")}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@examples(25)  # whole pod templates take their time to make
@given(st.data())
def test_a_spec_that_is_read_is_stored(kind: api.Kind, data: st.DataObject) -> None:
    spec = mended(msgspec.to_builtins(data.draw(valid(kind.spec))), data)
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "a"}, "spec": spec}
    resource, _ = attempt(api.parse, body, refusal=InvalidFieldError)
    if resource is None:
        return
    stored = without_null(body)
    assert problems(stored) == {}
    filled = with_defaults(stored, schema_of(kind.api_version, kind.kind))
    assert msgspec.to_builtins(api.parse(filled).spec) == msgspec.to_builtins(api.parse(stored).spec)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_generated_specs_are_read_often_enough(kind: api.Kind) -> None:
    """Or else the test above shows nothing."""
    read: list[bool] = []

    @settings(max_examples=40, derandomize=True)  # whole pod templates take their time to make
    @given(st.data())
    def count(data: st.DataObject) -> None:
        spec = mended(msgspec.to_builtins(data.draw(valid(kind.spec))), data)
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "a"}, "spec": spec}
        read.append(attempt(api.parse, body, refusal=InvalidFieldError)[0] is not None)

    count()
    assert sum(read) >= 2


@pytest.mark.parametrize("name", SAMPLES)
@examples(25)  # whole pod templates take their time to make
@given(st.data())
def test_a_spoiled_spec_that_is_still_read_is_stored(name: str, data: st.DataObject) -> None:
    body = {**SAMPLES[name], "spec": data.draw(spoiled(SAMPLES[name]["spec"]))}
    if attempt(api.parse, body, refusal=InvalidFieldError)[0] is not None:
        assert problems(without_null(body)) == {}
