"""Models as first-class citizens: versions, what nodes find out about a file, and services that select among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halimede.messages import ModelFacts, TensorInfo
from halimede.names import Key
from tests.integration.gm_world import MODELS, SERVICES, FakeNode, model, service, world
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

SMALL, HELMET = Key(MODELS, "default", "small"), Key(SERVICES, "default", "helmet")
VERSIONS = [{"version": "1", "url": "/models/one.onnx"}, {"version": "2", "url": "https://u:secret@h.example/2?k=v"}]


def facts(letter: str) -> ModelFacts:
    return ModelFacts(
        digest=letter * 64, size=1000, since="2026-01-01T00:00:00Z",
        inputs=[TensorInfo(name="x", datatype="FP32", shape=[-1, 64])],
    )  # fmt: skip


def measured(name: str, accuracy: str, **spec: Any) -> dict[str, Any]:
    metrics = [{"key": "accuracy", "value": accuracy}]
    return model(name, task="classification", labels=["cat", "dog"], metrics=metrics, **spec)


def selecting(**selector: Any) -> dict[str, Any]:
    chosen = {"selector": selector or {"task": "classification", "labels": ["dog"]}}
    return service(edge_worker={"model": chosen})


def model_of(node: FakeNode) -> Any:
    """The edge worker's model in the service that a node has."""
    return node.holds[HELMET][2]["spec"]["edgeWorker"]["model"]


@pytest.mark.parametrize(
    ("reason", "message"),
    [("NotInstalled", "run pip install 'halimede[tflite]'"), ("InputNotScaled", "add {op: normalize}")],
    ids=["it cannot run there", "it gets pictures unscaled"],
)
async def test_a_model_that_is_ready_and_lacks_something_says_what(tmp_path: Path, reason: str, message: str) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        edge.reasons[SMALL] = reason, message
        await w.apply(model("small", format="tflite"), model("big"), service())
        status = await w.reaches("Ready", reason, name="small", plural=MODELS)
        assert status.conditions[-1].message == f"node edge0: {message}"
        del edge.reasons[SMALL]
        edge.report(SMALL)
        await w.reaches("Ready", "OnAllNodes", name="small", plural=MODELS)


async def test_nodes_get_the_version_in_force_and_the_status_remembers_what_they_had(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        edge.facts[SMALL] = facts("a")
        versioned = model("small", versions=VERSIONS, targetVersion="1", metrics=[{"key": "accuracy", "value": "0.9"}])
        del versioned["spec"]["url"]
        await w.apply(versioned, model("big"), service())
        status = await w.reaches("Ready", name="small", plural=MODELS)
        assert edge.holds[SMALL][2]["spec"]["url"] == "/models/one.onnx"
        assert (status.model.digest, status.model.inputs[0].shape) == ("a" * 64, [-1, 64])
        assert [(m.key, m.value) for m in status.metrics] == [("accuracy", "0.9")]
        edge.facts[SMALL] = facts("b")
        versioned["spec"]["targetVersion"] = "2"
        await w.apply(versioned)
        status = await w.reaches("Ready", name="small", plural=MODELS, generation=2)
        assert edge.holds[SMALL][2]["spec"]["url"] == VERSIONS[1]["url"]
        assert [(v.version, v.digest) for v in status.versions] == [("2", "b" * 64), ("1", "a" * 64)]
        assert "secret" not in status.versions[0].url
        edge.facts[SMALL] = facts("a")
        versioned["spec"]["targetVersion"] = "1"
        await w.apply(versioned)
        status = await w.reaches("Ready", name="small", plural=MODELS, generation=3)
        assert [v.version for v in status.versions] == ["1", "2"]


async def test_nodes_that_have_different_content_under_one_address_are_told_of(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as one, w.node("edge1") as two, w.node("cloud0"):
        one.facts[SMALL], two.facts[SMALL] = facts("a"), facts("b")
        await w.apply(model("small"), model("big"), service(), service("other", edge="edge1"))
        status = await w.reaches("Ready", "ContentDiffers", name="small", plural=MODELS)
        assert status.model is None
        two.facts[SMALL] = facts("a")
        two.report(SMALL)
        status = await w.reaches("Ready", "OnAllNodes", name="small", plural=MODELS)
        assert status.model.digest == "a" * 64


async def test_a_service_gets_the_best_model_that_fits_and_another_once_that_is_better(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0") as cloud:
        await w.apply(model("big"), measured("good", "0.8"), measured("poor", "0.7"), model("unmeasured"), selecting())
        status = await w.reaches("Running")
        assert model_of(edge) == {"name": "good"}
        assert [(c.worker, c.model) for c in status.chosen] == [("edge", "good")]
        await w.apply(measured("equal", "0.8"))  # as good: no reason to change
        await w.apply(measured("better", "0.85"))
        await eventually(lambda: model_of(edge) == {"name": "better"})
        status = await w.reaches("Running")
        # nodes know it as an edit, the user's generation is what it was
        assert (edge.holds[HELMET][1], cloud.holds[HELMET][1], status.observed_generation) == (2, 2, 1)
        await eventually(lambda: {k.name for k in edge.holds if k.plural == MODELS} == {"better"})
        edited = selecting()
        edited["spec"]["edgeWorker"]["deadlineMs"] = 500
        await w.apply(edited)
        await eventually(lambda: edge.holds[HELMET][1] == 3)
        await w.apply(service(edge_worker={"model": {"name": "poor"}}))
        await eventually(lambda: model_of(edge) == {"name": "poor"})
        await w.reaches("Running", generation=3)


async def test_a_selector_that_nothing_fits_says_so_and_heals_when_something_does(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        await w.apply(model("big"), model("small"), selecting(task="detection", labels=["helmet"]))
        status = await w.reaches("Pending", "ModelNotFound")
        assert "task detection and labels helmet" in status.conditions[-1].message
        assert HELMET not in edge.holds
        await w.apply(model("finder", task="detection", labels=["helmet", "head"]))
        await w.reaches("Running")
        assert (await w.ask("delete", plural=MODELS, name="finder")).error is None
        await w.reaches("Degraded", "ModelNotFound")
        assert model_of(edge) == {"name": "finder"}  # it keeps what it runs


async def test_a_models_metadata_selects_it_and_its_edit_moves_the_choice(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        await w.apply(model("big"), model("a", metadata={"site": "south"}), selecting(metadata={"site": "north"}))
        status = await w.reaches("Pending", "ModelNotFound")
        assert "metadata site=north" in status.conditions[-1].message
        await w.apply(model("a", metadata={"site": "north"}))
        await w.reaches("Running")
        assert model_of(edge) == {"name": "a"}


async def test_a_choice_outlives_gm_and_is_not_older_for_a_node_than_before(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge, w.node("cloud0"):
        async with w.gm():
            await w.apply(model("big"), measured("a", "0.5"), selecting())
            await w.reaches("Running")
            await w.apply(measured("b", "0.6"))
            await eventually(lambda: edge.holds[HELMET][1] == 2)
            await w.reaches("Running")
        async with w.gm():
            await w.reaches("Running")
            assert edge.holds[HELMET][1] == 2
            await w.apply(measured("c", "0.7"))
            await eventually(lambda: edge.holds[HELMET][1] == 3)
            assert model_of(edge) == {"name": "c"}


async def test_nodes_that_a_model_names_have_it_before_any_service(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0", site="north") as edge, w.node("cloud0") as cloud:
        await w.apply(model("small", nodeName="edge7"))
        status = await w.reaches("Pending", "NodeNotFound", name="small", plural=MODELS)
        assert "spec.nodeName: node edge7 has never connected" in status.conditions[-1].message
        await w.apply(model("small", nodeSelector={"site": "south"}))
        status = await w.reaches("Pending", "NoNode", name="small", plural=MODELS, generation=2)
        assert "no node has the labels site=south" in status.conditions[-1].message
        assert SMALL not in edge.holds
        async with w.node("edge1", site="south") as joined:  # a node that joins later prepares it as well
            status = await w.reaches("Ready", "OnAllNodes", name="small", plural=MODELS, generation=2)
            assert [(node.node, node.phase) for node in status.nodes] == [("edge1", "Ready")]
            assert SMALL in joined.holds
        await w.apply(model("small", nodeName="edge0"))
        status = await w.reaches("Ready", name="small", plural=MODELS, generation=3)
        assert [node.node for node in status.nodes] == ["edge0"]
        assert SMALL in edge.holds
        # a service may need it elsewhere as well, and its end leaves the model where it is named
        await w.apply(model("big"), service(edge="cloud0"))
        await eventually(lambda: SMALL in cloud.holds)
        await w.ask("delete", plural=SERVICES, name="helmet")
        await eventually(lambda: SMALL not in cloud.holds)
        assert SMALL in edge.holds
        await w.apply(model("small"))
        await w.reaches("Unused", name="small", plural=MODELS, generation=4)
        await eventually(lambda: SMALL not in edge.holds)
