"""What the adapter makes for services: once, as asked for, never somebody else's."""

from __future__ import annotations

from typing import Any

import pytest

from services.gm.cluster.kubernetes.client import RefusedObjectError
from services.gm.cluster.port import Ref, StoredResource
from services.gm.workloads.object_names import labels, owner, selector
from tests.kubernetes.adapter import PATIENCE, Adapter, adapter
from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body
from tests.simulated import eventually

NAME = "helmet-deployment-edge"


def body_of(of: StoredResource, kind: str, name: str, role: str, spec: Body) -> Body:
    """As ``services.gm.workloads`` makes one, in short."""
    version, _, kind = kind.rpartition("/")
    meta = {
        "name": name,
        "namespace": of.key.namespace,
        "labels": labels(of.resource, role),
        "annotations": {"halimede.io/digest": str(spec)},
        "ownerReferences": [owner(of.resource)],
    }
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def deployment(of: StoredResource, image: str = "worker:1", **spec: Any) -> Body:
    pod = {"nodeName": "edge0", "containers": [{"name": "worker", "image": image}]}
    defaults = {
        "replicas": 1,
        "selector": {"matchLabels": selector(of.resource, "edge")},
        "template": {"metadata": {"labels": labels(of.resource, "edge")}, "spec": pod},
    }
    return body_of(of, "apps/v1/Deployment", NAME, "edge", defaults | spec)


def network(of: StoredResource, port: int = 5000) -> Body:
    spec = {"selector": selector(of.resource, "cloud"), "ports": [{"name": "big-model", "port": port}]}
    return body_of(of, "v1/Service", "helmet-cloud", "cloud", spec)


def autoscaler(of: StoredResource) -> Body:
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME},
        "minReplicas": 1,
        "maxReplicas": 3,
        "metrics": [{"type": "Resource", "resource": cpu}],
    }
    return body_of(of, "autoscaling/v2/HorizontalPodAutoscaler", f"hpa-{NAME}", "edge", spec)


async def image_of(a: Adapter) -> str:
    found = await a.api.client.get("Deployment", a.api.namespace, NAME)
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"])


async def test_what_is_missing_is_made_and_seen_at_once_and_not_written_again(api: Api) -> None:
    async with adapter(api) as a:
        of = await a.service()
        bodies = [deployment(of), network(of), autoscaler(of)]
        for body in bodies:
            await a.cluster.ensure(body)
        objects = a.cluster.workers(of.key).objects
        assert set(objects) == {Ref.of(body) for body in bodies}
        assert all("managedFields" not in body["metadata"] for body in objects.values())
        writes = a.client.writes
        for body in bodies * 3:
            await a.cluster.ensure(body)
        assert a.client.writes == writes


async def test_what_differs_is_patched_and_somebody_elses_fields_are_left(api: Api) -> None:
    async with adapter(api) as a:
        of = await a.service()
        await a.cluster.ensure(deployment(of))
        by_hand = {"metadata": {"annotations": {"team": "vision"}}}
        await api.client.patch("Deployment", api.namespace, NAME, by_hand)
        await eventually(lambda: "team" in str(a.cluster.workers(of.key).objects), PATIENCE)
        await a.cluster.ensure(deployment(of, "worker:2"))
        assert await image_of(a) == "worker:2"
        found = await api.client.get("Deployment", api.namespace, NAME)
        assert found["metadata"]["annotations"]["team"] == "vision"
        await a.cluster.ensure(network(of))
        await a.cluster.ensure(network(of, 5001))
        assert (await api.client.get("Service", api.namespace, "helmet-cloud"))["spec"]["ports"][0]["port"] == 5001


async def test_what_the_server_does_not_accept_is_refused_with_the_field(api: Api) -> None:
    async with adapter(api) as a:
        wrong = deployment(await a.service(), selector={"matchLabels": {"app": "another"}})
        with pytest.raises(RefusedObjectError, match=r"spec\.template\.metadata\.labels: .*selector"):
            await a.cluster.ensure(wrong)
        assert a.cluster.failures == 1


async def test_a_field_that_nobody_knows_is_refused_and_not_dropped(api: Api) -> None:
    async with adapter(api) as a:
        of = await a.service()
        await a.cluster.ensure(deployment(of))
        typo = deployment(of, "worker:2")
        typo["spec"]["template"]["spec"]["tolerationz"] = []
        pattern = rf"^Deployment {api.namespace}/{NAME}: .*unknown field \"spec\.template\.spec\.tolerationz\""
        for exists in (True, False):
            with pytest.raises(RefusedObjectError, match=pattern):
                await a.cluster.ensure(typo)
            if exists:
                await api.client.delete("Deployment", api.namespace, NAME)
                await eventually(lambda: not a.cluster.workers(of.key).objects, PATIENCE)


async def test_what_is_removed_goes_if_it_is_the_one_that_was_meant(api: Api) -> None:
    async with adapter(api) as a:
        of = await a.service()
        await a.cluster.ensure(autoscaler(of))
        ref = Ref.of(autoscaler(of))
        uid = a.cluster.workers(of.key).objects[ref]["metadata"]["uid"]
        await a.cluster.remove(ref, "00000000-0000-0000-0000-000000000000")
        assert await api.client.find(ref.kind, ref.namespace, ref.name)
        await a.cluster.remove(ref, uid)
        await eventually(lambda: not a.cluster.workers(of.key).objects, PATIENCE)
        await a.cluster.remove(ref, uid)


@pytest.mark.slow
async def test_secrets_are_seen_without_what_they_hold(api: Api) -> None:
    async with adapter(api) as a:
        meta = {"name": "bucket", "annotations": {"s3-endpoint": "https://s3.example.com"}}
        await api.client.create("Secret", api.namespace, {"metadata": meta, "stringData": {"ACCESS_KEY_ID": "hush"}})
        found = await a.cluster.secrets(api.namespace, {"bucket", "missing"})
        assert found["missing"] is None
        assert found["bucket"]["annotations"]["s3-endpoint"] == "https://s3.example.com"  # type: ignore[index]
        assert "hush" not in str(found)
        assert "data" not in found["bucket"]  # type: ignore[operator]
        await api.client.create("Secret", api.namespace, {"metadata": {"name": "missing"}})

        async def seen() -> bool:
            return (await a.cluster.secrets(api.namespace, {"missing"}))["missing"] is not None

        await eventually(seen, PATIENCE)
