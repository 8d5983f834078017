"""Watches: from a version on, through selectors, with bookmarks, to their end."""

from __future__ import annotations

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import Body, RefusedError
from tests.kubernetes.things import THING, config_map, made


async def version(api: Api, kind: str = "ConfigMap") -> str:
    """Return the version of a list, as an informer takes it."""
    return str((await api.client.list(kind, api.namespace))["metadata"]["resourceVersion"])


def increase(events: list[tuple[str, Body]]) -> bool:
    versions = [int(body["metadata"]["resourceVersion"]) for _, body in events]
    return versions == sorted(set(versions))


async def test_changes_after_a_version_come_in_order_and_no_others(api: Api) -> None:
    await made(api)
    since = await version(api, THING)
    await api.client.patch(THING, api.namespace, "one", {"spec": {"size": 2}})
    await api.client.patch(THING, api.namespace, "one", {"spec": {"size": 2}})
    async with api.client.watch(THING, api.namespace, resourceVersion=since) as changes:
        await api.client.patch(THING, api.namespace, "one", {"status": {"phase": "x"}}, "status")
        await api.client.delete(THING, api.namespace, "one")
        events = await changes.events(3)
        assert await changes.quiet()
    assert [change for change, _ in events] == ["MODIFIED", "MODIFIED", "DELETED"]
    assert increase(events)
    assert events[2][1]["status"] == {"phase": "x"}


async def test_events_of_built_in_kinds_say_their_kind_but_items_of_lists_do_not(api: Api) -> None:
    since = await version(api)
    await api.client.create("ConfigMap", api.namespace, config_map("one"))
    found = await api.client.list("ConfigMap", api.namespace)
    assert (found["kind"], found["apiVersion"]) == ("ConfigMapList", "v1")
    assert "kind" not in found["items"][0]
    async with api.client.watch("ConfigMap", api.namespace, resourceVersion=since) as changes:
        ((_, body),) = await changes.events()
    assert (body["kind"], body["apiVersion"]) == ("ConfigMap", "v1")
    await made(api)
    assert (await api.client.list(THING, api.namespace))["items"][0]["kind"] == "Thing"


async def test_bookmarks_tell_how_far_a_watch_is(api: Api) -> None:
    api.control.hasten_bookmarks(0.2)
    since = await version(api)
    await api.client.create("ConfigMap", "default", config_map("elsewhere"))
    query = {"resourceVersion": since, "allowWatchBookmarks": True}
    async with api.client.watch("ConfigMap", api.namespace, **query) as changes:
        ((change, body),) = await changes.events()
    assert (change, body["kind"]) == ("BOOKMARK", "ConfigMap")
    assert int(body["metadata"]["resourceVersion"]) > int(since)
    async with api.client.watch("ConfigMap", api.namespace, resourceVersion=since) as changes:
        assert await changes.quiet(0.6)


async def test_a_version_from_before_there_was_such_a_kind_is_expired(api: Api) -> None:
    await made(api)
    async with api.client.watch(THING, api.namespace, resourceVersion="1") as changes:
        ((change, body),) = await changes.events()
    assert (change, body["kind"], body["code"]) == ("ERROR", "Status", 410)


async def test_a_version_that_is_none_is_refused(api: Api) -> None:
    with pytest.raises(RefusedError, match="500: "):
        async with api.client.watch("ConfigMap", api.namespace, resourceVersion="soon"):
            pass
