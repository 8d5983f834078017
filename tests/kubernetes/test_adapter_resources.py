"""The adapter's resources: read as they are, written as they were seen, one owner for each name."""

from __future__ import annotations

import asyncio
import copy

import pytest

from halimede.messages import NodeSummary, Status, TaskInfo
from services.gm.cluster.port import FINALIZER, ConflictError, NodeSeen, RegisteredNode
from tests.integration.gm_world import SERVICES, dataset
from tests.kubernetes.adapter import MODELS, PATIENCE, Adapter, adapter
from tests.kubernetes.apiserver import Api
from tests.kubernetes.world import definitions
from tests.seeds.samples import service as seed_service
from tests.simulated import eventually

SEDNA_MODELS = "models.sedna.io/v1alpha1"
NEPTUNE = f"{SERVICES}.neptune.io/v1alpha1"


async def test_what_is_there_when_it_opens_is_there_at_once_and_no_news(api: Api) -> None:
    async with adapter(api) as a:
        await a.model("first")
    async with adapter(api) as a:
        assert a.cluster.get(a.key("first")) is not None
        assert a.key("first") in {stored.key for stored in a.cluster.resources(MODELS, api.namespace)}
        await a.model("second")
        await a.heard(a.key("second"))
        assert a.key("first") not in a.happened


async def test_a_status_is_not_written_over_an_edit(api: Api) -> None:
    async with adapter(api) as a:
        stored = await a.model()
        await a.cluster.write_status(stored, Status(phase="Ready"))
        with pytest.raises(ConflictError):  # seen here
            await a.cluster.write_status(stored, Status(phase="Unused"))
        now = await a.stored("m")
        await api.client.patch(SEDNA_MODELS, api.namespace, "m", {"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(ConflictError):  # here or by the server, whichever is faster
            await a.cluster.write_status(now, Status(phase="Unused"))
        assert (await api.client.get(SEDNA_MODELS, api.namespace, "m"))["status"]["phase"] == "Ready"
        await eventually(lambda: a.cluster.get(a.key("m")).resource.metadata.labels == {"a": "b"}, PATIENCE)
        await a.cluster.write_status(await a.stored("m"), Status(phase="Unused"))


async def test_the_status_of_what_was_deleted_is_a_conflict(api: Api) -> None:
    async with adapter(api) as a:
        stored = await a.model()
        await api.client.delete(SEDNA_MODELS, api.namespace, "m")
        with pytest.raises(ConflictError):
            await a.cluster.write_status(stored, Status(phase="Ready"))


async def test_a_held_resource_waits_for_us_and_for_us_alone(api: Api) -> None:
    async with adapter(api) as a:
        stored = await a.model()
        await a.cluster.add_finalizer(stored.key, stored.uid)
        await a.cluster.add_finalizer(stored.key, stored.uid)
        assert (await a.stored("m")).has_finalizer
        await a.cluster.finalize(stored.key, stored.uid)
        assert (await a.stored("m")).has_finalizer, "nobody has asked for its deletion"
        body = {"metadata": {"finalizers": [FINALIZER, "example.com/other"]}}
        await api.client.patch(SEDNA_MODELS, api.namespace, "m", body)
        await api.client.delete(SEDNA_MODELS, api.namespace, "m")
        await eventually(lambda: a.cluster.get(stored.key).deleting, PATIENCE)
        await a.cluster.finalize(stored.key, "another uid")
        await a.cluster.finalize(stored.key, stored.uid)
        found = await api.client.get(SEDNA_MODELS, api.namespace, "m")
        assert found["metadata"]["finalizers"] == ["example.com/other"]
        await api.client.patch(SEDNA_MODELS, api.namespace, "m", {"metadata": {"finalizers": None}})
        await eventually(lambda: a.cluster.get(stored.key) is None, PATIENCE)
        await a.cluster.finalize(stored.key, stored.uid)
        with pytest.raises(ConflictError):
            await a.cluster.add_finalizer(stored.key, stored.uid)


async def test_of_two_groups_under_one_name_the_older_has_it_and_the_other_takes_over(api: Api) -> None:
    async with adapter(api) as a:
        older = await a.service()
        key = older.key
        await asyncio.sleep(1.1)  # ages are told in seconds
        await a.make(seed_service("helmet"))
        await eventually(lambda: a.cluster.namesakes(key), PATIENCE)
        (younger,) = a.cluster.namesakes(key)
        assert a.cluster.get(key).uid == older.uid
        assert younger.resource.kind.api_version == "neptune.io/v1alpha1"
        await a.cluster.write_status(younger, Status(phase="Failed"))
        assert (await api.client.get(NEPTUNE, api.namespace, "helmet"))["status"]["phase"] == "Failed"
        assert a.cluster.get(key).status is None
        a.happened.clear()
        await api.client.delete(f"{SERVICES}.sedna.io/v1alpha1", api.namespace, "helmet")
        await a.heard(key)
        await eventually(lambda: a.cluster.get(key).uid == younger.uid, PATIENCE)
        assert a.cluster.namesakes(key) == ()


async def test_what_cannot_be_read_is_told_so_and_left_alone_and_can_still_be_deleted(api: Api) -> None:
    strict = next(each for each in definitions() if each["spec"]["names"]["plural"] == "datasets")
    loose = copy.deepcopy(strict)  # as it might have been before it was tightened
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = anything
    path = "datasets.sedna.io/v1alpha1"
    async with adapter(api) as a:
        await api.install(loose)
        try:
            bad = dataset("d") | {"spec": {"url": 5}}
            bad["metadata"]["finalizers"] = [FINALIZER]
            key, uid = a.key("d", "datasets"), (await a.make(bad))["metadata"]["uid"]

            async def said() -> bool:
                status = (await api.client.get(path, api.namespace, "d")).get("status") or {}
                current = (status.get("conditions") or [{}])[-1]
                return current.get("reason") == "Invalid" and "spec.url" in current["message"]

            await eventually(said, PATIENCE)
            assert a.cluster.get(key) is None
            assert a.cluster.exists(key, uid)
            assert a.cluster.exists(key)
            assert not a.cluster.exists(key, "another uid")

            async def told() -> bool:
                events = (await api.client.list("Event", api.namespace))["items"]
                return any(e["involvedObject"]["uid"] == uid for e in events)

            await eventually(told, PATIENCE)
            mended = {"spec": {"url": "/data/x.csv", "format": "csv", "nodeName": "n"}}
            await api.client.patch(path, api.namespace, "d", mended)
            await a.stored("d", "datasets")
            await api.client.patch(path, api.namespace, "d", {"spec": {"url": 6}})
            await eventually(lambda: a.cluster.get(key) is None, PATIENCE)
            await api.client.delete(path, api.namespace, "d")
            await api.until_gone(path, "d")
            await eventually(lambda: not a.cluster.exists(key, uid), PATIENCE)
        finally:
            await api.install(strict)


async def test_nodes_are_told_of_when_they_come_go_or_get_other_labels(api: Api) -> None:
    name = api.unique("node")
    await api.node(name, {"pool": "edge"})
    async with adapter(api) as a:
        # a server may add labels
        await eventually(lambda: {"pool": "edge"}.items() <= labels_of(a, name).items(), PATIENCE)
        a.happened.clear()
        await api.client.patch("Node", None, name, {"status": {"conditions": []}}, "status")
        await api.client.patch("Node", None, name, {"metadata": {"annotations": {"x": "y"}}})
        await api.client.patch("Node", None, name, {"metadata": {"labels": {"pool": "cloud"}}})
        await eventually(lambda: a.happened, PATIENCE)
        seen = [what.node for what in a.happened if isinstance(what, NodeSeen)]
        assert [node.labels["pool"] for node in seen if node] == ["cloud"]
        labels = labels_of(a, name)
        unready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "it is silent"}
        await api.client.patch("Node", None, name, {"status": {"conditions": [unready]}}, "status")
        await a.heard(NodeSeen(name, RegisteredNode(labels, "NodeStatusUnknown: it is silent")))
        await api.client.delete("Node", None, name)
        await a.heard(NodeSeen(name, None))


def labels_of(a: Adapter, name: str) -> dict[str, str]:
    """Return the labels that a node had when it was told of last."""
    nodes = [what.node for what in a.happened if isinstance(what, NodeSeen) and what.name == name]
    return dict(nodes[-1].labels) if nodes and nodes[-1] else {}


async def test_it_knows_what_statuses_said_of_nodes_before_it_was_there(api: Api) -> None:
    async with adapter(api) as a:
        stored = await a.service()
        counts = TaskInfo(inference_number=12, edge_inference_number=12)
        summary = NodeSummary(node="edge0", online=False, phase="Running", task_info=counts)
        await a.cluster.write_status(stored, Status(phase="Running", observed_generation=1, nodes=[summary]))
    async with adapter(api) as a:
        (report,) = [r for r in (await a.cluster.recall()).reports if r.key == stored.key]
        assert (report.node, report.live, report.edge) == ("edge0", True, True)
        assert report.status.output.task_info.inference_number == 12  # type: ignore[union-attr]


async def test_a_finalized_resource_is_gone_at_once_and_its_name_is_free(api: Api) -> None:
    async with adapter(api) as a:
        stored = await a.model()
        await a.cluster.add_finalizer(stored.key, stored.uid)
        await api.client.delete(SEDNA_MODELS, api.namespace, "m")
        await eventually(lambda: a.cluster.get(stored.key).deleting, PATIENCE)
        await a.cluster.finalize(stored.key, stored.uid)
        assert a.cluster.get(stored.key) is None
        again = await a.model()
        assert again.uid != stored.uid
        assert not again.has_finalizer
