"""InferenceModels where nodes run workers: who is sent what, and what the status says of their servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.api.base import SEDNA as SEDNA_GROUP
from halimede.messages import ModelInUse, WorkerReport
from halimede.names import Key
from tests.integration.gm_world import world
from tests.integration.inference_models import KUBEEDGE, PLURAL, SEDNA, inference_model, read, version
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

FACES = Key(PLURAL, "default", "faces")
LABEL = "node-role.kubernetes.io/cloud"
CLOUD = {LABEL.replace("/", "__"): ""}
EDGE = {"node-role.kubernetes.io__edge": ""}


@pytest.mark.parametrize("sample", [SEDNA, KUBEEDGE], ids=["sedna.io", "ai.kubeedge.io"])
async def test_the_seeds_samples_reach_their_node_in_one_form(tmp_path: Path, sample: str) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("precision-5820") as node:
        await w.apply(read(sample))
        status = await w.reaches("Running", name="facialexpression", plural=PLURAL)
        [(uid, _, body)] = node.holds.values()
        assert (body["apiVersion"], bool(uid)) == (SEDNA_GROUP, True)
        assert (status.url, status.serving_version, status.active) == ("http://precision-5820:8501", "4", 1)
        assert [(each.version, each.digest) for each in status.versions] == [("4", "d" * 64)]


async def test_a_framework_that_no_node_can_serve_is_sent_to_none_and_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("precision-5820") as node:
        await w.apply(read(SEDNA, frameworkType="pytorch"))
        status = await w.reaches("Pending", "FrameworkNotSupported", name="facialexpression", plural=PLURAL)
        assert "spec.frameworkType: 'pytorch'" in status.conditions[-1].message
        assert "use one of onnx, tflite, tensorflow" in status.conditions[-1].message
        assert not node.sent("insert")


async def test_an_edit_that_cannot_be_served_leaves_the_node_what_it_runs(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("cloud0", **CLOUD) as node:
        await w.apply(inference_model())
        await w.reaches("Running", name="faces", plural=PLURAL)
        for reason, change in {
            "InvalidDigest": {"manifest": [version("1", sha256sum="abc")]},
            "ImageNotSupported": {"image": "example.io/faces:1"},
        }.items():
            await w.apply(inference_model(**change))
            await w.reaches("Degraded", reason, name="faces", plural=PLURAL)
            assert node.holds[FACES][1] == 1
        await w.apply(inference_model(targetVersion="1"))
        status = await w.reaches("Running", name="faces", plural=PLURAL, generation=4)
        assert [each.version for each in status.versions] == ["1", "2"]


async def test_without_a_node_of_its_own_it_goes_to_those_of_its_layer(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        await w.apply(inference_model())
        status = await w.reaches("Pending", "NoNode", name="faces", plural=PLURAL)
        assert LABEL in status.conditions[-1].message
        async with w.node("cloud0", **CLOUD) as cloud, w.node("edge0") as edge:
            await w.reaches("Running", name="faces", plural=PLURAL)
            assert FACES in cloud.holds
            assert FACES not in edge.holds


async def test_a_version_that_a_server_did_not_take_is_told_while_the_one_before_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("cloud0", **CLOUD) as node:
        await w.apply(inference_model(targetVersion="1"))
        await w.reaches("Running", name="faces", plural=PLURAL)
        using = ModelInUse(version="1", digest="d" * 64, refused="e" * 64, reason="ModelInvalid", message="no graph")
        node.overrides["serve"] = WorkerReport(
            name="faces-serve-cloud0", role="serve", phase="Running", url="http://cloud0:8501", model=using
        )
        await w.apply(inference_model(targetVersion="2"))
        status = await w.reaches("Degraded", "RolloutFailed", name="faces", plural=PLURAL)
        assert (status.serving_version, status.url) == ("1", "http://cloud0:8501")
        text = status.conditions[-1].message
        assert all(part in text for part in ("cloud0", "keeps 1", "ModelInvalid", "no graph"))
        assert [each.version for each in status.versions] == ["1"]


async def test_no_replicas_are_taken_from_the_node_and_come_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("cloud0", **CLOUD) as node:
        await w.apply(inference_model())
        await w.reaches("Running", name="faces", plural=PLURAL)
        await w.apply(inference_model(replicas=0))
        status = await w.reaches("Stopped", "NoReplicas", name="faces", plural=PLURAL)
        assert status.url is None
        await eventually(lambda: FACES not in node.holds)
        await w.apply(inference_model(replicas=1))
        await w.reaches("Running", name="faces", plural=PLURAL)


async def test_at_the_edge_one_node_that_matches_serves_it_until_it_is_drained(tmp_path: Path) -> None:
    body = inference_model(deployToLayer="edge", nodeSelector={"site": "north"})
    async with world(tmp_path) as w, w.node("edge1", site="north", **EDGE) as one:
        async with w.gm():
            await w.apply(body)
            await w.reaches("Running", name="faces", plural=PLURAL)
        async with w.node("edge0", site="north", **EDGE) as other:
            for generation, version in enumerate(("1", "2"), start=2):  # the second GM knows both nodes when it starts
                async with w.gm():
                    await eventually(lambda: other.sent("synced") != [])
                    await w.apply({**body, "spec": {**body["spec"], "targetVersion": version}})
                    status = await w.reaches("Running", name="faces", plural=PLURAL, generation=generation)
                    assert (status.active, [node.node for node in status.nodes]) == (1, ["edge1"])
            assert not other.sent("insert")
            async with w.gm():
                await w.ask("drain", name="edge1")
                await eventually(lambda: FACES in other.holds and FACES not in one.holds)
                status = await w.reaches("Running", name="faces", plural=PLURAL)
                assert status.url == "http://edge0:8501"


async def test_a_selector_that_matches_both_layers_takes_a_node_of_the_models_layer(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("a", site="north", **CLOUD) as cloud:
        await w.apply(inference_model(deployToLayer="edge", nodeSelector={"site": "north"}))
        status = await w.reaches("Degraded", "NodeMismatch", name="faces", plural=PLURAL)
        assert all(part in status.conditions[-1].message for part in ("spec.deployToLayer", "'edge'", "node a"))
        async with w.node("b", site="north", **EDGE) as edge:
            await w.reaches("Running", name="faces", plural=PLURAL)
            assert FACES in edge.holds
            assert FACES not in cloud.holds


async def test_a_selector_that_the_named_node_does_not_match_is_a_condition(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("cloud0", site="north", **CLOUD):
        await w.apply(inference_model(nodeName="cloud0", nodeSelector={"site": "south"}))
        status = await w.reaches("Degraded", "NodeMismatch", name="faces", plural=PLURAL)
        assert "spec.nodeSelector: {'site': 'south'}" in status.conditions[-1].message
        await w.apply(inference_model(nodeName="cloud0", nodeSelector={"site": "north"}))
        await w.reaches("Running", name="faces", plural=PLURAL)


async def test_replicas_are_as_many_nodes_and_too_few_nodes_are_a_condition_that_heals(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("cloud0", **CLOUD), w.node("cloud1", **CLOUD):
        await w.apply(inference_model(replicas=3))
        status = await w.reaches("Degraded", "ReplicasNotSupported", name="faces", plural=PLURAL)
        assert status.active == 2
        assert all(part in status.conditions[-1].message for part in ("spec.replicas: 3", "set 2", "one server"))
        async with w.node("cloud2", **CLOUD), w.node("cloud3", **CLOUD):
            status = await w.reaches("Running", name="faces", plural=PLURAL)
            assert [node.node for node in status.nodes] == ["cloud0", "cloud1", "cloud2"]
            await w.apply(inference_model())
            status = await w.reaches("Running", name="faces", plural=PLURAL, generation=2)
            assert [node.node for node in status.nodes] == ["cloud0"]


async def test_more_replicas_at_the_edge_are_a_condition_and_one_of_them_serves(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0", **EDGE):
        await w.apply(inference_model(deployToLayer="edge", replicas=2))
        status = await w.reaches("Degraded", "ReplicasNotSupported", name="faces", plural=PLURAL)
        assert status.active == 1
        assert "set 1, or deployToLayer: cloud" in status.conditions[-1].message


async def test_fields_that_need_kubernetes_are_named_in_the_condition(tmp_path: Path) -> None:
    limits = {"limits": {"memory": "1Gi"}}
    async with world(tmp_path) as w, w.gm(), w.node("cloud0", **CLOUD):
        await w.apply(inference_model(resources=limits))
        status = await w.reaches("Running", name="faces", plural=PLURAL)
        assert "Kubernetes" not in status.conditions[-1].message
        more = {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}
        requests = limits | {"requests": {"cpu": "1"}}
        await w.apply(inference_model(resources=requests, serviceType="NodePort", ingress={}, **more))
        status = await w.reaches("Running", name="faces", plural=PLURAL, generation=2)
        for field in ("spec.serviceType", "spec.ingress", "spec.resources", "spec.env"):
            assert field in status.conditions[-1].message


async def test_one_name_in_two_groups_is_refused_by_name(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        await w.apply(inference_model())
        reply = await w.ask("apply", object={**inference_model(), "apiVersion": "ai.kubeedge.io/v1alpha1"})
        assert reply.error is not None
        assert "NameConflict" in reply.error.message
