"""Watches: from a version on, through selectors, with bookmarks, to their end."""

from __future__ import annotations

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import META, TABLE, RefusedError
from tests.kubernetes.things import THING, config_map, made


async def version(api: Api, kind: str = "ConfigMap") -> str:
    """Return the version of a list, as an informer takes it."""
    return str((await api.client.list(kind, api.namespace))["metadata"]["resourceVersion"])


async def test_changes_after_a_version_come_in_order_and_no_others(api: Api) -> None:
    await made(api)
    since = await version(api, THING)
    await api.client.patch(THING, api.namespace, "one", {"spec": {"size": 2}})
    await api.client.patch(THING, api.namespace, "one", {"spec": {"size": 2}})
    async with api.client.watch(THING, api.namespace, resourceVersion=since) as changes:
        await api.client.patch(THING, api.namespace, "one", {"status": {"phase": "x"}}, "status")
        await api.client.delete(THING, api.namespace, "one")
        seen = [await changes.next() for _ in range(3)]
        assert await changes.quiet()
    assert [event[0] for event in seen if event] == ["MODIFIED", "MODIFIED", "DELETED"]
    versions = [int(event[1]["metadata"]["resourceVersion"]) for event in seen if event]
    assert versions == sorted(set(versions))
    assert seen[2] is not None
    assert seen[2][1]["status"] == {"phase": "x"}


async def test_without_a_version_all_that_is_there_comes_first(api: Api) -> None:
    await made(api)
    await made(api, "two")
    async with api.client.watch(THING, api.namespace) as changes:
        seen = [await changes.next() for _ in range(2)]
        assert [(event[0], event[1]["metadata"]["name"]) for event in seen if event] == [
            ("ADDED", "one"),
            ("ADDED", "two"),
        ]


async def test_events_of_built_in_kinds_say_their_kind_but_items_of_lists_do_not(api: Api) -> None:
    since = await version(api)
    await api.client.create("ConfigMap", api.namespace, config_map("one"))
    found = await api.client.list("ConfigMap", api.namespace)
    assert (found["kind"], found["apiVersion"]) == ("ConfigMapList", "v1")
    assert "kind" not in found["items"][0]
    async with api.client.watch("ConfigMap", api.namespace, resourceVersion=since) as changes:
        event = await changes.next()
    assert event is not None
    assert (event[1]["kind"], event[1]["apiVersion"]) == ("ConfigMap", "v1")
    await made(api)
    assert (await api.client.list(THING, api.namespace))["items"][0]["kind"] == "Thing"


async def test_an_object_comes_and_goes_with_its_labels(api: Api) -> None:
    since = await version(api)
    query = {"labelSelector": "color in (red, green)", "resourceVersion": since}
    async with api.client.watch("ConfigMap", api.namespace, **query) as changes:
        await api.client.create("ConfigMap", api.namespace, config_map("one"))
        for color in ("red", "green", "blue"):
            await api.client.patch("ConfigMap", api.namespace, "one", {"metadata": {"labels": {"color": color}}})
        await api.client.patch("ConfigMap", api.namespace, "one", {"data": {"a": "b"}})
        await api.client.patch("ConfigMap", api.namespace, "one", {"metadata": {"labels": {"color": "red"}}})
        await api.client.delete("ConfigMap", api.namespace, "one")
        seen = [await changes.next() for _ in range(5)]
    assert [event[0] for event in seen if event] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    versions = [int(event[1]["metadata"]["resourceVersion"]) for event in seen if event]
    assert versions == sorted(set(versions))
    assert seen[2] is not None
    assert seen[2][1]["metadata"]["labels"] == {"color": "green"}


async def test_one_object_is_watched_by_its_name(api: Api) -> None:
    since = await version(api)
    query = {"fieldSelector": "metadata.name=two", "resourceVersion": since}
    async with api.client.watch("ConfigMap", api.namespace, **query) as changes:
        await api.client.create("ConfigMap", api.namespace, config_map("one"))
        await api.client.create("ConfigMap", api.namespace, config_map("two"))
        event = await changes.next()
    assert event is not None
    assert event[1]["metadata"]["name"] == "two"


async def test_a_watch_ends_quietly_after_its_time(api: Api) -> None:
    async with api.client.watch(
        "ConfigMap", api.namespace, resourceVersion=await version(api), timeoutSeconds=1
    ) as changes:
        assert await changes.next() is None


async def test_bookmarks_tell_how_far_a_watch_is(api: Api) -> None:
    control = api.control
    assert api.double is not None
    api.double.streams.bookmarks = 0.2
    since = await version(api)
    await api.client.create("ConfigMap", "default", config_map("elsewhere"))
    query = {"resourceVersion": since, "allowWatchBookmarks": True}
    async with api.client.watch("ConfigMap", api.namespace, **query) as changes:
        event = await changes.next()
    assert event is not None
    assert event[0] == "BOOKMARK"
    assert int(event[1]["metadata"]["resourceVersion"]) > int(since)
    assert event[1]["kind"] == "ConfigMap"
    async with api.client.watch("ConfigMap", api.namespace, resourceVersion=since) as changes:
        assert await changes.quiet(0.6)
    assert control.counts["watch"] == 2


async def test_a_version_that_is_no_longer_known_is_expired(api: Api) -> None:
    since = await version(api)
    for name in ("one", "two"):
        await api.client.create("ConfigMap", api.namespace, config_map(name))
    api.control.expire()
    async with api.client.watch("ConfigMap", api.namespace, resourceVersion=since) as changes:
        event = await changes.next()
        assert event is not None
        assert (event[0], event[1]["code"], event[1]["reason"]) == ("ERROR", 410, "Expired")
        assert await changes.next() is None


async def test_a_version_from_before_there_was_such_a_kind_is_expired(api: Api) -> None:
    await made(api)
    async with api.client.watch(THING, api.namespace, resourceVersion="1") as changes:
        event = await changes.next()
    assert event is not None
    assert (event[0], event[1]["kind"], event[1]["code"]) == ("ERROR", "Status", 410)


async def test_a_version_that_is_none_is_refused(api: Api) -> None:
    with pytest.raises(RefusedError) as refused:
        async with api.client.watch("ConfigMap", api.namespace, resourceVersion="soon"):
            pass
    assert refused.value.code == 500


async def test_metadata_alone_can_be_watched(api: Api) -> None:
    since = await version(api)
    async with api.client.watch("ConfigMap", api.namespace, resourceVersion=since, accept=META) as changes:
        await api.client.create("ConfigMap", api.namespace, config_map("one", secret="x"))
        event = await changes.next()
    assert event is not None
    assert event[1].keys() == {"kind", "apiVersion", "metadata"}
    assert event[1]["kind"] == "PartialObjectMetadata"


async def test_tables_can_be_watched(api: Api) -> None:
    await made(api)
    since = await version(api, THING)
    async with api.client.watch(THING, api.namespace, resourceVersion=since, accept=TABLE) as changes:
        await api.client.patch(THING, api.namespace, "one", {"status": {"phase": "Running"}}, "status")
        event = await changes.next()
    assert event is not None
    assert event[1]["rows"][0]["cells"][:2] == ["one", "Running"]
