"""GM as an operator: it writes what has to be written and nothing else, whatever the API server and its own life do."""

from __future__ import annotations

import asyncio
import time

import pytest

from halimede.messages import TaskInfo
from tests.integration.gm_world import MODELS, SERVICES, FakeNode, model
from tests.kubernetes.apiserver import Api
from tests.kubernetes.double import Control
from tests.kubernetes.double.control import Request
from tests.kubernetes.world import World, running_service, world
from tests.simulated import eventually

pytestmark = pytest.mark.slow


def written(control: Control, w: World, since: float) -> list[Request]:
    """What GM has written but for its Lease."""
    user = w.known_user.name
    return [r for r in control.writes(since=since) if r.user == user and r.resource != "leases"]


async def counted(w: World, node: FakeNode, number: int) -> None:
    """Have a node report, and wait until it is in the status."""
    node.counts[w.key()] = TaskInfo(inference_number=number)
    node.report(w.key())
    await w.shows(lambda status: {"key": "inferenceNumber", "value": str(number)} in status.get("metrics", ()))


async def test_nothing_is_written_while_nothing_changes_and_nothing_after_a_restart(api: Api) -> None:
    control = api.control
    async with world(api) as w, w.node(w.edge) as edge, w.node(w.cloud):
        async with w.gm():
            await w.apply_all()
            await w.reaches("Running")
            await w.reaches("Ready", name="small", plural=MODELS)
            await w.reaches("Ready", name="big", plural=MODELS)
            await counted(w, edge, 7)
            await eventually(lambda: not written(control, w, time.monotonic() - 1.5))
            quiet = time.monotonic()
            await asyncio.sleep(5)
            assert written(control, w, quiet) == []
        restarted = time.monotonic()
        async with w.gm("gm-1"):
            await asyncio.sleep(6)
            assert written(control, w, restarted) == []
            await counted(w, edge, 8)


async def test_however_many_reports_come_a_status_is_written_once_a_second(api: Api) -> None:
    control = api.control
    async with running_service(api) as (w, edge, _):
        began = time.monotonic()
        for number in range(200):
            edge.counts[w.key()] = TaskInfo(inference_number=number)
            edge.report(w.key())
            await asyncio.sleep(0.02)
        await counted(w, edge, 1000)
        writes = [r for r in written(control, w, began) if r.subresource == "status" and r.resource == SERVICES]
        assert 2 <= len(writes) <= time.monotonic() - began + 2


async def test_events_tell_of_an_objects_way_and_are_found_at_the_object(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply(model("big"), w.service())
        await w.reaches("Pending", "ModelNotFound")
        await w.apply(model("small"))
        await w.reaches("Running")

        async def told() -> bool:
            events = (await api.client.list("Event", w.namespace))["items"]
            ours = [e for e in events if e["involvedObject"].get("name") == "helmet"]
            kinds = {e["involvedObject"]["kind"] for e in ours}
            return {"Pending", "Running"} <= {e["reason"] for e in ours} and kinds == {"JointInferenceService"}

        await eventually(told, 20)


async def test_an_api_server_that_fails_to_write_is_said_to_and_the_node_gets_its_part(api: Api) -> None:
    control = api.control
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud):
        control.fail(500, times=10_000, matches=lambda r: r.resource == "deployments" and r.verb == "create")
        await w.apply_all()
        await w.reaches("Pending", "NotWritten")
        assert w.key() in edge.holds
        control.calm()
        await w.reaches("Running")


async def test_secrets_that_may_not_be_read_keep_no_service_from_being_deleted(api: Api) -> None:
    control = api.control
    async with world(api, credentials=True) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        control.fail(403, times=10_000, matches=lambda r: r.resource == "secrets")
        await w.apply_all()
        await w.reaches("Pending", "SecretsNotRead")
        await w.delete()
        await w.until_gone()


async def test_names_leave_nothing_behind_in_gm(api: Api) -> None:
    async with world(api, play=False) as w, w.gm() as gm, w.node(w.edge), w.node(w.cloud):
        for number in range(5):
            await w.apply(model(f"m{number}"))
            await w.reaches("Unused", name=f"m{number}", plural=MODELS)
            await w.delete(f"m{number}", "models")
        assert gm.manager is not None
        engine = gm.manager._plane
        await eventually(lambda: not engine.display._locks and not list(engine.index._entries), 20)


async def test_what_gm_cannot_read_any_more_is_taken_from_no_node(api: Api) -> None:
    api.control  # noqa: B018 - a real server's rules refuse it; it gets there when definitions and GM differ
    async with running_service(api) as (w, edge, _):
        await w.apply(model("small", preprocess=[{"op": "scale", "std": [0]}]))
        await w.reaches("Failed", "Invalid", name="small", plural=MODELS)
        keys = {w.key("small", MODELS), w.key()}
        for key in keys:
            edge.report(key)
        await asyncio.sleep(2)
        assert keys <= edge.holds.keys()
        assert edge.sent("delete") == []
        await w.apply(model("small"))
        await w.reaches("Ready", name="small", plural=MODELS)
        await w.reaches("Running")
