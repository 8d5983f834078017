"""The player: pods for deployments, states of pods, and the end of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.kubernetes import podstates
from tests.kubernetes.apiserver import Api
from tests.kubernetes.things import Body, deployment
from tests.waiting import patience


async def until(api: Api, holds: Callable[[list[Body]], bool]) -> list[Body]:
    """Wait until the test's pods are as wanted."""
    async with asyncio.timeout(patience(30.0)):
        while True:
            pods = (await api.client.list("Pod", api.namespace))["items"]
            if holds(pods):
                return pods
            await asyncio.sleep(0.05)


def running(count: int) -> Callable[[list[Body]], bool]:
    """Say whether there are so many pods, and all of them run."""
    return lambda pods: len(pods) == count and all(pod["status"]["phase"] == "Running" for pod in pods)


async def test_a_deployment_gets_its_pods_and_a_status(api: Api) -> None:
    await api.client.create("Deployment", api.namespace, deployment("one", replicas=2))
    async with api.player():
        pods = await until(api, running(2))
        async with asyncio.timeout(patience(30.0)):
            while (await api.client.get("Deployment", api.namespace, "one"))["status"].get("readyReplicas") != 2:
                await asyncio.sleep(0.05)
    assert all(pod["metadata"]["labels"]["app"] == "one" for pod in pods)
    assert all(pod["metadata"]["name"].startswith("one-") for pod in pods)


async def test_a_changed_template_replaces_pods_and_fewer_replicas_remove_some(api: Api) -> None:
    await api.client.create("Deployment", api.namespace, deployment("one", replicas=2))
    async with api.player():
        old = {pod["metadata"]["uid"] for pod in await until(api, running(2))}
        body = deployment("one", replicas=2, image="example.io/worker:2")["spec"]
        await api.client.patch("Deployment", api.namespace, "one", {"spec": body})
        images = {"example.io/worker:2"}
        new = await until(
            api, lambda pods: running(2)(pods) and {pod["spec"]["containers"][0]["image"] for pod in pods} == images
        )
        assert not old & {pod["metadata"]["uid"] for pod in new}
        await api.client.patch("Deployment", api.namespace, "one", {"spec": {"replicas": 1}})
        await until(api, running(1))


async def test_pods_fail_as_told_and_recover(api: Api) -> None:
    player = api.player()
    player.behave(podstates.unschedulable, prefix="one-")
    player.behave(podstates.crash_loop, app="two")
    for name in ("one", "two"):
        await api.client.create("Deployment", api.namespace, deployment(name))
    async with player:
        pods = await until(api, lambda pods: len(pods) == 2 and all(pod["status"].get("conditions") for pod in pods))
        by_app = {pod["metadata"]["labels"]["app"]: pod["status"] for pod in pods}
        assert by_app["one"]["conditions"][0]["reason"] == "Unschedulable"
        waiting = by_app["two"]["containerStatuses"][0]["state"]["waiting"]
        assert waiting["reason"] == "CrashLoopBackOff"
        player.behave(podstates.running)
        await until(api, running(2))


async def test_a_deleted_deployments_pods_go_with_it(api: Api) -> None:
    await api.client.create("Deployment", api.namespace, deployment("one", replicas=2))
    async with api.player():
        await until(api, running(2))
        await api.client.delete("Deployment", api.namespace, "one")
        await until(api, lambda pods: not pods)


async def test_a_steady_state_makes_no_writes(api: Api) -> None:
    control = api.control
    await api.client.create("Deployment", api.namespace, deployment("one", replicas=2))
    player = api.player()
    async with player:
        await until(api, running(2))
        await asyncio.sleep(0.5)
        before = len(control.writes())
        await asyncio.sleep(0.5)
        assert len(control.writes()) == before
