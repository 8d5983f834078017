"""Floods of what nodes and users may say: GM stays small, answers everybody else, and knows the last word.

User properties by the thousand, of 64 KiB, or of characters that end connections: refused, counted, acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from halimede import codec, topics
from halimede.bus import Delivery
from halimede.bus.message import MAX_PROPERTIES, MAX_PROPERTY
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.settings import Client
from halimede.contract.examples import EXAMPLES, address
from halimede.messages import NodeStatus, Output, Presence, Status, StatusDocument, TaskInfo, WorkerReport
from halimede.topic import Topic
from services.broker import MosquittoProcess
from tests.attacks.flooding import NODE, connect, publish, user
from tests.faults.control import PATIENCE, ROOT, Child, Control
from tests.inbox import Inbox
from tests.integration.gm_world import SERVICES
from tests.simulated import eventually
from tests.waiting import patience

#: how long a flood lasts, and how many messages it is at the least, however slow the machine is
FLOOD_S, LEAST, LEAST_SYNCS = 1.0, 2500, 50
#: what a flood may add to GM's memory, its store and its log
MORE_RSS, MOST_STORE, MOST_LOG = 200 << 20, 64 << 20, 1 << 20
MOST_EVENTS = 6000


class Watch:
    """What a follower of the status topics is shown, and another node that goes on reporting."""

    def __init__(self, bus: MqttBus, uid: str) -> None:
        self.shown: Counter[str] = Counter()
        self.last: dict[str, Status] = {}
        self.said = 0
        self._bus, self._uid = bus, uid

    async def on_status(self, delivery: Delivery[StatusDocument]) -> None:
        name = delivery.names["name"]
        self.shown[name] += 1
        self.last[name] = delivery.body.status

    async def report(self) -> None:
        """Say how many samples the good node has answered by now: one more each time."""
        self.said += 1
        status = NodeStatus(
            phase="Running", uid=self._uid, observed_generation=1,
            output=Output(task_info=TaskInfo(inference_number=self.said)),
            workers=[WorkerReport(name="w", role="edge", phase="Running")],
        )  # fmt: skip
        at = topics.NODE_STATUS.at(node="good0", ns="default", plural=SERVICES, name="other")
        await self._bus.publish(at, status, properties={"epoch": "1", "number": str(self.said)})

    def counted(self, name: str) -> int:
        metrics = self.last[name].metrics if name in self.last else []
        return next((int(m.value) for m in metrics if m.key == "inferenceNumber"), 0)


@asynccontextmanager
async def watching(plane: Control) -> AsyncIterator[tuple[Child, Watch, str]]:
    """GM as a process with two services, one of the node that floods and one of a good node."""
    gm = plane.gm_process(HALIMEDE_HTTP="off")
    await plane.apply(*plane.models(), plane.service("helmet", node=NODE), plane.service("other", node="good0"))
    uids = [(await plane.stored(name))["metadata"]["uid"] for name in ("helmet", "other")]
    # the operator listens to nodes, and a flood of them would reach it, too: it is GM that is looked at
    await plane.operator.unsubscribe(topics.PRESENCE.filter())
    async with MqttBus("lc.good0", plane.settings()) as bus:
        await bus.wait_connected(patience(PATIENCE))
        watch = Watch(bus, uids[1])
        await bus.subscribe(topics.STATUS.filter(plural=SERVICES), watch.on_status)
        for node in ("good0", NODE):
            await bus.publish(topics.PRESENCE.at(node=node), Presence(node=node, epoch=1, online=True))
        await watch.report()
        await plane.until(lambda: watch.counted("other") == 1)
        yield gm, watch, uids[0]


async def flood(plane: Control, kind: str, uid: str) -> asyncio.subprocess.Process:
    least = LEAST_SYNCS if kind == "sync" else LEAST
    command = ["-m", "tests.attacks.flooding", str(plane.broker.port), kind, str(FLOOD_S), str(least), uid]
    return await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)


KINDS = ("counts", "uids", "unknown", "names", "presence", "nodes", "sync", "lists", "applies", "letters")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_attack_21_a_flood_costs_gm_little_and_nobody_else_is_lost_in_it(kind: str, plane: Control) -> None:
    async with watching(plane) as (gm, watch, uid):
        memory = psutil.Process(gm.process.pid).memory_info
        before = memory().rss
        first = (await plane.ask("events", limit=1)).events[-1].sequence
        loop = asyncio.get_running_loop()
        began, largest, at_first = loop.time(), before, watch.shown.copy()
        process = await flood(plane, kind, uid)
        async with asyncio.timeout(patience(PATIENCE)):  # users are answered in the middle of it
            for _ in range(3):
                await asyncio.sleep(0.2)
                await plane.ask("version")
                await watch.report()
                largest = max(largest, memory().rss)
        out, _ = await process.communicate()
        await watch.report()
        await plane.until(lambda: watch.counted("other") == watch.said)
        if kind == "counts":  # what was overtaken was skipped, the last word was not
            await plane.until(lambda: watch.counted("helmet") == int(out))

        assert max(largest, memory().rss) - before < MORE_RSS
        store = sum(file.stat().st_size for file in (plane.home / "gm").glob("store.db*"))
        assert store < MOST_STORE
        events = (await plane.ask("events", limit=1)).events[-1].sequence - first
        assert events < MOST_EVENTS
        assert gm.log.stat().st_size < MOST_LOG
        # what followers (get -w, top, the page) are shown of one resource: once a second
        most = loop.time() - began + 2
        assert all(count <= most for count in (watch.shown - at_first).values()), watch.shown
        assert gm.process.poll() is None


@pytest.mark.slow
async def test_attack_21_a_worker_that_floods_its_lc_makes_it_flood_nobody(plane: Control) -> None:
    async with plane.gm(), plane.lc() as lc:
        await plane.start_services("helmet")
        reports = Inbox[NodeStatus]()
        async with MqttBus("looks", plane.settings()) as bus:
            await bus.wait_connected(patience(PATIENCE))
            await bus.subscribe(topics.NODE_STATUS.filter(plural=SERVICES), reports)
            began = asyncio.get_running_loop().time()
            process = await flood(plane, "infos", "")
            await process.communicate()
            await plane.apply(plane.service("another"))  # it still does what it is told
            await plane.running("another")
            took = asyncio.get_running_loop().time() - began
        assert reports.started <= took * 2 * 12 + 10
        assert lc.stats.connects == 1


TOO_MUCH = {
    "one more than may be": user("a", "b") * (MAX_PROPERTIES + 1),
    "ten thousand": user("a", "b") * 10_000,
    "a hundred thousand": user("", "") * 100_000,
    "values of 64 KiB": user("epoch", "9" * 65_000) * 20,
    "a name too long": user("n" * (MAX_PROPERTY + 1), "v"),
}
#: what comes to the connections that samples travel on
SAMPLES = (topics.CAMERA_FRAME, topics.REQUEST, topics.REPLY)
#: brokers let it through, and MQTT libraries end the connection at it
ODD = {"U+FEFF in a name": user("\ufeff", "v"), "U+FEFF in a value": user("traceparent", "\ufeff")}


@pytest.mark.parametrize(
    ("topic", "client"),
    [*((topic, "paho") for topic in topics.CONTRACT), *((topic, "lean") for topic in SAMPLES)],
    ids=lambda value: getattr(value, "id", value),
)
async def test_attack_21_on_every_topic_too_much_beside_a_body_is_refused_and_the_next_is_read(
    topic: Topic[Any], client: Client, mosquitto: MosquittoProcess, unique: str
) -> None:
    where, body = address(topic), codec.encode(topic, EXAMPLES[topic.id])
    marked: list[Delivery[Any]] = []

    async def take(delivery: Delivery[Any]) -> None:
        if unique in delivery.properties:
            marked.append(delivery)

    # one at a time: any that is not acknowledged would keep the next one away
    settings = MqttSettings("127.0.0.1", mosquitto.port, receive_maximum=1, prefix=unique, client=client)
    async with MqttBus(unique, settings) as bus:
        await bus.wait_connected(patience(10))
        await bus.subscribe(topic.filter(), take)
        link = await asyncio.to_thread(connect, mosquitto.port, f"{unique}-a")
        for number, section in enumerate([*TOO_MUCH.values(), *ODD.values(), user(unique, "the next")], 1):
            packet = publish(f"{unique}/{where.text}", body, qos=1, beside=section, mid=number)
            await asyncio.to_thread(link.sendall, packet)
        await eventually(lambda: marked, 30)
        link.close()
        assert bus.stats.rejected == len(TOO_MUCH)
        assert bus.stats.connects == 1
        assert len(marked) == 1
