"""The bridge between a system and Home Assistant on brokers in memory: restarts, removals, births, two bridges."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from halimede import topics
from halimede.bridges.homeassistant import publisher as publishing
from halimede.bridges.homeassistant.bridge import HomeAssistantBridge
from halimede.bridges.homeassistant.claim import SecondBridgeError
from halimede.bridges.homeassistant.devices import camera_key, node_key
from halimede.bridges.homeassistant.discovery import DiscoveryTopics
from halimede.bridges.homeassistant.occupancy import MAX_CAMERA_SENSORS
from halimede.bridges.homeassistant.publisher import availability_will
from halimede.bridges.homeassistant.system_listener import REMOVE_S
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import Packet
from halimede.errors import HalimedeError, InvalidFieldError
from tests.homeassistant.listener import DiscoveryListener
from tests.homeassistant.stand_in import (
    StandInSystem,
    camera_status,
    hard_sample,
    occupancy_event,
    presence,
    status_document,
)
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

TOPICS = DiscoveryTopics()
#: the devices of ``StandInSystem``
DEVICES = {"system", "ji_default_digits", "node_edge0", "camera_default_cam0"}
#: seconds after which a bridge has removed what no longer exists
SETTLED_S = REMOVE_S + 15.0


@dataclass
class BridgeWorld:
    """A system and Home Assistant, each with a broker of its own, and the bridges that a test runs between them."""

    stack: AsyncExitStack
    system_broker: MemoryBroker = field(default_factory=MemoryBroker)
    target_broker: MemoryBroker = field(default_factory=MemoryBroker)
    system: StandInSystem = field(init=False)
    core: DiscoveryListener = field(init=False)

    async def start(self) -> None:
        self.system = StandInSystem(await self._connected("system", self.system_broker))
        self.core = DiscoveryListener(await self._connected("core", self.target_broker))
        await self.core.start()
        await self.system.start()

    async def _connected(self, name: str, broker: MemoryBroker) -> MemoryBus:
        bus = await self.stack.enter_async_context(MemoryBus(name, broker))
        await bus.wait_connected(10.0)
        return bus

    @contextlib.asynccontextmanager
    async def bridge(self, name: str = "bridge", topics: DiscoveryTopics = TOPICS) -> AsyncIterator[RunningBridge]:
        """Run a bridge until the block ends, as with SIGTERM."""
        async with (
            MemoryBus(f"{name}-target", self.target_broker, lambda: availability_will(topics)) as target,
            MemoryBus(f"{name}-reader", self.system_broker) as reader,
        ):
            await target.wait_connected(10.0)
            await reader.wait_connected(10.0)
            bridge = HomeAssistantBridge(reader, target, topics)
            task = asyncio.create_task(bridge.run())
            try:
                yield RunningBridge(bridge, task, target, reader)
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, HalimedeError):
                    await task

    @contextlib.asynccontextmanager
    async def shown_bridge(self) -> AsyncIterator[RunningBridge]:
        """Run a bridge that has published the devices of the system."""
        async with self.bridge() as running:
            await self.shows()
            yield running

    async def shows(self, devices: set[str] = DEVICES) -> None:
        await eventually(lambda: set(self.core.documents) == devices, 60, shown=lambda: str(set(self.core.documents)))


@dataclass
class RunningBridge:
    bridge: HomeAssistantBridge
    task: asyncio.Task[None]
    target: MemoryBus
    reader: MemoryBus

    @property
    def publisher(self) -> publishing.DiscoveryPublisher:
        assert self.bridge.publisher
        return self.bridge.publisher


@pytest.fixture
async def world() -> AsyncIterator[BridgeWorld]:
    async with AsyncExitStack() as stack:
        bridge_world = BridgeWorld(stack)
        await bridge_world.start()
        yield bridge_world


def messages_of_service(world: BridgeWorld) -> list[str]:
    return [topic for topic in world.core.retained if "ji_default_digits" in topic]


def clearings(world: BridgeWorld) -> list[str]:
    """Return the topics of all messages without content."""
    return [topic for topic, payload in world.core.messages if not payload]


async def test_a_system_appears_with_its_devices_states_and_availability(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await eventually(lambda: world.core.state("availability") == b"online")
        await eventually(lambda: world.core.state("ji_default_digits/upload_share") == b"12.5")
        await world.system.status(status_document(phase="Degraded"))
        await eventually(lambda: world.core.state("ji_default_digits/problem") == b"ON")
        await world.system.picture(hard_sample(data=b"\xff\xd8\xff1"))
        await eventually(lambda: world.core.state("ji_default_digits/hard_sample") == b"\xff\xd8\xff1")
        await world.system.occupancy(occupancy_event())
        await eventually(lambda: events(world))
        await asyncio.sleep(1.0)
        late = DiscoveryListener(await world._connected("late", world.target_broker))
        await late.start()
        # all but events and claims is retained
        shown = {topic: payload for topic, payload in world.core.retained.items() if "/events_" not in topic}
        shown.pop(TOPICS.claim)
        await eventually(lambda: late.retained == shown, shown=lambda: str(late.retained.keys() ^ shown.keys()))
    await eventually(lambda: world.core.state("availability") == b"offline")
    assert set(world.core.documents) == DEVICES


async def test_a_restarted_bridge_publishes_the_same_and_removes_nothing_before_it_has_received_the_system(
    world: BridgeWorld,
) -> None:
    """GM's answers about nodes may arrive before the nodes' own messages."""
    async with world.shown_bridge():
        before = dict(world.core.documents)
    world.core.messages.clear()
    async with world.bridge() as running:
        for _ in range(500):
            for key in (node_key("edge0"), camera_key("default", "cam0")):
                running.bridge.touch(key)
            await asyncio.sleep(0.01)
        await asyncio.sleep(SETTLED_S)
        assert world.core.state("availability") == b"online"
        assert not clearings(world)
        assert world.core.documents == before


async def test_a_deleted_service_is_removed_with_all_its_messages_its_document_first(world: BridgeWorld) -> None:
    """Home Assistant logs a warning for an empty message of an entity that it still has."""
    async with world.shown_bridge():
        await world.system.remove(status_document())
        await world.shows(DEVICES - {"ji_default_digits"})
        await eventually(lambda: not messages_of_service(world))
        cleared = clearings(world)
        assert cleared[0] == TOPICS.document("ji_default_digits")
        assert len(cleared) == len(set(cleared)) > 10


async def test_what_is_deleted_while_no_bridge_runs_is_removed_by_the_next_one(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await world.system.occupancy(occupancy_event())
        await eventually(lambda: "person in door" in sensors(world))
    await world.system.remove(status_document())
    await world.system.no_occupancy(occupancy_event())
    async with world.bridge():
        await asyncio.sleep(SETTLED_S)
        await world.shows(DEVICES - {"ji_default_digits"})
        await eventually(lambda: not messages_of_service(world) and not sensors(world))


async def test_what_is_deleted_while_the_system_is_not_reached_is_removed_after_the_reconnect(
    world: BridgeWorld,
) -> None:
    async with world.shown_bridge() as running:
        running.reader.cut()
        await eventually(lambda: world.core.state("availability") == b"offline")
        await world.system.remove(status_document())
        running.reader.heal()
        await eventually(lambda: world.core.state("availability") == b"online")
        await asyncio.sleep(SETTLED_S)
        await world.shows(DEVICES - {"ji_default_digits"})


async def test_a_restart_of_the_systems_broker_removes_nothing_however_slowly_the_system_returns(
    world: BridgeWorld,
) -> None:
    """A broker without persistence: one node is back before the bridge, and the rest far later than usual."""
    await world.system.occupancy(occupancy_event())
    async with world.shown_bridge() as running:
        await eventually(lambda: sensors(world))
        await asyncio.sleep(SETTLED_S)
        world.core.messages.clear()
        running.reader.cut()
        await restart_broker(world)
        running.reader.heal()
        await return_slowly(world)


@pytest.mark.parametrize("has_node", [False, True], ids=["no retained message", "one node"])
async def test_nor_does_a_bridge_that_starts_after_the_restart(world: BridgeWorld, has_node: bool) -> None:
    await world.system.occupancy(occupancy_event())
    async with world.shown_bridge():
        await eventually(lambda: sensors(world))
    world.core.messages.clear()
    await restart_broker(world, has_node=has_node)
    async with world.bridge():
        await return_slowly(world)


async def test_a_broker_that_sends_nothing_retained_loses_no_device_though_gm_is_online(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        pass
    world.core.messages.clear()
    await restart_broker(world, has_node=False)
    async with world.bridge():
        await asyncio.sleep(10.0)
        await world.system.manager()  # the bridge has subscribed before, so this message is not a retained one
        await asyncio.sleep(2 * SETTLED_S)
        assert not clearings(world)
        assert set(world.core.documents) == DEVICES


async def restart_broker(world: BridgeWorld, *, has_node: bool = True) -> None:
    """Restart the broker of a system, which loses all retained messages; one node may publish its own again at once."""
    world.system_broker.restart()
    await eventually(lambda: world.system.bus.connected)
    if has_node:
        await world.system.node(presence())


async def return_slowly(world: BridgeWorld) -> None:
    """Let a system return after a restart of its broker: GM after minutes, then the rest; nothing is removed."""
    await asyncio.sleep(2 * SETTLED_S)
    await world.system.manager()
    await asyncio.sleep(60.0)
    await world.system.start()
    await world.system.occupancy(occupancy_event())
    await asyncio.sleep(2 * SETTLED_S)
    assert not clearings(world)
    assert set(world.core.documents) == DEVICES
    assert sensors(world)


async def test_what_does_not_return_goes_two_minutes_after_the_global_manager_is_back(world: BridgeWorld) -> None:
    async with world.bridge() as running:
        await world.system.node(presence("edge1"))
        await world.shows(DEVICES | {"node_edge1"})
        running.reader.cut()
        await restart_broker(world)
        running.reader.heal()
        await asyncio.sleep(2 * SETTLED_S)
        assert set(world.core.documents) == DEVICES | {"node_edge1"}
        await world.system.start()
        await asyncio.sleep(SETTLED_S)
        await world.shows()


async def test_a_global_manager_that_does_not_return_with_its_broker_is_shown_as_offline(world: BridgeWorld) -> None:
    async with world.bridge():
        await eventually(lambda: world.core.state("system/manager") == b"ON")
        world.system_broker.restart()
        await eventually(lambda: world.core.state("system/manager") == b"OFF", SETTLED_S)
        assert set(world.core.documents) == DEVICES
        await world.system.manager()
        await eventually(lambda: world.core.state("system/manager") == b"ON")


async def test_what_is_deleted_soon_after_the_start_of_a_bridge_goes_at_once(world: BridgeWorld) -> None:
    await world.system.occupancy(occupancy_event())
    async with world.shown_bridge():
        await eventually(lambda: sensors(world))
    async with world.bridge():
        await eventually(lambda: world.core.state("availability") == b"online")
        await asyncio.sleep(1.0)
        await world.system.remove(status_document())
        await world.system.no_occupancy(occupancy_event())
        await eventually(lambda: set(world.core.documents) == DEVICES - {"ji_default_digits"} and not sensors(world))


async def test_a_removal_that_a_stop_interrupts_is_finished_by_the_next_bridge(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await world.system.picture(hard_sample(data=b"\xff\xd8\xff1"))
        await eventually(lambda: world.core.state("ji_default_digits/hard_sample"))
        await world.system.remove(status_document())
        await asyncio.sleep(1.0)
        assert world.core.state("ji_default_digits/hard_sample")
    async with world.bridge():
        await eventually(lambda: not messages_of_service(world), 2 * SETTLED_S)
        await eventually(lambda: b"ji_default_digits" not in world.core.retained[TOPICS.record])
        assert set(world.core.documents) == DEVICES - {"ji_default_digits"}


async def test_a_service_that_returns_while_it_is_removed_is_shown(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await world.system.remove(status_document())
        await world.shows(DEVICES - {"ji_default_digits"})
        await world.system.status(status_document(phase="Degraded"))
        await world.shows()
        await asyncio.sleep(SETTLED_S)
        assert world.core.state("ji_default_digits/problem") == b"ON"
        assert b"ji_default_digits" in world.core.retained[TOPICS.record]


async def test_all_is_published_again_when_home_assistants_broker_has_lost_it(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        world.target_broker.restart()
        world.core.retained.clear()
        await eventually(lambda: world.core.bus.connected)
        await world.shows()
        await eventually(lambda: world.core.state("availability") == b"online")
        assert world.core.state("ji_default_digits/upload_share") == b"12.5"


async def test_documents_are_published_again_when_home_assistant_has_started(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await asyncio.sleep(SETTLED_S)
        world.core.messages.clear()
        await world.core.birth()
        await eventually(lambda: world.core.count("/config") == len(DEVICES))
        for _ in range(20):  # a Home Assistant that restarts again and again
            await world.core.birth()
        await asyncio.sleep(SETTLED_S)
        assert world.core.count("/config") == len(DEVICES)


async def test_two_documents_of_a_device_are_some_seconds_apart(world: BridgeWorld) -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()
    async with world.shown_bridge():
        await asyncio.sleep(SETTLED_S)

        async def note(packet: Packet) -> None:
            times.append(loop.time())

        watcher = await world._connected("watcher", world.target_broker)
        await watcher.listen(TOPICS.document("ji_default_digits"), 1, note, 100)
        await asyncio.sleep(1.0)
        times.clear()  # of the retained one
        for number in range(30):  # the document has the type of the last picture
            data = b"\xff\xd8\xff" if number % 2 else b"\x89PNG"
            await world.system.picture(hard_sample(data=data))
            await asyncio.sleep(0.5)
        await asyncio.sleep(SETTLED_S)
    gaps = [second - first for first, second in itertools.pairwise(times)]
    assert gaps
    assert min(gaps) >= publishing.DOCUMENT_PAUSE_S


@pytest.mark.parametrize("ahead_s", [0, -3600, 3600])
async def test_a_second_bridge_of_the_name_ends_with_the_place_of_the_first_also_if_the_clocks_differ(
    world: BridgeWorld, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    async with world.shown_bridge() as first:
        now = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: now + ahead_s * 10**9)
        async with world.bridge("second") as second:
            with pytest.raises(SecondBridgeError, match=r"process \d+, since .*--name"):
                await asyncio.wait_for(second.task, 60)
            # its will is that of the same name
            await asyncio.sleep(1)
        await asyncio.sleep(SETTLED_S)
        assert not first.task.done()
        assert world.core.state("availability") == b"online"
        assert set(world.core.documents) == DEVICES


async def test_two_bridges_that_start_at_the_same_time_leave_one(world: BridgeWorld) -> None:
    async with world.bridge() as first, world.bridge("second") as second:
        await asyncio.sleep(SETTLED_S)
        assert [first.task.done(), second.task.done()].count(True) == 1
        await world.shows()
        assert world.core.state("availability") == b"online"


async def test_a_bridge_that_was_cut_off_ends_when_another_one_has_its_name(world: BridgeWorld) -> None:
    async with world.shown_bridge() as first:
        first.target.cut()
        await asyncio.sleep(60)
        async with world.bridge("second") as second:
            await eventually(lambda: world.core.state("availability") == b"online")
            first.target.heal()
            await eventually(lambda: first.task.done() or second.task.done(), 60)
            await asyncio.sleep(SETTLED_S)
            assert [first.task.done(), second.task.done()].count(True) == 1
            assert world.core.state("availability") == b"online"


async def test_bridges_of_two_names_share_a_broker(world: BridgeWorld) -> None:
    async with world.bridge(), world.bridge("other", DiscoveryTopics(system="other")) as other:
        await world.shows()
        await eventually(lambda: world.core.retained.get("homeassistant/device/other/node_edge0/config"))
        assert not other.task.done()
        await world.system.remove(status_document())
        await eventually(lambda: "homeassistant/device/other/ji_default_digits/config" not in world.core.retained)


async def test_documents_of_other_programs_below_the_prefix_are_left_alone(world: BridgeWorld) -> None:
    foreign = {"homeassistant/sensor/zigbee/config": b"{}", "homeassistant/device/0x1/config": b"{}"}
    for topic, payload in foreign.items():
        await world.core.bus.send(Packet(topic, payload, retain=True))
    async with world.bridge():
        await eventually(lambda: world.core.state("availability") == b"online")
        await asyncio.sleep(SETTLED_S)
        assert {topic: world.core.retained.get(topic) for topic in foreign} == foreign


@pytest.mark.parametrize("payload", [b"garbage", b"{}", b'{"program": "zigbee"}', b"\xff\xfe"])
async def test_a_topic_that_another_program_uses_is_refused_by_name(world: BridgeWorld, payload: bytes) -> None:
    await world.core.bus.send(Packet(TOPICS.record, payload, retain=True))
    async with world.bridge() as running:
        if payload == b"{}":  # a record without documents
            await world.shows()
            return
        with pytest.raises(InvalidFieldError, match=r"--name: 'halimede'.*another program uses.*published"):
            await asyncio.wait_for(running.task, 60)


async def test_a_camera_and_a_node_that_go_are_removed(world: BridgeWorld) -> None:
    async with world.bridge():
        await world.system.camera(camera_status("cam1"))
        await world.system.node(presence("edge1"))
        await world.shows(DEVICES | {"camera_default_cam1", "node_edge1"})
        await world.system.bus.clear(topics.CAMERA_STATUS.at(ns="default", camera="cam1"))
        await world.system.bus.clear(topics.PRESENCE.at(node="edge1"))
        await world.shows()


def sensors(world: BridgeWorld, camera: str = "cam0") -> dict[str, str]:
    """The ids of a camera's occupancy sensors by their names."""
    document = world.core.documents.get(f"camera_default_{camera}")
    entities = document.entities if document else {}
    return {entity.name: id_ for id_, entity in entities.items() if id_.startswith("occupancy_")}


def person_in_door(world: BridgeWorld) -> bytes | None:
    return world.core.state(f"camera_default_cam0/{sensors(world).get('person in door')}")


def events(world: BridgeWorld) -> list[dict[str, Any]]:
    topic = TOPICS.state("camera_default_cam0", "events_digits")
    return [json.loads(payload) for name, payload in world.core.messages if name == topic]


async def test_a_person_who_enters_is_a_sensor_that_is_on_and_an_event(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await world.system.occupancy(occupancy_event())
        await eventually(lambda: [event["event_type"] for event in events(world)] == ["entered"])
        assert (events(world)[0]["zone"], events(world)[0]["id"]) == ("door", occupancy_event().id)
        await eventually(lambda: person_in_door(world) == b"ON")
        await world.system.occupancy(occupancy_event(2, "left"))
        await eventually(lambda: person_in_door(world) == b"OFF")
        await eventually(lambda: [event["event_type"] for event in events(world)] == ["entered", "left"])


async def test_a_retained_occupancy_is_a_state_and_no_event(world: BridgeWorld) -> None:
    await world.system.occupancy(occupancy_event())
    async with world.bridge():
        await eventually(lambda: person_in_door(world) == b"ON")
        await asyncio.sleep(SETTLED_S)
        assert events(world) == []


async def test_an_event_that_arrives_twice_is_published_once(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        for _ in range(3):
            await world.system.occupancy(occupancy_event())
        await asyncio.sleep(SETTLED_S)
        assert len(events(world)) == 1


async def test_sensors_of_those_who_have_left_survive_a_restart(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await world.system.occupancy(occupancy_event())
        await world.system.occupancy(occupancy_event(2, "left"))
        await world.system.occupancy(occupancy_event(3, label="car", zone=""))
        await eventually(lambda: set(sensors(world)) == {"person in door", "car"})
        before = world.core.documents["camera_default_cam0"]
    async with world.bridge() as running:
        await eventually(lambda: world.core.state("availability") == b"online")
        world.core.messages.clear()
        await asyncio.sleep(SETTLED_S)
        assert running.bridge.view.occupancy.sensors
        assert world.core.documents["camera_default_cam0"] == before
        assert person_in_door(world) == b"OFF"


async def test_occupancy_that_is_removed_removes_its_entities_alone(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await world.system.occupancy(occupancy_event())
        await eventually(lambda: "person in door" in sensors(world))
        await world.system.no_occupancy(occupancy_event())
        await eventually(lambda: not sensors(world))
        document = world.core.documents["camera_default_cam0"]
        assert set(document.removed.values()) == {"binary_sensor", "event"}
        assert "problem" in document.entities


async def test_a_camera_that_publishes_its_own_frames_is_a_device_by_its_occupancy(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await world.system.occupancy(occupancy_event(camera="door-cam"))
        await world.shows(DEVICES | {"camera_default_door-cam"})
        await world.system.no_occupancy(occupancy_event(camera="door-cam"))
        await world.shows()


@pytest.mark.parametrize("label", ["<b>person</b>", "🦊" * 60, "a\nb", "\u202ex", "{{ now() }}", "\0", ""], ids=ascii)
async def test_any_label_and_zone_give_an_entity_with_a_name_on_one_line(world: BridgeWorld, label: str) -> None:
    async with world.shown_bridge():
        await world.system.occupancy(occupancy_event(label=label, zone=label))
        await eventually(lambda: len(sensors(world)) == 1)
        attributes = world.core.state(f"camera_default_cam0/{next(iter(sensors(world).values()))}/attributes")
        await eventually(lambda: [event["label"] for event in events(world)] == [label])
        assert json.loads(attributes or b"{}")["label"] == label


async def test_a_label_of_10_kb_is_no_message_of_a_worker_and_is_counted(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await world.system.occupancy(msgspec.structs.replace(occupancy_event(), label="x" * 10_240))
        await eventually(lambda: world.core.state("system/undelivered") == b"1")
        assert not sensors(world)


async def test_more_labels_than_a_camera_shows_are_counted_and_their_events_come(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        for number in range(100):
            await world.system.occupancy(occupancy_event(number, label=f"label {number}"))
        await eventually(lambda: len(events(world)) == 100)
        await eventually(lambda: len(sensors(world)) == MAX_CAMERA_SENSORS)
        await eventually(lambda: int(world.core.state("system/undelivered") or b"0") >= 100 - MAX_CAMERA_SENSORS)


async def test_200_events_a_second_arrive_in_their_order(world: BridgeWorld) -> None:
    async with world.shown_bridge() as running:
        await world.system.occupancy(occupancy_event(0))
        await eventually(lambda: len(events(world)) == 1)
        for number in range(1, 1001):
            await world.system.occupancy(occupancy_event(number, "left" if number % 2 else "entered", before=number))
            await asyncio.sleep(0.005)
        await eventually(lambda: len(events(world)) == 1001)
        assert [event["before"] for event in events(world)[1:]] == list(range(1, 1001))
        assert not sum(running.publisher.undelivered.values())
        # states are no events: far fewer messages, and the last one is right
        await eventually(lambda: person_in_door(world) == b"ON")


async def test_events_that_home_assistant_does_not_get_are_counted_and_nothing_waits(world: BridgeWorld) -> None:
    async with world.shown_bridge() as running:
        await world.system.occupancy(occupancy_event(0))
        await eventually(lambda: len(events(world)) == 1)
        running.target.cut()
        for number in range(1, 1501):
            await world.system.occupancy(occupancy_event(number))
        await eventually(lambda: running.publisher.undelivered["queue_full"] >= 500)
        await asyncio.sleep(publishing.EVENT_S + 5.0)
        running.target.heal()
        await eventually(lambda: running.publisher.undelivered["too_old"] == 1000)
        assert len(events(world)) == 1
        await eventually(lambda: world.core.state("system/undelivered") == b"1500")


async def test_events_without_a_home_assistant_are_counted(world: BridgeWorld) -> None:
    async with world.shown_bridge() as running:
        await world.system.occupancy(occupancy_event(0))
        await eventually(lambda: len(events(world)) == 1)
        await world.core.bus.unlisten(f"homeassistant/{DiscoveryListener.states}")
        await world.system.occupancy(occupancy_event(1))
        await eventually(lambda: running.publisher.undelivered["no_subscriber"] == 1)


async def test_a_refusal_is_shown_once_and_a_newer_problem_replaces_it(world: BridgeWorld) -> None:
    async with world.shown_bridge() as running:
        running.publisher.refusal = "refused"
        await eventually(lambda: world.core.state("system/last_problem") == b"refused")
        running.bridge._report("newer")
        await asyncio.sleep(SETTLED_S)
        assert world.core.state("system/last_problem") == b"newer"


async def test_garbage_on_the_systems_topics_is_counted_and_shown(world: BridgeWorld) -> None:
    async with world.shown_bridge():
        await world.system.bus.send(
            Packet("default/sedna/status/jointinferenceservices/digits", b"garbage", retain=True)
        )
        await eventually(lambda: world.core.state("system/undelivered") == b"1")
        attributes: dict[str, Any] = json.loads(world.core.state("system/undelivered/attributes") or b"{}")
        assert attributes["not_read"] == 1


async def test_the_latest_states_arrive_after_an_outage_of_home_assistants_broker(world: BridgeWorld) -> None:
    async with world.shown_bridge() as running:
        running.target.cut()
        await eventually(lambda: world.core.state("availability") == b"offline", 120)
        for number in range(500):
            await world.system.status(status_document(metrics={"queued": str(number)}))
        assert running.publisher.pending < 100
        running.target.heal()
        await eventually(lambda: world.core.state("ji_default_digits/queue") == b"499")
        await eventually(lambda: world.core.state("availability") == b"online")
