"""The API's answers: what is refused, with which reason and field, and what is given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halimede import codec
from halimede.api import parse
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.codec import MAX_JSON
from halimede.messages import ApiReply, ApiRequest
from halimede.topics import API_REPLY, API_REQUEST
from services.gm.api import ApiServer
from services.gm.cluster.local import LocalCluster
from services.gm.control_plane import ControlPlane
from tests.integration.gm_world import MODELS, SERVICES, model, service

Ask = Callable[..., Awaitable[ApiReply]]


def api_of(cluster: LocalCluster, editor: LocalCluster | None) -> ApiServer:
    bus = MemoryBus("gm", MemoryBroker())
    return ApiServer(bus, cluster, ControlPlane(bus, cluster), editor)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(tmp_path / "store.db") as local:
        yield local


@pytest.fixture
def ask(cluster: LocalCluster) -> Ask:
    """Ask an API on a store of its own."""
    api = api_of(cluster, cluster)

    async def ask(op: Any, **fields: Any) -> ApiReply:
        request = codec.encode(API_REQUEST, ApiRequest(op=op, **fields))
        reply = await api.answer(codec.decode(API_REQUEST, request))
        return codec.decode(API_REPLY, codec.encode(API_REPLY, reply))

    return ask


def error(reply: ApiReply) -> tuple[str, str]:
    return reply.error.reason, reply.error.field


async def test_a_mistake_names_the_field(ask: Ask) -> None:
    wrong = service()
    wrong["spec"]["edgeWorker"]["deadlineMs"] = "soon"
    assert error(await ask("apply", object=wrong)) == ("Invalid", "spec.edgeWorker.deadlineMs")
    assert error(await ask("apply", object=model("Not A Name"))) == ("Invalid", "metadata.name")
    assert error(await ask("apply", object={"kind": "Nonsense"})) == ("Invalid", "kind")
    assert error(await ask("apply")) == ("Invalid", "resource")
    assert error(await ask("apply", object={**model("a"), "metadata": "b"})) == ("Invalid", "metadata")
    assert error(await ask("get", plural="nonsense", name="a")) == ("Invalid", "plural")
    assert error(await ask("get", plural=MODELS, name="../etc")) == ("Invalid", "name")
    assert error(await ask("get", plural=MODELS, namespace="a/b", name="a")) == ("Invalid", "namespace")
    assert error(await ask("list", plural=MODELS, namespace="#")) == ("Invalid", "namespace")
    assert error(await ask("delete", plural=MODELS, name="+")) == ("Invalid", "name")
    assert (await ask("list", plural=MODELS)).items == []


def margin(threshold: str = "threshold_margin") -> dict[str, Any]:
    body = service()
    parameters = [{"key": threshold, "value": "0.2"}]
    body["spec"]["edgeWorker"]["hardExampleMining"] = {"name": "Margin", "parameters": parameters}
    return body


async def test_an_edit_that_its_workers_would_not_start_with_changes_nothing(ask: Ask) -> None:
    good = (await ask("apply", object=margin())).object
    refused = await ask("apply", object=margin("threshold_margn"))
    assert error(refused) == ("Invalid", "spec.edgeWorker.hardExampleMining.parameters.threshold_margn")
    assert "did you mean threshold_margin?" in refused.error.message
    assert (await ask("get", plural=SERVICES, name="helmet")).object == good


async def test_a_store_with_such_an_edit_of_an_earlier_version_is_opened_as_it_is(tmp_path: Path) -> None:
    async with LocalCluster(tmp_path / "store.db") as cluster:
        await cluster.apply(parse(margin("threshold_margn")))
    async with LocalCluster(tmp_path / "store.db") as cluster:
        assert [stored.key.name for stored in cluster.resources()] == ["helmet"]


async def test_what_is_not_there_is_not_found(ask: Ask) -> None:
    assert error(await ask("get", plural=MODELS, name="a")) == ("NotFound", "")
    assert error(await ask("delete", plural=MODELS, name="a")) == ("NotFound", "")


async def test_an_object_goes_round_with_all_that_the_server_set(ask: Ask) -> None:
    created = await ask("apply", object=model("small"))
    assert created.outcome == "created"
    got = (await ask("get", plural=MODELS, name="small")).object
    assert got == created.object
    own = {"name", "namespace", "uid", "generation", "resourceVersion", "creationTimestamp"}
    assert set(got["metadata"]) == own
    # as an editor gives it back, status and all
    assert (await ask("apply", object={**got, "status": {"phase": "Mine"}})).outcome == "unchanged"
    got["spec"]["format"] = "pb"
    edited = await ask("apply", object=got)
    assert (edited.outcome, edited.object["metadata"]["generation"]) == ("configured", 2)
    got["spec"]["format"] = "other"
    assert error(await ask("apply", object=got)) == ("Conflict", "")


async def test_a_dry_run_answers_as_an_edit_would_and_changes_nothing(ask: Ask) -> None:
    async def dry(body: dict[str, Any]) -> ApiReply:
        before = (await ask("list", plural=MODELS)).items, (await ask("events")).events
        reply = await ask("apply-dry-run", object=body)
        assert ((await ask("list", plural=MODELS)).items, (await ask("events")).events) == before
        return reply

    assert await dry(model("small")) == ApiReply(outcome="created")
    await ask("apply", object=model("small"))
    assert (await dry(model("small"))).outcome == "unchanged"
    assert (await dry(model("small", labels=["a"]))).outcome == "configured"
    assert error(await dry(model("small", labels="a"))) == ("Invalid", "spec.labels")
    stale = model("small", format="other")
    stale["metadata"]["resourceVersion"] = "0"
    assert error(await dry(stale)) == ("Conflict", "")
    gone = model("big")
    gone["metadata"]["resourceVersion"] = "1"
    assert error(await dry(gone)) == ("Conflict", "")
    await ask("delete", plural=MODELS, name="small")
    assert error(await dry(model("small"))) == ("Conflict", "")


async def test_deleting_may_be_repeated(ask: Ask) -> None:
    await ask("apply", object=model("small"))
    first = await ask("delete", plural=MODELS, name="small")
    assert (await ask("delete", plural=MODELS, name="small")).object == first.object
    assert first.object["metadata"]["deletionTimestamp"]


async def test_a_list_is_in_order_and_cut_at_its_limit_or_at_the_size_of_a_message(ask: Ask) -> None:
    for name in ("c", "a", "b"):
        await ask("apply", object=model(name))
    reply = await ask("list", plural=MODELS)
    assert [item["metadata"]["name"] for item in reply.items] == ["a", "b", "c"]
    assert not reply.truncated
    assert (await ask("list", plural=MODELS, namespace="other")).items == []
    reply = await ask("list", plural=MODELS, limit=2)
    assert (len(reply.items), reply.truncated) == (2, True)
    for n in range(6):
        big = model(f"big{n}")
        big["metadata"]["annotations"] = {"text": "x" * 1_000_000}
        await ask("apply", object=big)
    reply = await ask("list", plural=MODELS)
    assert reply.truncated
    assert 3_000_000 < len(msgspec.json.encode(reply)) < codec.MAX_JSON


async def test_edits_are_events(ask: Ask) -> None:
    await ask("apply", object=model("small"))
    await ask("apply", object=model("small"))
    await ask("apply", object=model("small", labels=["a"]))
    events = (await ask("events")).events
    assert [(e.reason, e.about, e.message) for e in events] == [
        ("Created", "default/models/small", "generation 1"),
        ("Configured", "default/models/small", "generation 2"),
    ]
    assert (await ask("events", after=events[0].sequence)).events == events[1:]
    assert (await ask("events", about="node/x")).events == []


async def test_what_would_not_fit_into_the_message_to_a_node_is_refused(ask: Ask) -> None:
    def noted(size: int) -> dict[str, Any]:
        return {**model("small"), "metadata": {"name": "small", "annotations": {"note": "x" * size}}}

    reply = await ask("apply", object=noted(MAX_JSON - 32 * 1024))
    assert error(reply) == ("Invalid", "resource")
    assert "put data into files" in reply.error.message
    assert error(await ask("get", plural=MODELS, name="small")) == ("NotFound", "")
    assert (await ask("apply", object=noted(MAX_JSON - 128 * 1024))).outcome == "created"


async def test_the_version_tells_the_epoch(ask: Ask) -> None:
    assert (await ask("version")).value["epoch"] > 1


async def test_without_an_editor_nothing_can_be_edited(cluster: LocalCluster) -> None:
    for op in ("apply", "delete"):
        request = ApiRequest(op=op, object=model("a"), plural=SERVICES, name="a")  # type: ignore[arg-type]
        reply = await api_of(cluster, None).answer(request)
        assert error(reply)[0] == "NotAllowed"
        assert "kubectl" in reply.error.message


@pytest.mark.parametrize("op", ["apply", "delete"])
async def test_a_store_that_cannot_be_written_is_an_internal_error(cluster: LocalCluster, op: Any) -> None:
    api = api_of(cluster, cluster)
    assert (await api.answer(ApiRequest(op="apply", object=model("a")))).error is None
    cluster._database.connection.execute("PRAGMA query_only = ON")
    reply = await api.answer(ApiRequest(op=op, object=model("b"), plural=MODELS, name="a"))
    assert error(reply)[0] == "Internal"
