"""What only the double can do: fail on demand, go away, forget, and tell what it was asked."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import aiohttp
import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import RefusedError, path
from tests.kubernetes.things import config_map, pod


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (409, "Conflict"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ],
)
async def test_the_next_requests_fail_and_then_no_more(api: Api, code: int, reason: str) -> None:
    fault = api.control.fail(code, times=2, matches=lambda request: request.verb == "create")
    for _ in range(2):
        with pytest.raises(RefusedError) as refused:
            await api.client.create("ConfigMap", api.namespace, config_map("one"))
        assert (refused.value.code, refused.value.reason) == (code, reason)
    await api.client.create("ConfigMap", api.namespace, config_map("one"))
    assert fault.struck == 2


async def test_too_many_requests_say_when_to_come_back(api: Api) -> None:
    api.control.fail(429, retry_after=3)
    headers = {"Authorization": f"Bearer {api.token}"}
    where = api.url + path("ConfigMap", api.namespace)
    async with aiohttp.ClientSession(headers=headers) as session, session.get(where) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (429, "3")


async def test_a_dropped_request_is_not_done_and_a_lost_answer_is(api: Api) -> None:
    for stem, fault in (("drop", api.control.drop), ("lose", api.control.lose)):
        fault(matches=lambda request: request.verb == "create")
        with pytest.raises(aiohttp.ClientError):
            await api.client.create("ConfigMap", api.namespace, config_map(stem))
    assert await api.client.find("ConfigMap", api.namespace, "drop") is None
    assert await api.client.find("ConfigMap", api.namespace, "lose") is not None


async def test_requests_hang_or_wait(api: Api) -> None:
    api.control.hang(matches=lambda request: request.name == "one")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await api.client.get("ConfigMap", api.namespace, "one")
    api.control.delay(0.3)
    begin = time.monotonic()
    await api.client.list("ConfigMap", api.namespace)
    assert time.monotonic() - begin >= 0.3


async def test_the_server_goes_away_and_comes_back_with_all_it_had(api: Api) -> None:
    await api.client.create("ConfigMap", api.namespace, config_map("one"))
    found = await api.client.list("ConfigMap", api.namespace)
    since = found["metadata"]["resourceVersion"]
    async with api.client.watch("ConfigMap", api.namespace, resourceVersion=since) as changes:
        await api.control.stop()
        with pytest.raises(aiohttp.ClientError):
            await api.client.list("ConfigMap", api.namespace)
        with suppress(aiohttp.ClientError):
            assert await changes.next() is None
    await api.control.start()
    assert await api.client.find("ConfigMap", api.namespace, "one") is not None
    async with api.client.watch("ConfigMap", api.namespace, resourceVersion=since) as changes:
        await api.client.create("ConfigMap", api.namespace, config_map("two"))
        event = await changes.next()
    assert event is not None
    assert event[1]["metadata"]["name"] == "two"


async def test_open_watches_can_be_ended(api: Api) -> None:
    since = (await api.client.list("ConfigMap"))["metadata"]["resourceVersion"]
    for code in (None, 410):
        async with api.client.watch("ConfigMap", resourceVersion=since) as changes:
            while not api.control.break_watches(code):
                await asyncio.sleep(0.01)
            event = await changes.next()
            assert event is None if code is None else event is not None and event[1]["code"] == 410


async def test_the_log_tells_what_was_asked_and_answered(api: Api) -> None:
    begin = time.monotonic()
    await api.client.create("ConfigMap", api.namespace, config_map("one"))
    await api.client.patch("ConfigMap", api.namespace, "one", {"data": {"a": "b"}})
    assert await api.client.find("ConfigMap", api.namespace, "two") is None
    asked = [(each.verb, each.name, each.code, each.user) for each in api.control.log if each.at >= begin]
    admin = "system:admin"
    assert asked == [("create", "", 201, admin), ("patch", "one", 200, admin), ("get", "two", 404, admin)]
    assert [each.verb for each in api.control.writes("configmaps", since=begin)] == ["create", "patch"]
    assert api.control.writes("pods") == []


async def test_many_objects_and_watches_are_no_burden(api: Api) -> None:
    control = api.control
    for number in range(1000):
        await api.client.create("Pod", api.namespace, pod(f"pod-{number}"))
    since = (await api.client.list("Pod"))["metadata"]["resourceVersion"]
    watches = [api.client.watch("Pod", resourceVersion=since) for _ in range(5)]
    changes = [await watch.__aenter__() for watch in watches]
    for number in range(200):
        body = {"status": {"phase": "Running"}}
        await api.client.patch("Pod", api.namespace, f"pod-{number}", body, "status")
    for each in changes:
        seen = [await each.next() for _ in range(200)]
        assert all(event and event[0] == "MODIFIED" for event in seen)
    assert control.counts["watch"] == 5
    for watch in watches:
        await watch.__aexit__(None, None, None)
