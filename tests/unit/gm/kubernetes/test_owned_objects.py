"""What belongs to whom, and servers that are ahead of their watches, refuse, or make something else of what they are
asked for, as admission webhooks do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from halimede.names import Key
from services.gm.cluster.kubernetes.api_paths import DEPLOYMENTS, PODS, ApiResource, Object
from services.gm.cluster.kubernetes.client import ForbiddenError, RefusedObjectError, StaleError
from services.gm.cluster.kubernetes.owned_objects import OwnedObjects
from services.gm.cluster.port import ConflictError, NotAcceptedError
from services.gm.workloads.object_names import NAME, UID
from tests.unit.gm.kubernetes.shelf import Shelf

pytestmark = pytest.mark.simulated

OWNER = {
    "apiVersion": "sedna.io/v1alpha1", "kind": "JointInferenceService",
    "name": "helmet", "uid": "u", "controller": True,
}  # fmt: skip


class Mirror(Shelf):
    """Has all images come from a registry of its own, as long as its webhook is there."""

    mirrors = True
    objects: dict[tuple[str, str], Object]

    def _keep(self, kind: str, body: Object) -> Object:
        for container in body["spec"]["template"]["spec"]["containers"] if self.mirrors else ():
            container["image"] = "mirror/" + container["image"].removeprefix("mirror/")
        return super()._keep(kind, body)


def deployment(image: str) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "d",
            "namespace": "default",
            "labels": {"app.kubernetes.io/managed-by": "halimede"},
            "annotations": {"halimede.io/digest": image},
            "ownerReferences": [OWNER],
        },
        "spec": {"template": {"spec": {"containers": [{"name": "worker", "image": image}]}}},
    }


@asynccontextmanager
async def made_on(
    shelf: Shelf, api: ApiResource = DEPLOYMENTS, announced: list[Key] | None = None
) -> AsyncIterator[OwnedObjects]:
    made = OwnedObjects(shelf, (announced if announced is not None else []).append)  # type: ignore[arg-type]
    [informer] = [each for each in made.informers if each.api == api]
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    yield made
    task.cancel()
    await asyncio.wait({task})


def writes(shelf: Shelf) -> int:
    return sum(call in {"create", "patch"} for call in shelf.calls)


async def test_what_the_server_makes_something_else_of_is_asked_for_once_until_the_object_has_changed() -> None:
    shelf = Mirror()
    async with made_on(shelf) as made:
        for image, expected in (("a", 1), ("b", 2)):
            for _ in range(10):
                await made.ensure(deployment(image))
                await asyncio.sleep(1)
            assert writes(shelf) == expected
        shelf.put("d", metadata={"generation": 2})
        await asyncio.sleep(1)
        shelf.mirrors = False
        for _ in range(5):
            await made.ensure(deployment("b"))
        assert writes(shelf) == 3
        [container] = shelf.objects["default", "d"]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "b"


async def test_an_object_that_is_ahead_of_its_watch_is_read_once_and_then_brought(shelf: Shelf) -> None:
    shelf.silent = True
    async with made_on(shelf) as made:
        await made.ensure(deployment("a"))
        shelf.put("d", metadata={"generation": 2})
        before = len(shelf.calls)
        with pytest.raises(ConflictError):
            await made.ensure(deployment("b"))
        await made.ensure(deployment("b"))
        assert shelf.calls[before:] == ["patch", "get", "patch"]
        assert "image': 'b'" in str(shelf.objects["default", "d"])


async def test_a_conflict_is_nothing_else_when_the_object_cannot_be_read_again(shelf: Shelf) -> None:
    async with made_on(shelf) as made:
        await made.ensure(deployment("a"))
        shelf.errors = [StaleError("PATCH", 409, "changed"), ForbiddenError("GET", 403, "no right to get")]
        with pytest.raises(ConflictError, match="changed"):
            await made.ensure(deployment("b"))
        assert not shelf.errors


@pytest.mark.parametrize("kind", [RefusedObjectError, ForbiddenError])
async def test_what_is_not_accepted_is_said_of_the_object_and_not_of_the_call(
    shelf: Shelf, kind: type[RefusedObjectError]
) -> None:
    async with made_on(shelf) as made:
        await asyncio.sleep(1)  # it watches by then
        shelf.errors = [kind("POST deployments default", 422, "spec.replicas: too many")]
        with pytest.raises(NotAcceptedError) as caught:
            await made.ensure(deployment("a"))
        assert str(caught.value) == "Deployment default/d: spec.replicas: too many"
        assert isinstance(caught.value, kind)
        assert caught.value.status == 422


def pod(name: str, namespace: str, owner: str) -> Object:
    controller = {"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "o", "controller": True}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}-{name}",
            "labels": {NAME: "helmet", UID: "u"},
            "ownerReferences": [controller] if owner else [],
        }
    }


async def test_pods_count_in_their_services_namespace_alone_and_if_a_deployment_made_them() -> None:
    shelf, announced = Shelf(), list[Key]()
    for body in (pod("p1", "shop", "ReplicaSet"), pod("p2", "shop", "Deployment")):
        shelf._keep("ADDED", body)
    async with made_on(shelf, PODS, announced) as made:
        announced.clear()
        foreign = (
            ("p1", "attacker", "ReplicaSet"),
            ("p3", "attacker", "ReplicaSet"),
            ("p4", "shop", ""),
            ("p5", "shop", "Job"),
        )
        for name, namespace, owner in foreign:
            shelf._keep("ADDED", pod(name, namespace, owner))
        await asyncio.sleep(1)
        assert {each["metadata"]["uid"] for each in made.of("shop", "u").pods} == {"shop-p1", "shop-p2"}
        assert {key.namespace for key in announced} == {"attacker"}
        shelf._log("DELETED", shelf.objects.pop(("attacker", "p1")))
        await asyncio.sleep(1)
        assert len(made.of("shop", "u").pods) == 2


async def test_objects_count_in_their_services_namespace_alone_and_if_it_controls_them(shelf: Shelf) -> None:
    labels = {"app.kubernetes.io/managed-by": "halimede", NAME: "helmet", UID: "u"}
    copied: dict[str, Any] = {
        "theirs": {"namespace": "attacker"},
        "labels-alone": {"namespace": "shop", "ownerReferences": None},
        "owned": {"namespace": "shop", "ownerReferences": [{**OWNER, "controller": False}]},
        "ours": {"namespace": "shop"},
    }
    for name, metadata in copied.items():
        body = deployment("a")
        body["metadata"] |= {"name": name, "uid": name, "labels": labels, **metadata}
        shelf._keep("ADDED", body)
    async with made_on(shelf) as made:
        assert [ref.name for ref in made.of("shop", "u").objects] == ["ours"]
        assert [ref.name for ref in made.of("attacker", "u").objects] == ["theirs"]
