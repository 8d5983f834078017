"""Attack 2: a node speaks as another. The broker knows it by its certificate; GM believes no body against its topic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede import topics
from halimede.access.site import Principal
from halimede.bus import Announcement, Packet
from halimede.bus.memory import MemoryBus
from halimede.bus.mqtt import MqttBus
from halimede.contract.examples import UID
from halimede.errors import DisconnectedError
from halimede.messages import DeadLetter, NodeStatus, Output, Presence, Sync, TaskInfo
from halimede.topic import Role
from tests.access_world import AUDITOR, access_world
from tests.inbox import Inbox
from tests.integration.gm_world import metric, model, service, world
from tests.waiting import eventually, patience

THINGS = {"ns": "default", "plural": "jointinferenceservices", "name": "helmet"}


async def test_attack_02_a_user_name_beside_the_certificate_counts_for_nothing(tmp_path: Path) -> None:
    async with access_world(tmp_path) as world:
        own = tmp_path / Principal(Role.LC, "edge0").folder
        (own / "username").write_text("lc.edge1")
        (own / "password").write_text("whatever")
        hostile = await world.client(Principal(Role.LC, "edge0"))
        assert await hostile.publish(topics.SYNC.at(node="edge1").text, "forged") == 0x87
        assert await hostile.publish(topics.SYNC.at(node="edge0").text, "true") in {0, 0x10}


async def test_attack_02_a_nodes_will_is_not_published_on_anothers_topic(tmp_path: Path) -> None:
    """It is the broker that publishes a will."""
    async with access_world(tmp_path) as world:
        auditor = await world.client(AUDITOR)
        await auditor.listen(["node/+/sedna/presence"])
        for node in ("edge1", "edge0"):
            will = Packet(topics.PRESENCE.at(node=node).text, f"will of {node}".encode())
            settings = world.settings(Principal(Role.LC, "edge0"))
            async with MqttBus("liar", settings, lambda will=will: Announcement(will=will)) as liar:
                try:
                    await liar.wait_connected(patience(5))
                except DisconnectedError:
                    continue  # a broker may turn such a connection away
                liar.renew()
                await eventually(lambda liar=liar: liar.stats.connects == 2)
        await eventually(lambda: (topics.PRESENCE.at(node="edge0").text, "will of edge0") in auditor.heard)
        assert {tag for _, tag in auditor.heard} == {"will of edge0"}


@pytest.mark.simulated
async def test_attack_02_gm_takes_from_a_node_what_agrees_with_its_topic_alone(tmp_path: Path) -> None:
    """A broker without rules, so that GM's own check is all that stands between."""
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        await w.apply(model("small"), model("big"), service())
        await w.reaches("Running")
        letters = Inbox[DeadLetter]()
        await w.operator.subscribe(topics.DEAD_LETTER.filter(), letters)
        async with MemoryBus("lc-edge1", w.broker) as hostile:
            await hostile.wait_connected(patience(10))
            gone = Presence(node="edge0", epoch=edge.epoch + 1000, online=False)
            await hostile.publish(topics.PRESENCE.at(node="edge1"), gone)
            await eventually(lambda: letters.deliveries)
            assert "the topic is of node edge1: set that name" in letters.bodies[0].reason
            # it may say what it likes of itself; of a service it has to know the uid
            forged = Output(task_info=TaskInfo(inference_number=1_000_000))
            for uid, generation in ((UID, 1), (UID, 99)):
                told = NodeStatus(phase="Failed", uid=uid, observed_generation=generation, output=forged)
                await hostile.publish(topics.NODE_STATUS.at(node="edge1", **THINGS), told)
            await hostile.publish(topics.SYNC.at(node="edge1"), Sync(epoch=1))
        await asyncio.sleep(60)
        status = await w.reaches("Running")
        assert [node.node for node in status.nodes] == ["cloud0", "edge0"]
        assert metric(status, "inferenceNumber") in {None, "0"}
        nodes = {node.name: node.online for node in (await w.ask("nodes")).nodes}
        assert nodes["edge0"]
