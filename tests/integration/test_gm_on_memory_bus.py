"""The global manager from outside: an operator, nodes with a scripted LC, simulated time, a real store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from halimede import codec, topics
from halimede.bus import Packet
from halimede.bus.memory import MemoryBus
from halimede.bus.ordering import MAX_INTEGER
from halimede.bus.reconnect import LAST_BACKOFF
from halimede.errors import HalimedeError
from halimede.messages import ApiRequest, GmPresence, Histogram, Presence, TaskInfo, WorkerReport
from halimede.names import Key
from services.gm.app import ReconnectCheck, refuse_a_second
from services.gm.cluster.local import LocalCluster
from tests.integration.gm_world import (
    DATASETS,
    MODELS,
    SERVICES,
    FakeNode,
    World,
    dataset,
    metric,
    model,
    resource,
    service,
    world,
)
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

HELMET = Key(SERVICES, "default", "helmet")


async def test_what_a_service_names_goes_down_before_it_and_reports_make_it_running(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0") as cloud:
        await w.apply(dataset("frames"), model("small"), model("big"), service(dataset={"name": "frames"}))
        status = await w.reaches("Running")
        inserts = {node.name: [entry[1:] for entry in node.sent("insert")] for node in (edge, cloud)}
        assert inserts == {
            "edge0": [("models/small", 1), ("datasets/frames", 1), ("jointinferenceservices/helmet", 1)],
            "cloud0": [("models/big", 1), ("jointinferenceservices/helmet", 1)],
        }
        assert (status.active, status.failed, status.observed_generation) == (2, 0, 1)
        assert [n.node for n in status.nodes] == ["cloud0", "edge0"]
        assert (await w.reaches("Ready", name="small", plural=MODELS)).active == 1
        await w.reaches("Ready", name="frames", plural=DATASETS)


async def test_a_service_that_moves_leaves_its_old_node_with_all_it_needed_there(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as old, w.node("edge1") as new, w.node("cloud0"):
        await w.deploy()
        await w.apply(service(edge="edge1"))
        await eventually(lambda: not old.holds and HELMET in new.holds)
        await w.reaches("Running")
        assert [entry[1] for entry in old.sent("delete")] == ["jointinferenceservices/helmet", "models/small"]
        # and back again: what it was told to forget it takes anew, the unchanged model too
        await w.apply(service(edge="edge0"))
        await eventually(lambda: not new.holds and {k.name for k in old.holds} == {"helmet", "small"})
        await w.reaches("Running")


async def test_a_node_that_forgot_while_nobody_listened_is_not_shown_as_running(w: World) -> None:
    w.edge.holds.clear()
    w.edge.reports = False  # its clearing went into the void
    w.edge.sync()
    status = await w.reaches("Pending")
    assert status.active == 1
    w.edge.reports = True
    for key in w.edge.holds:  # as a node does whose report was not taken
        w.edge.report(key)
    w.edge.sync()
    await w.reaches("Running")


async def test_a_misspelt_model_in_an_edit_costs_no_running_worker(w: World) -> None:
    await w.apply(service(edge_worker={"model": {"name": "smal"}}))
    await w.reaches("Degraded", "ModelNotFound")
    assert w.edge.holds[HELMET][1] == 1
    w.edge.sync()
    await eventually(lambda: bool(w.edge.sent("synced")))
    await asyncio.sleep(5)
    assert w.edge.holds[HELMET][1] == 1


async def test_missing_nodes_are_named_and_heal_when_they_appear(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("cloud0"):
        await w.apply(model("small"), model("big"), service(edge="edge0"))
        assert "edge0" in (await w.reaches("Pending", "NodeNotFound")).conditions[-1].message
        await w.apply(service(edge={"halimede.io/site": "north"}))
        status = await w.reaches("Pending", "NoNode", generation=2)
        assert "halimede.io/site=north" in status.conditions[-1].message
        await w.apply(service(edge={}))
        status = await w.reaches("Pending", "NoNode", generation=3)
        assert "set nodeName or nodeSelector" in status.conditions[-1].message
        await w.apply(service(edge={"halimede.io/site": "north"}))
        async with w.node("edge8", **{"halimede.io__site": "south"}) as other:
            await eventually(lambda: bool(other.sent("synced")))
            await w.reaches("Pending", "NoNode", generation=4)
            assert other.holds == {}
        async with w.node("edge9", **{"halimede.io__site": "north"}):
            await w.reaches("Running")


async def test_every_node_with_the_label_runs_a_worker_and_a_lost_label_takes_it_away(tmp_path: Path) -> None:
    role = {"node-role.kubernetes.io/edge": ""}
    labels = {"node-role.kubernetes.io__edge": ""}
    async with world(tmp_path) as w, w.gm(), w.node("cloud0"), w.node("a", **labels) as a:
        await w.apply(model("small"), model("big"), service(edge=role))
        assert (await w.reaches("Running")).active == 2
        async with w.node("b", **labels) as b:
            await eventually(lambda: HELMET in b.holds)
            await eventually(lambda: (s := w.status()) is not None and s.status.active == 3)
            a.labels = {}
            a.bus.cut()
            a.bus.heal()
            await eventually(lambda: a.holds == {})
            await eventually(lambda: w.status().status.active == 2)
            await w.reaches("Running")


async def test_what_is_not_acknowledged_is_sent_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        await eventually(lambda: bool(edge.sent("synced")))
        edge.deaf = 6
        await w.deploy()
        await w.reaches("Ready", name="small", plural=MODELS)
        assert edge.deaf == 0
        heard = len(edge.log)
        await asyncio.sleep(120)
        assert len(edge.log) == heard, "what is acknowledged is not sent again"


async def test_a_node_that_was_away_gets_everything_by_its_sync(w: World) -> None:
    w.edge.bus.cut()
    await w.reaches("Degraded", "NodeOffline")
    await w.apply(service(edge_worker={"deadlineMs": 100}), model("small", labels=["a"]))
    await asyncio.sleep(30)
    w.edge.log.clear()
    w.edge.bus.heal()
    await w.reaches("Running")
    inserts = [("insert", "models/small", 2), ("insert", "jointinferenceservices/helmet", 2)]
    assert w.edge.log == [*inserts, ("synced", "", 2)]


async def test_a_delete_waits_for_the_nodes_that_are_there_then_clears_the_status(w: World) -> None:
    w.edge.deaf = 3
    await w.ask("delete", plural=SERVICES, name="helmet")
    reply = await w.ask("get", plural=SERVICES, name="helmet")
    assert reply.object["metadata"]["deletionTimestamp"]
    refused = await w.ask("apply", object=service())
    assert refused.error.reason == "Conflict"
    await eventually(lambda: w.status() is None, 60)
    assert w.edge.holds == {}
    assert (await w.ask("delete", plural=SERVICES, name="helmet")).error.reason == "NotFound"
    await w.reaches("Unused", name="small", plural=MODELS)


async def test_counts_are_added_over_edge_workers_alone_and_survive_moves_and_a_restart_of_gm(tmp_path: Path) -> None:
    def counts(n: int) -> TaskInfo:
        return TaskInfo(
            inference_number=n,
            edge_inference_number=n - 10,
            cloud_inference_number=10,
            hard_example_number=10,
            upload_cloud_ratio=10 / n,
            edge_latency=Histogram(buckets={"0": n}),
        )

    labels = {"node-role.kubernetes.io__edge": ""}
    async with world(tmp_path) as w, w.node("cloud0") as cloud, w.node("a", **labels) as a, w.node("b", **labels) as b:
        async with w.gm():
            a.counts[HELMET], b.counts[HELMET] = counts(100), counts(300)
            cloud.counts[HELMET] = TaskInfo(inference_number=20, served=20)
            await w.deploy(service(edge={"node-role.kubernetes.io/edge": ""}))
            await eventually(lambda: metric(w.status().status, "inferenceNumber") == "400")
            status = w.status().status
            assert metric(status, "cloudInferenceNumber") == "20"
            assert metric(status, "uploadCloudRatio") == "0.05"
            assert float(metric(status, "edgeLatencyP99Ms")) == pytest.approx(1, rel=0.06)
            await w.apply(service(edge="a"))
            await eventually(lambda: HELMET not in b.holds)
            await asyncio.sleep(2)
        # everything the broker kept is lost, and the node that left has nothing to say any more
        w.broker.restart()
        async with w.gm():
            await w.reaches("Running")
            assert metric(w.status().status, "inferenceNumber") == "400"
            a.counts[HELMET] = counts(101)
            a.report(HELMET)
            await eventually(lambda: metric(w.status().status, "inferenceNumber") == "401")


async def test_a_restarted_gm_has_a_higher_epoch_and_takes_nothing_away(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge, w.node("cloud0") as cloud:
        async with w.gm() as cluster:
            before = cluster.epoch
            await w.deploy()
        await eventually(lambda: b'"online":true' not in w.broker.retained_payload("sedna/gm/presence"))
        edge.log.clear()
        cloud.log.clear()
        w.statuses.clear()
        async with w.gm():
            await eventually(lambda: bool(edge.sent("synced") and cloud.sent("synced")))
            await w.reaches("Running")
            await asyncio.sleep(60)
            assert edge.log == [("synced", "", 0)]
            assert cloud.log == [("synced", "", 0)]
            assert edge.gm_epoch == before + 1
            assert {d.status.phase for _, d in w.statuses if d.name == "helmet"} == {"Running"}, "no false alarm"


@pytest.mark.parametrize("is_new", [False, True], ids=["the same GM", "one with a new store"])
async def test_a_node_whose_birth_has_outlived_it_is_offline_after_fifteen_seconds(
    tmp_path: Path, is_new: bool
) -> None:
    address = topics.PRESENCE.at(node="cloud0").text
    async with world(tmp_path) as w:
        async with w.node("edge0"), w.node("cloud0"), w.gm():
            await w.deploy()
            birth = w.broker.retained_payload(address)
            assert birth
        w.broker.route(Packet(address, birth, retain=True))  # as a broker keeps it that ends with the node
        if is_new:
            w.store = tmp_path / "new" / "store.db"
        async with w.node("edge0"), w.gm():
            if is_new:
                await w.apply(model("small"), model("big"), service())
            status = await w.reaches("Pending" if is_new else "Degraded", "NodeOffline")
            assert "cloud0" in status.conditions[-1].message
            await asyncio.sleep(600)
            nodes = {node.name: node.online for node in (await w.ask("nodes")).nodes}
            assert nodes == {"edge0": True, "cloud0": False}
            offline = [event.about for event in (await w.ask("events")).events if event.reason == "NodeOffline"]
            assert offline == ["node/cloud0"], "no node that is well is shown offline"


@pytest.mark.parametrize("recalled", [False, True], ids=["while others appear", "while GM recalls births"])
async def test_a_node_whose_birth_has_outlived_it_is_offline_in_a_growing_cluster(
    tmp_path: Path, *, recalled: bool
) -> None:
    def birth(node: str) -> Packet:
        body = codec.encode(topics.PRESENCE, Presence(node=node, epoch=1, online=True))
        return Packet(topics.PRESENCE.at(node=node).text, body, qos=1, retain=True)

    async with world(tmp_path) as w:
        names = [f"edge{index}" for index in range(60)]
        for name in names:
            w.broker.route(birth(name))
        async with w.gm():
            for name in names[1:]:
                await asyncio.sleep(1.5)
                if not recalled:
                    w.broker.route(birth(name))
                elif name == "edge1":
                    await w.bus.recall(topics.PRESENCE.filter())
                else:  # as after a surge, where the broker dropped the birth
                    w.broker.route(Packet(topics.PRESENCE.at(node=f"new-{name}").text, birth(f"new-{name}").payload))
                    await w.bus.recall(topics.PRESENCE.filter())
            assert not {node.name: node.online for node in (await w.ask("nodes")).nodes}["edge0"]


@pytest.mark.parametrize("reports", [False, True])
async def test_a_node_that_only_reports_after_a_reconnect_of_gm_stays_online(w: World, *, reports: bool) -> None:
    w.edge.earlier = True
    w.bus.renew()
    await asyncio.sleep(8)
    if reports:
        w.edge.report(HELMET)
    await asyncio.sleep(100)
    nodes = {node.name: node.online for node in (await w.ask("nodes")).nodes}
    assert nodes == {"edge0": reports, "cloud0": True}


async def test_a_node_that_vanished_while_gm_could_not_see_it_is_found_out(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0"):
        async with w.node("cloud0") as cloud:
            await w.deploy()
            w.broker.stop()
            cloud.bus.cut()
        w.broker.start()  # empty: there is no will of cloud0
        status = await w.reaches("Degraded", "NodeOffline")
        assert "cloud0" in status.conditions[-1].message
        async with w.node("cloud0"):
            await w.reaches("Running")


async def test_a_flood_of_reports_gives_at_most_one_status_a_second_and_the_last_one_counts(w: World) -> None:
    await asyncio.sleep(2)
    w.statuses.clear()
    for n in range(1, 1001):
        w.edge.counts[HELMET] = TaskInfo(inference_number=n)
        w.edge.report(HELMET)
        await asyncio.sleep(0.01)
    await asyncio.sleep(2)
    written = [(at, d) for at, d in w.statuses if d.name == "helmet"]
    assert metric(written[-1][1].status, "inferenceNumber") == "1000"
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(written)]
    assert 9 <= len(written) <= 12
    assert min(gaps) >= 0.99
    w.statuses.clear()
    w.edge.report(HELMET)
    await asyncio.sleep(5)
    assert w.statuses == [], "the same report again is no news"


async def test_a_crash_looping_worker_degrades_or_fails_the_service_in_its_own_words(w: World) -> None:
    def fail(node: FakeNode, role: str, message: str) -> None:
        node.overrides[role] = WorkerReport(
            name=f"helmet-{role}-{node.name}", role=role, phase="Failed", reason="CrashLoop", message=message
        )
        node.report(HELMET)

    fail(w.cloud, "cloud", "exit 1")
    status = await w.reaches("Degraded", "CrashLoop")
    assert "exit 1" in status.conditions[-1].message
    assert "cloud0" in status.conditions[-1].message
    assert (status.active, status.failed) == (1, 1)
    fail(w.edge, "edge", "no model")
    status = await w.reaches("Failed")
    assert [c.status for c in status.conditions] == ["False"] * (len(status.conditions) - 1) + ["True"]
    assert len({c.type for c in status.conditions}) == len(status.conditions)
    reply = await w.ask("events", about=str(HELMET))
    assert [e.reason for e in reply.events if e.type == "Warning"] == ["Degraded", "Failed"]


async def test_names_that_nobody_knows_do_not_fill_gms_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gm.upstream.MAX_NODES", 3)
    async with world(tmp_path) as w, w.gm(), contextlib.AsyncExitStack() as stack:
        for number in range(8):
            await stack.enter_async_context(w.node(f"edge{number}"))
            await asyncio.sleep(1)
        await eventually(lambda: len(w.manager._plane.nodes) == 3)
        events = [e for e in (await w.ask("events")).events if e.reason == "TooManyNodes"]
        assert events[0].about == "gm"
        assert "halimede delete node" in events[0].message


async def test_what_a_node_sends_is_taken_within_its_budget(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge:
        await eventually(lambda: bool(edge.sent("synced")))
        for number in range(200):
            presence = Presence(node="edge0", epoch=edge.epoch, online=True, labels={"number": str(number)})
            await edge.bus.publish(topics.PRESENCE.at(node="edge0"), presence)
        events = (await w.ask("events")).events
        assert [event.about for event in events if event.reason == "NodeFlood"] == ["node/edge0"]

        async def newest() -> bool:
            [node] = (await w.ask("nodes")).nodes
            return node.labels.get("number") == "199"

        await eventually(newest)


async def test_a_sync_before_its_birth_takes_nothing_away(tmp_path: Path) -> None:
    """A lost memory of nodes, and a sync that overtakes the labels it needs."""
    role = {"node-role.kubernetes.io/edge": ""}
    async with world(tmp_path) as w, w.node("cloud0"), w.node("a", **{"node-role.kubernetes.io__edge": ""}) as a:
        async with w.gm() as cluster:
            await w.deploy(service(edge=role))
            database = cluster._database
        async with LocalCluster(w.store) as cluster:
            with cluster._database.transaction() as connection:
                connection.execute("DELETE FROM nodes")
        w.broker._retained.clear()
        assert database is not None
        a.log.clear()
        async with w.gm():
            await eventually(lambda: bool(a.sent("synced")))
            assert a.sent("delete") == []
            birth = Presence(node="a", epoch=a.epoch, online=True, labels=a.labels)
            await a.bus.publish(topics.PRESENCE.at(node="a"), birth)
            await asyncio.sleep(5)
            assert a.sent("delete") == []
            assert (await w.reaches("Running")).active == 2


@pytest.mark.parametrize("is_retained_again", [False, True])
async def test_a_gm_is_not_refused_by_a_birth_that_has_outlived_its_gm(
    tmp_path: Path, *, is_retained_again: bool
) -> None:
    address = topics.GM_PRESENCE.at().text
    async with world(tmp_path) as w:
        async with w.gm():
            birth = w.broker.retained_payload(address)
            assert birth
        w.broker.route(Packet(address, birth, retain=True))  # as a broker keeps it that ends with GM
        looking = MemoryBus("look", w.broker)
        look = asyncio.create_task(refuse_a_second(looking, "another store"))
        if is_retained_again:
            await asyncio.sleep(5)
            await looking.recall(topics.GM_PRESENCE.filter())
        await look


async def test_a_busy_gm_answers_one_with_another_store_as_soon_as_it_can(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        await asyncio.sleep(20)  # its birth is published again before
        link = w.bus._link
        assert link
        taken = 0
        while link.slots.take():
            taken += 1
        look = asyncio.create_task(refuse_a_second(MemoryBus("look", w.broker), "another store"))
        await asyncio.sleep(5)
        for _ in range(taken):
            link.slots.release()
        with pytest.raises(HalimedeError, match=r"another global manager .* is online"):
            await look


@pytest.mark.parametrize(("connection", "seconds"), [(0, 2), (1, 20)], ids=["an earlier version", "this version"])
async def test_a_birth_that_has_outlived_its_gm_only_delays_a_reconnect(
    tmp_path: Path, connection: int, seconds: int
) -> None:
    async with world(tmp_path) as w, LocalCluster(w.store) as cluster:
        other = GmPresence(epoch=1, online=True, store="another store", connection=connection)
        w.broker.route(Packet(topics.GM_PRESENCE.at().text, codec.encode(topics.GM_PRESENCE, other), retain=True))
        w.broker.running = False
        check = ReconnectCheck(cluster, [], lambda: MemoryBus("look", w.broker))
        running = asyncio.create_task(check.run())
        for _ in range(100):
            obstacle = check.obstacle()
            assert obstacle, "the broker is not reachable: another GM may be connected to it"
            await asyncio.sleep(1)
        assert obstacle == "the broker is not running"
        w.broker.start()
        await eventually(lambda: not check.obstacle(), seconds + LAST_BACKOFF)
        running.cancel()


async def test_a_gm_whose_place_is_taken_does_not_connect_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), LocalCluster(tmp_path / "another.db") as cluster:
        check = ReconnectCheck(cluster, [], lambda: MemoryBus("look", w.broker))
        assert check.obstacle()
        with pytest.raises(HalimedeError, match=r"another global manager .* is online"):
            await check.run()


async def test_a_corrupt_store_is_put_aside_and_costs_no_running_worker(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge, w.node("cloud0"):
        async with w.gm() as cluster:
            before = cluster.epoch
            await w.deploy()
        w.store.write_bytes(b"not a database at all" * 1000)
        edge.log.clear()
        async with w.gm() as cluster:
            assert w.store.with_name("store.db.corrupt-1").exists()
            assert cluster.epoch > before, "nodes follow the highest epoch only"
            await eventually(lambda: bool(edge.sent("synced")))
            assert edge.sent("delete") == []
            assert {k.name for k in edge.holds} == {"helmet", "small"}
            [node] = [each for each in (await w.ask("nodes")).nodes if each.name == "edge0"]
            assert node.unknown == ["default/jointinferenceservices/helmet", "default/models/small"]
            version = (await w.ask("version")).value
            assert isinstance(version, dict)
            assert "store.db.corrupt-1" in str(version["quarantined"])
            events = (await w.ask("events", about=str(HELMET))).events
            assert "lost with an earlier store" in events[-1].message
        async with w.gm() as cluster:
            assert not cluster.complete, "still not all is known after the next start"


async def test_an_older_copy_of_the_store_is_noticed_and_what_is_applied_again_reaches_the_nodes(
    tmp_path: Path,
) -> None:
    def limited(milliseconds: int) -> dict[str, Any]:
        return service(edge_worker={"deadlineMs": milliseconds})

    copy = tmp_path / "copy.db"
    async with world(tmp_path) as w, w.node("edge0") as edge, w.node("cloud0"):
        async with w.gm():
            await w.apply(model("small"), model("big"), limited(100))
            await w.reaches("Running")
        shutil.copy(w.store, copy)
        async with w.gm():
            await w.apply(limited(200))
            await eventually(lambda: edge.holds[HELMET][1] == 2)
        for kept_file in w.store.parent.glob("store.db-*"):
            kept_file.unlink()
        shutil.copy(copy, w.store)
        edge.log.clear()
        async with w.gm():
            await eventually(lambda: bool(edge.sent("synced")), 60)
            events = (await w.ask("events", about=str(HELMET))).events
            assert "NewerOnNode" in {event.reason for event in events}
            assert (await w.ask("apply-dry-run", object=limited(100))).outcome == "configured"
            for milliseconds, generation in ((100, 3), (300, 4)):
                applied = await w.ask("apply", object=limited(milliseconds))
                assert (applied.outcome, applied.object["metadata"]["generation"]) == ("configured", generation)
                await eventually(lambda generation=generation: edge.holds[HELMET][1] == generation)
                assert edge.holds[HELMET][2]["spec"]["edgeWorker"]["deadlineMs"] == milliseconds
            assert (await w.ask("apply", object=limited(300))).outcome == "unchanged"


async def test_a_node_that_reports_the_greatest_generation_does_not_move_the_one_of_the_store(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge, w.node("cloud0"):
        async with w.gm():
            await w.deploy()
        edge.holds[HELMET] = (edge.holds[HELMET][0], MAX_INTEGER, edge.holds[HELMET][2])
        edge.log.clear()
        async with w.gm():
            await eventually(lambda: bool(edge.sent("synced")))
            applied = await w.ask("apply", object=service(edge_worker={"deadlineMs": 200}))
            assert (applied.outcome, applied.object["metadata"]["generation"]) == ("configured", 2)


async def test_a_lost_resource_that_is_applied_again_continues_the_uid_that_nodes_hold(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge, w.node("cloud0") as cloud:
        async with w.gm():
            await w.deploy()
        uid, generation, _ = edge.holds[HELMET]
        w.store.unlink()
        # it has lost its store as well: it knows what its workers are of, but no generation
        cloud.holds = {HELMET: (uid, 0, cloud.holds[HELMET][2])}
        edge.log.clear()
        async with w.gm():
            await eventually(lambda: bool(edge.sent("synced") and cloud.sent("synced")))
            await w.apply(model("small"), model("big"), service())
            applied = (await w.ask("get", plural=SERVICES, name="helmet")).object["metadata"]
            assert (applied["uid"], applied["generation"]) == (uid, generation + 1)
            await eventually(lambda: edge.holds[HELMET][:2] == cloud.holds[HELMET][:2] == (uid, generation + 1))
            await w.reaches("Running")
            assert not [sent for sent in edge.sent("delete") if "helmet" in sent[1]], "its workers run"


Event = Callable[[World, FakeNode, FakeNode], Awaitable[None]]


async def deleted_elsewhere(w: World, edge: FakeNode, cloud: FakeNode) -> None:
    """One node missed the deletion."""
    cloud.tombstones[edge.holds[HELMET][0]] = 9
    del cloud.holds[HELMET]


async def other_uid(w: World, edge: FakeNode, cloud: FakeNode) -> None:
    cloud.holds[HELMET] = ("another", *cloud.holds[HELMET][1:])


async def greatest_generation(w: World, edge: FakeNode, cloud: FakeNode) -> None:
    """After it there is no higher one, with which the nodes would take the resource."""
    for node in (edge, cloud):
        node.holds[HELMET] = (node.holds[HELMET][0], MAX_INTEGER, node.holds[HELMET][2])


async def deleted_since(w: World, edge: FakeNode, cloud: FakeNode) -> None:
    """A user decides so after the loss."""


@pytest.mark.parametrize(
    "event", [deleted_elsewhere, other_uid, greatest_generation, deleted_since], ids=lambda event: event.__name__
)
async def test_a_lost_resource_gets_a_new_uid_if_nodes_cannot_go_on_with_theirs(tmp_path: Path, event: Event) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge, w.node("cloud0") as cloud:
        async with w.gm():
            await w.deploy()
        uid = edge.holds[HELMET][0]
        w.store.unlink()
        await event(w, edge, cloud)
        edge.log.clear()
        cloud.log.clear()
        async with w.gm():
            await eventually(lambda: bool(edge.sent("synced") and cloud.sent("synced")))
            if event is deleted_since:
                assert (await w.ask("delete", plural=SERVICES, name="helmet")).outcome == "deleted"
            await w.apply(model("small"), model("big"), service())
            applied = (await w.ask("get", plural=SERVICES, name="helmet")).object["metadata"]
            assert (applied["uid"] in {uid, "another"}, applied["generation"]) == (False, 1)
            await w.reaches("Running")


@pytest.mark.parametrize("known", [True, False], ids=["deleted", "deleted though only nodes knew it"])
async def test_a_delete_reaches_a_node_that_was_away_even_once_a_store_was_lost(tmp_path: Path, known: bool) -> None:
    async with world(tmp_path) as w, w.node("edge0") as edge:
        async with w.gm(), w.node("cloud0") as cloud:
            await w.deploy()
        w.store.unlink()
        async with w.gm():
            await eventually(lambda: bool(edge.sent("synced")))
            if known:
                await w.apply(model("small"), model("big"), service())
                stored = (await w.ask("get", plural=SERVICES, name="helmet")).object
                await eventually(lambda: edge.holds[HELMET][0] == stored["metadata"]["uid"])
            away = w.node("cloud0")
            away.holds, away.epoch = {**cloud.holds, HELMET: edge.holds[HELMET]}, cloud.epoch
            assert (await w.ask("delete", plural=SERVICES, name="helmet")).outcome == "deleted"
            await eventually(lambda: HELMET not in edge.holds)
        async with w.gm(), away:
            await eventually(lambda: HELMET not in away.holds)
            assert known or Key(MODELS, "default", "big") in away.holds, "nobody asked for that to be deleted"


async def test_a_node_that_is_gone_for_good_is_deleted_and_troubles_nobody_any_more(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.node("edge0", line="1"), w.node("cloud0"):
        async with w.gm():
            gone = w.node("edge7", line="1")
            async with gone:
                await w.deploy(service(edge={"line": "1"}))
                refused = (await w.ask("delete-node", name="edge7")).error
                assert refused.reason == "Conflict"
                assert "edge7 is online" in refused.message
            degraded = await w.reaches("Degraded", "NodeOffline")
            assert "halimede delete node edge7" in degraded.conditions[-1].message
            assert (await w.ask("delete-node", name="edge7")).outcome == "deleted"
            await w.reaches("Running")
            assert [n.name for n in (await w.ask("nodes")).nodes] == ["cloud0", "edge0"]
            assert (await w.ask("delete-node", name="edge7")).error.reason == "NotFound"
            assert not w.broker.retained_payload("node/edge7/sedna/presence")
            assert not w.broker.retained_payload("node/edge7/default/sedna/upstream/models/small/status")
        async with w.gm():
            await asyncio.sleep(30)
            assert [n.name for n in (await w.ask("nodes")).nodes] == ["cloud0", "edge0"]
            assert [n.node for n in (await w.reaches("Running")).nodes] == ["cloud0", "edge0"]
            # it may come back all the same
            async with w.node("edge7", line="1"):
                await eventually(lambda: [n.node for n in w.status().status.nodes] == ["cloud0", "edge0", "edge7"])


async def test_the_seeds_form_goes_down_as_todays_and_shares_its_names(tmp_path: Path) -> None:
    script = {
        "scriptDir": "/code", "scriptBootFile": "main.py", "frameworkType": "tensorflow", "frameworkVersion": "1.18",
        "parameters": [{"key": "nms_threshold", "value": "0.6"}],
    }  # fmt: skip
    edge_worker = {
        "name": "edgeworker", "model": {"name": "small"}, "nodeName": "edge0", "hardExampleAlgorithm": {"name": "IBT"},
        "workerSpec": script,
    }  # fmt: skip
    cloud_worker = {"name": "work", "model": {"name": "big"}, "nodeName": "cloud0", "workerSpec": script}
    seed = {
        **resource("JointInferenceService", "helmet", edgeWorker=edge_worker, cloudWorker=cloud_worker),
        "apiVersion": "neptune.io/v1alpha1",
    }
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        await w.deploy(seed)
        assert edge.holds[HELMET][2]["apiVersion"] == "sedna.io/v1alpha1"
        assert w.status().api_version == "neptune.io/v1alpha1"
        error = (await w.ask("apply", object=service())).error
        assert error.reason == "Conflict"
        assert "NameConflict" in error.message
        assert "neptune.io/v1alpha1" in error.message


async def test_a_request_that_is_delivered_again_is_not_done_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        to, reply = str(topics.API_REQUEST.at(client="operator")), str(topics.API_REPLY.at(client="operator"))
        body = codec.encode(topics.API_REQUEST, ApiRequest(op="apply", object=model("small")))
        packet = Packet(to, body, response_topic=reply, correlation=b"0123456789abcdef")
        await w.operator.send(packet)
        await w.ask("delete", plural=MODELS, name="small")
        await eventually(lambda: w.status("small", MODELS) is None)
        await w.operator.send(packet)
        assert (await w.ask("get", plural=MODELS, name="small")).error.reason == "NotFound"
