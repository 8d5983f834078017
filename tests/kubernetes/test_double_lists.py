"""Lists: selectors, chunks, and the forms in which they come."""

from __future__ import annotations

import pytest

from tests.kubernetes.apiserver import Api
from tests.kubernetes.client import META, refusal
from tests.kubernetes.things import THING, config_map, made, pod


async def names(api: Api, kind: str = "ConfigMap", **query: str) -> list[str]:
    """Return the names in a list, in its order."""
    found = (await api.client.list(kind, api.namespace, **query))["items"]
    return [each["metadata"]["name"] for each in found if each["metadata"]["name"] != "kube-root-ca.crt"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("color=red", ["a"]),
        ("color==red,size", ["a"]),
        ("color!=red", ["b", "c", "d"]),
        ("color in (red, green)", ["a", "b"]),
        ("color notin (red,green)", ["c", "d"]),
        ("!color", ["d"]),
        ("color,!size", ["b", "c"]),
        ("color=", []),
        ("example.io/x=y", ["d"]),
    ],
)
async def test_labels_select(api: Api, selector: str, expected: list[str]) -> None:
    labels = ({"color": "red", "size": "1"}, {"color": "green"}, {"color": "blue"}, {"example.io/x": "y"})
    for name, own in zip("abcd", labels, strict=True):
        await api.client.create("ConfigMap", api.namespace, config_map(name, labels=own))
    assert await names(api, labelSelector=selector) == expected


@pytest.mark.parametrize("selector", ["a b", "color in red", "a=b=c", "-a=b", "a=b c"])
async def test_selectors_that_are_none_are_refused(api: Api, selector: str) -> None:
    assert (await refusal(names(api, labelSelector=selector))).code == 400


async def test_fields_select_pods(api: Api) -> None:
    for body in (pod("a", nodeName="n1"), pod("b", nodeName="n2"), pod("c")):
        await api.client.create("Pod", api.namespace, body)
    assert await names(api, "Pod", fieldSelector="spec.nodeName=n1") == ["a"]
    assert await names(api, "Pod", fieldSelector="spec.nodeName=") == ["c"]
    assert await names(api, "Pod", fieldSelector="metadata.name!=a,status.phase=Pending") == ["b", "c"]
    assert (await refusal(names(api, "Pod", fieldSelector="spec.hostname=x"))).code == 400
    for name in ("a", "b"):
        await api.client.delete("Pod", api.namespace, name, {"gracePeriodSeconds": 0})


async def test_a_long_list_comes_in_chunks_of_one_moment(api: Api) -> None:
    for name in "abcde":
        await made(api, name)
    first = await api.client.list(THING, api.namespace, limit=2)
    assert [each["metadata"]["name"] for each in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    await api.client.delete(THING, api.namespace, "c")
    await api.client.patch(THING, api.namespace, "d", {"spec": {"size": 9}})
    await made(api, "f")
    token = first["metadata"]["continue"]
    rest = await api.client.list(THING, api.namespace, limit=10, **{"continue": token})
    sizes = {each["metadata"]["name"]: each["spec"]["size"] for each in rest["items"]}
    assert list(sizes.items()) == [("c", 1), ("d", 1), ("e", 1)]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert not rest["metadata"].get("continue")


async def test_a_chunk_that_comes_too_late_is_expired(api: Api) -> None:
    for name in "abc":
        await made(api, name)
    first = await api.client.list(THING, api.namespace, limit=1)
    await made(api, "d")
    api.control.expire()
    token = {"continue": first["metadata"]["continue"]}
    refused = await refusal(api.client.list(THING, api.namespace, limit=1, **token))
    assert refused.answer == (410, "Expired")
    assert await names(api, THING, **{"continue": refused.status["metadata"]["continue"]}) == ["b", "c", "d"]


async def test_a_version_of_the_future_is_not_waited_for_for_ever(api: Api) -> None:
    refused = await refusal(api.client.list("ConfigMap", api.namespace, resourceVersion="999999999"))
    assert refused.code == 504
    assert refused.status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_metadata_can_be_had_alone(api: Api) -> None:
    await api.client.create("Secret", api.namespace, {"metadata": {"name": "one"}, "stringData": {"password": "x"}})
    one = await api.client.get("Secret", api.namespace, "one", accept=META)
    assert one == {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": one["metadata"]}
    assert (await refusal(api.client.list("Secret", api.namespace, accept=META))).code == 406
