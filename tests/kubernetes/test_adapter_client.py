"""The client's calls: each ends in time, with an answer or an error that says what is wrong and whether it lasts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.gm.cluster.kubernetes.api_paths import DEPLOYMENTS, EVENTS, LEASES, NODES, SECRETS, SERVICES, Object
from services.gm.cluster.kubernetes.client import (
    PAGE,
    AlreadyExistsError,
    ForbiddenError,
    GoneError,
    KubernetesClient,
    NotFoundError,
    RefusedObjectError,
    StaleError,
    UnavailableError,
    load_configuration,
)
from tests.kubernetes.apiserver import Api
from tests.waiting import patience


@contextlib.asynccontextmanager
async def client(kubeconfig: Path, timeout_s: float = 10.0) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient(await load_configuration(str(kubeconfig)), timeout_s=timeout_s) as made:
        yield made


def lease(name: str = "l") -> Object:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}}


def by_us(request: object) -> bool:
    return "halimede" in request.agent  # type: ignore[attr-defined]


async def test_what_is_there_already_or_not_there_or_another_version(api: Api) -> None:
    async with client(api.kubeconfig) as c:
        made = await c.create(LEASES, api.namespace, lease())
        with pytest.raises(AlreadyExistsError, match="leases"):
            await c.create(LEASES, api.namespace, lease())
        with pytest.raises(NotFoundError, match=f"GET leases {api.namespace}/none"):
            await c.get(LEASES, api.namespace, "none")
        stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "spec": {"holderIdentity": "a"}}
        await c.patch(LEASES, api.namespace, "l", stale)
        with pytest.raises(StaleError):
            await c.patch(LEASES, api.namespace, "l", stale)
        with pytest.raises(StaleError):
            await c.delete(LEASES, api.namespace, "l", uid="00000000-0000-0000-0000-000000000000")
        with pytest.raises(RefusedObjectError, match=r"spec\.leaseTransitions"):
            await c.patch(LEASES, api.namespace, "l", {"spec": {"leaseTransitions": -1}})
        await c.delete(LEASES, api.namespace, "l", uid=made["metadata"]["uid"])
        assert (c.writes, c.failures) == (7, 4)


async def test_who_may_not_is_told_what(api: Api) -> None:
    async with client((await api.user("nobody", [])).kubeconfig) as c:
        with pytest.raises(ForbiddenError, match=r"GET secrets .*forbidden"):
            await c.get(SECRETS, api.namespace, "s")


async def test_a_list_comes_in_pages_and_a_watch_goes_on_from_it(api: Api) -> None:
    async with client(api.kubeconfig) as c:
        for number in range(PAGE + 5):
            meta, about = {"name": f"e{number}", "labels": {"t": api.namespace}}, {"namespace": api.namespace}
            await c.create(EVENTS, api.namespace, {"metadata": meta, "involvedObject": about})
        pages = [page async for page in c.pages(EVENTS, selector=f"t={api.namespace}")]
        assert [len(bodies) for bodies, _ in pages] == [PAGE, 5]
        version = pages[-1][1]
        await api.client.delete("Event", api.namespace, "e3")
        async with contextlib.aclosing(c.watch(EVENTS, version, selector=f"t={api.namespace}", seconds=30)) as events:
            async for kind, body in events:
                if kind not in {"BOOKMARK", "OPENED"}:
                    assert (kind, body["metadata"]["name"]) == ("DELETED", "e3")
                    break


async def test_a_watch_ends_by_itself_in_its_time(api: Api) -> None:
    async with client(api.kubeconfig) as c:
        _, version = [page async for page in c.pages(NODES)][-1]
        kinds = {kind async for kind, _ in c.watch(NODES, version, seconds=1.0)}
        assert kinds <= {"BOOKMARK", "OPENED"}


async def test_a_watch_from_too_long_ago_is_gone(api: Api) -> None:
    control = api.control
    async with client(api.kubeconfig) as c:
        await c.create(LEASES, api.namespace, lease())
        control.expire()
        with pytest.raises(GoneError):
            async for _ in c.watch(LEASES, "1", seconds=5):
                pass


async def test_a_silent_watch_is_ended_by_us(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gm.cluster.kubernetes.client.WATCH_GRACE", 0.5)
    control = api.control
    async with client(api.kubeconfig, timeout_s=1.0) as c:
        control.hang(times=1, matches=by_us)
        with pytest.raises(UnavailableError, match="did not answer in time"):
            async for _ in c.watch(LEASES, "0", seconds=1):
                pass


@pytest.mark.parametrize("how", ["hang", "drop", 500, 502, 504])
async def test_what_does_not_last_is_one_error(api: Api, how: object) -> None:
    control = api.control
    async with client(api.kubeconfig, timeout_s=patience(0.5) if how == "hang" else 10.0) as c:
        if isinstance(how, int):
            control.fail(how, times=1, matches=by_us)
        else:  # a connection that is dropped is tried once more underneath
            getattr(control, str(how))(times=2, matches=by_us)
        with pytest.raises(UnavailableError) as caught:
            await c.get(LEASES, api.namespace, "x")
        assert "\n" not in str(caught.value)
        assert c.trouble == str(caught.value)
        control.calm()
        with pytest.raises(NotFoundError):
            await c.get(LEASES, api.namespace, "x")
        assert c.trouble == ""


async def test_a_busy_server_is_asked_again_when_it_says_so(api: Api) -> None:
    fault = api.control.fail(429, times=2, matches=by_us, retry_after=1)
    async with client(api.kubeconfig) as c:
        await c.create(LEASES, api.namespace, lease())
        assert fault.struck == 2
        api.control.fail(429, times=9, matches=by_us, retry_after=20)
        with pytest.raises(UnavailableError) as caught:
            await c.create(LEASES, api.namespace, lease("m"))
        assert caught.value.retry_after_s == 20.0


async def test_a_server_that_is_away_cannot_be_reached(api: Api) -> None:
    await api.control.stop()
    async with client(api.kubeconfig, timeout_s=2.0) as c:
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await c.get(DEPLOYMENTS, "default", "x")
        with pytest.raises(UnavailableError, match="cannot be reached"):
            async for _ in c.watch(SERVICES, "1", seconds=1):
                pass
