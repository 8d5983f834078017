"""Attack 12: a request that wants its answer on somebody else's topic. Answers go to the asker's own topic alone.

An answer that went where a request says would let any client that may ask write to any topic that the answerer may
write to: delete a resource on a node, clear a status, answer for another worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede import codec, topics
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.bus.rpc import RpcClient
from halimede.errors import BusError
from halimede.frames import new_frame
from halimede.messages import ApiRequest, LogsRequest
from halimede.topic import Address
from services.broker import MosquittoProcess
from services.lc.paths import NodePaths
from services.lc.worker_files import Logs
from tests.digits import Digits
from tests.faults.control import Control
from tests.inbox import Packets
from tests.integration.workers import Site
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.timeout(180)

HOSTILE = {
    "a downstream topic": "node/edge0/default/sedna/downstream/models/m1/delete",
    "a status": "default/sedna/status/jointinferenceservices/helmet",
    "a result": "default/sedna/inference/helmet/result",
    "another service": "default/sedna/inference/other/reply/w",
    "another namespace": "other/sedna/inference/helmet/reply/w",
    "another client of the API": "sedna/api/reply/victim",
    "another reader of logs": "sedna/logs/reply/victim",
    "the broker's own": "$SYS/broker/uptime",
    "a share": "$share/g/sedna/api/reply/a",
    "a wildcard": "sedna/api/reply/+",
    "everything": "#",
    "64 KiB": "sedna/api/reply/" + "a" * (65_535 - 16),
    "many levels": "/" * 200,
    "a name that is none": "sedna/api/reply/A_B",
    "nothing": "",
}


@contextlib.asynccontextmanager
async def spying(broker: MosquittoProcess, name: str) -> AsyncIterator[tuple[MqttBus, Packets]]:
    """Yield an attacker, and all that is published."""
    packets = Packets()
    async with MqttBus(f"spy-{name}", broker.url) as ear, MqttBus(f"attacker-{name}", broker.url) as attacker:
        await ear.wait_connected(patience(10))
        await attacker.wait_connected(patience(10))
        await ear.listen("#", 0, packets, 10_000)
        yield attacker, packets


async def attack(
    attacker: MqttBus,
    packets: Packets,
    to: Address[Any],
    own: Address[Any],
    request: Any,
    *allowed: str,
    hostile: Any = None,
) -> Any:
    """Send a request with each hostile response topic, then one that is answered, at its own; return that answer.

    ``hostile``: another body for the hostile ones. ``allowed``: what else may be published.
    """
    asking = RpcClient(attacker, own)
    await asking.start()
    packets.clear()
    body = codec.encode(to.topic, hostile or request)
    for topic in HOSTILE.values():
        # the broker, or our own client, may refuse some of these by itself: that is as good
        with contextlib.suppress(BusError, ValueError, TypeError):
            await attacker.send(Packet(to.text, body, response_topic=topic, correlation=b"c" * 16))
        await attacker.wait_connected(patience(10))
    answer = await asking.ask(to, request, timeout_s=30)
    await asyncio.sleep(0.5)
    letters = [packet for packet in packets if topics.DEAD_LETTER.parse(packet.topic)]
    published = [packet.topic for packet in packets if packet not in letters]
    assert set(published) <= {to.text, own.text, *allowed}
    assert any(b"response topic" in letter.payload for letter in letters)
    assert published.count(own.text) == 1
    return answer.body


async def test_attack_12_at_a_cloud_worker(mosquitto: MosquittoProcess, s: Site, digits: Digits) -> None:
    async with spying(mosquitto, s.service) as (attacker, packets):
        s.start("cloud", s.cloud, digits.big, LC_PERIOD="0.2")
        await s.running(s.cloud)
        names = {"ns": "default", "service": s.service}
        to, own = topics.REQUEST.at(**names), topics.REPLY.at(**names, worker="asker")
        info = topics.WORKER_INFO.at(node=f"node-{s.service}", ns="default", worker=s.cloud).text
        load = topics.LOAD.at(**names, worker=s.cloud).text
        good, hostile = (new_frame(np.full((8, 8), value, np.uint8)) for value in (0, 1))
        assert (await attack(attacker, packets, to, own, good, info, load, hostile=hostile)).prediction is not None
        # computed once, for the one who may ask; the others counted
        await eventually(lambda: s.counts(s.cloud).rejected >= len(HOSTILE) - 4, 30)
        assert s.counts(s.cloud).served == 1


async def test_attack_12_at_the_api_of_gm(unique: str, plane: Control) -> None:
    async with spying(plane.broker, unique) as (attacker, packets), plane.gm():
        to, own = topics.API_REQUEST.at(client="attacker"), topics.API_REPLY.at(client="attacker")
        await eventually(lambda: topics.GM_PRESENCE.at().text in {packet.topic for packet in packets}, 30)
        # the birth may be published again meanwhile
        await attack(attacker, packets, to, own, ApiRequest(op="nodes"), topics.GM_PRESENCE.at().text)


async def test_attack_12_at_the_logs_of_a_node(mosquitto: MosquittoProcess, unique: str, tmp_path: Path) -> None:
    async with spying(mosquitto, unique) as (attacker, packets), MqttBus(f"lc-{unique}", mosquitto.url) as bus:
        await bus.wait_connected(patience(10))
        await Logs(NodePaths(tmp_path, unique), bus).start()
        to, own = topics.LOGS_REQUEST.at(node=unique, client="attacker"), topics.LOGS_REPLY.at(client="attacker")
        assert (await attack(attacker, packets, to, own, LogsRequest(namespace="default", worker="w"))).error
        assert bus.stats.failed_handlers == 0
