"""A server that makes something else of what it is asked for, as admission webhooks do, is not asked for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from services.gm.cluster.kubernetes.made import Made
from services.gm.cluster.kubernetes.names import DEPLOYMENTS, Object
from tests.simulated import simulated
from tests.unit.gm.kubernetes.shelf import Shelf

OWNER = {
    "apiVersion": "sedna.io/v1alpha1",
    "kind": "JointInferenceService",
    "name": "helmet",
    "uid": "u",
    "controller": True,
}


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
async def made_on(shelf: Shelf) -> AsyncIterator[Made]:
    made = Made(shelf, lambda _: None)  # type: ignore[arg-type]
    [informer] = [each for each in made.informers if each.api == DEPLOYMENTS]
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    yield made
    task.cancel()
    await asyncio.wait({task})


def writes(shelf: Shelf) -> int:
    return sum(call in {"create", "patch"} for call in shelf.calls)


@simulated
async def test_what_the_server_makes_something_else_of_is_asked_for_once() -> None:
    shelf = Mirror()
    async with made_on(shelf) as made:
        for image, expected in (("a", 1), ("b", 2)):
            for _ in range(10):
                await made.ensure(deployment(image))
                await asyncio.sleep(1)
            assert writes(shelf) == expected


@simulated
async def test_it_is_asked_for_again_once_the_object_has_changed() -> None:
    shelf = Mirror()
    async with made_on(shelf) as made:
        await made.ensure(deployment("a"))
        shelf.put("d", metadata={"generation": 2})
        await asyncio.sleep(1)
        shelf.mirrors = False
        for _ in range(5):
            await made.ensure(deployment("a"))
        assert writes(shelf) == 2
        [container] = shelf.objects["default", "d"]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "a"
