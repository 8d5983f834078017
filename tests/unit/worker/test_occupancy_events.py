"""Occupancy events of a service: made by its eldest edge worker of the results of all, and retained by the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from halimede import codec, topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.api.occupancy import Occupancy, Zone
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.contract.examples import EXAMPLES
from halimede.errors import RefusedError
from halimede.frames import new_frame, new_id
from halimede.messages import Box, OccupancyEvent, Prediction, PresentObjects, Result
from halimede.worker.occupancy_publisher import CHECK_S, MAX_WAITING, REFUSED_S, RETAINED_S, OccupancyPublisher
from tests.simulated import eventually
from tests.unit.worker.world import NS, SERVICE, World, world

pytestmark = pytest.mark.simulated

ZONE = Zone(name="left", camera="cam0", polygon=[[0, 0], [0.5, 0], [0.5, 1], [0, 1]])
RULES = Occupancy(min_frames=2, hold_s=1.0, zones=[ZONE])
WHOLE, AT_ONCE = Occupancy(min_frames=2, hold_s=1.0), Occupancy(min_frames=1, hold_s=0)
EMPTY, PERSON = 0, 1
TWO_CAMERAS = FrameSourceSpec(cameras=["cam0", "cam1"])
CAM0 = topics.OCCUPANCY.at(ns=NS, service=SERVICE, camera="cam0")


class Detector:
    """Answers pictures with the value 1 by a person in their left half."""

    def predict(self, data: Any) -> dict[str, Any]:
        return {"boxes": [[0, 0, 2, 3, 0.9, "person"]] if int(np.asarray(data).flat[0]) else []}


@pytest.fixture
async def events(w: World) -> list[OccupancyEvent]:
    return await w.hears(topics.OCCUPANCY.filter())


Events = list[OccupancyEvent]


def edge(w: World, name: str, rules: Occupancy | None = RULES) -> AbstractAsyncContextManager[asyncio.Event]:
    return w.worker("edge", name, Detector, hem_name="EdgeOnly", hem_parameters={}, occupancy=rules)


async def show(w: World, value: int, frames: int) -> None:
    """Show so many frames, two a second, and wait until each is answered."""
    for _ in range(frames):
        frame = new_frame(np.full((4, 4), value, np.uint8))
        frame.captured_ns = 10**18 + round(asyncio.get_running_loop().time() * 10**9)
        await w.answer(await w.show(frame))
        await asyncio.sleep(0.5)


def texts(events: list[OccupancyEvent]) -> list[str]:
    return [f"{event.sequence} {event.type} {event.zone or 'picture'} {event.count}" for event in events]


def retained(broker: MemoryBroker) -> OccupancyEvent | None:
    payload = broker.retained_payload(CAM0.text)
    return codec.decode(topics.OCCUPANCY, payload) if payload else None


async def test_a_person_enters_and_leaves_once_also_over_a_restart(w: World, events: Events) -> None:
    async with edge(w, "e"):
        await show(w, PERSON, 5)
        await eventually(lambda: len(events) == 2)
    async with edge(w, "another"):
        await show(w, PERSON, 5)
        await show(w, EMPTY, 10)
        await eventually(lambda: len(events) == 4)
    assert texts(events) == ["1 entered picture 1", "2 entered left 1", "3 left picture 0", "4 left left 0"]
    entered = events[0]
    assert (entered.service, entered.camera, entered.label, entered.before) == (SERVICE, "cam0", "person", 0)
    assert entered.frame in w.results
    assert entered.boxes == [Box(0.0, 0.0, 0.5, 0.75, 0.9, "person")]
    present = [(objects.label, objects.zone, objects.count) for objects in events[1].present]
    assert present == [("person", "", 1), ("person", "left", 1)]
    last = retained(w.broker)
    assert last is not None
    assert (last.type, last.present) == ("left", [])


async def test_workers_that_share_a_camera_make_each_event_once_and_the_next_one_continues(
    w: World, events: Events
) -> None:
    async with edge(w, "old") as stop, edge(w, "young"):
        await show(w, PERSON, 10)
        assert {result.worker for result in w.results.values()} == {"old", "young"}
        assert texts(events) == ["1 entered picture 1", "2 entered left 1"]
        stop.set()
        await asyncio.sleep(5)
        await show(w, PERSON, 10)
        assert len(events) == 2
        await show(w, EMPTY, 10)
        assert texts(events[2:]) == ["3 left picture 0", "4 left left 0"]
    assert w.letters == []


async def test_a_worker_that_loses_its_connection_gives_the_events_to_the_next_and_takes_none_back(
    w: World, events: Events
) -> None:
    async with edge(w, "old", WHOLE), edge(w, "young", WHOLE):
        await show(w, PERSON, 5)
        old = [bus for client_id, bus in w.buses.items() if ".old" in client_id]
        for bus in old:
            bus.cut()
        await asyncio.sleep(10)
        await show(w, EMPTY, 5)
        for bus in old:
            bus.heal()
        await asyncio.sleep(10)
        await show(w, EMPTY, 5)
        await show(w, PERSON, 5)
    assert texts(events) == ["1 entered picture 1", "2 left picture 0", "3 entered picture 1"]


async def test_objects_of_a_zone_that_is_no_longer_configured_have_left(w: World, events: Events) -> None:
    async with edge(w, "e"):
        await show(w, PERSON, 5)
    async with edge(w, "e", WHOLE):
        await eventually(lambda: len(events) == 3)
        await show(w, PERSON, 5)
    assert texts(events) == ["1 entered picture 1", "2 entered left 1", "3 left left 0"]
    assert [(objects.zone, objects.count) for objects in events[-1].present] == [("", 1)]
    assert (events[-1].frame, events[-1].boxes) == ("", [])


async def test_a_service_without_occupancy_neither_reads_results_nor_measures_pictures(w: World) -> None:
    async with edge(w, "e", None):
        await show(w, PERSON, 3)
        results = topics.RESULT.filter(ns=NS, service=SERVICE).text
        assert results not in w.broker.sessions["worker.default.e"].filters
    assert {result.size for result in w.results.values()} == {None}


class Leader:
    """The workers of a service as a worker sees them that leads, unless told otherwise."""

    connected, worker = True, "e"
    present_leader = "e"

    def leader(self) -> str:
        return self.present_leader

    def on_change(self, hook: object) -> None:
        pass


class Publisher(OccupancyPublisher):
    """An occupancy publisher on a connection of its own, without the rest of a worker."""

    def __init__(self, w: World, name: str, rules: Occupancy, **changes: Any) -> None:
        self.bus, self.leader = MemoryBus(name, w.broker), Leader()
        super().__init__(self.bus, w.settings("edge", "e", **changes), rules, self.leader)  # type: ignore[arg-type]

    def metric(self, name: str) -> float:
        samples = [sample for metric in self.metrics() for sample in metric.samples]
        return sum(sample.value for sample in samples if sample.name.startswith(f"halimede_worker_occupancy_{name}"))

    def take(self, *labels: str) -> None:
        """Take the result of a frame as if it had arrived."""
        address = topics.RESULT.at(ns=NS, service=SERVICE)
        names = {"ns": NS, "service": SERVICE}
        self._on_result(Delivery(address, names, result_of(*labels), Packet(address.text, b"")))


async def refuse(subject: Any, *_: object, **__: object) -> None:
    raise RefusedError(subject.text, 0x87, "not authorised")


@asynccontextmanager
async def publisher(
    w: World, name: str = "p", rules: Occupancy = WHOLE, *, leader: str = "e", refused: str = "", **changes: Any
) -> AsyncIterator[Publisher]:
    """Run a publisher; the broker refuses the calls of one method of its connection until that is deleted."""
    running = Publisher(w, name, rules, **changes)
    running.leader.present_leader = leader
    if refused:
        setattr(running.bus, refused, refuse)
    async with running.bus as bus:
        await bus.wait_connected(1)
        await running.start()
        await asyncio.sleep(0.5)
        task = asyncio.create_task(running.run())
        await asyncio.sleep(0.1)
        try:
            yield running
        finally:
            await running.drain()
            task.cancel()


def result_of(*labels: str, **fields: Any) -> Result:
    """Return the result of a frame that shows one object of each label."""
    values = {"camera": "cam0", "size": [4, 4], "captured_ns": time.time_ns(), **fields}
    prediction = Prediction(boxes=[Box(0, 0, 2, 3, 0.9, label) for label in labels])
    return Result(id=new_id().hex(), service=SERVICE, by="edge", worker="e", prediction=prediction, **values)


async def answer(w: World, *labels: str, frames: int = 2, **fields: Any) -> None:
    """Publish the results of frames that show one object of each label."""
    for _ in range(frames):
        await w.camera.publish(topics.RESULT.at(ns=NS, service=SERVICE), result_of(*labels, **fields))
    await asyncio.sleep(0.1)


async def test_two_workers_that_both_make_events_give_the_same_event_the_same_id(w: World, events: Events) -> None:
    async with publisher(w, "p"), publisher(w, "q"):
        await answer(w, "person")
        await answer(w, "person", "person")
        await eventually(lambda: len(events) == 4)
    assert sorted(texts(events)) == ["1 entered picture 1"] * 2 + ["2 changed picture 2"] * 2
    assert len({event.id for event in events}) == 2


async def test_a_worker_that_no_longer_leads_publishes_nothing_and_continues_from_the_others_events(
    w: World, events: Events
) -> None:
    async with publisher(w) as p:
        p.leader.present_leader = "other"
        await asyncio.sleep(2 * CHECK_S)
        await answer(w, "person")
        assert events == []
        present = [PresentObjects(label="person", count=1, since_ns=5)]
        example = EXAMPLES[topics.OCCUPANCY.id]
        entered = msgspec.structs.replace(example, camera="cam0", zone="", sequence=41, present=present)
        await w.camera.publish(CAM0, entered)
        p.leader.present_leader = "e"
        await asyncio.sleep(2 * CHECK_S)
        await answer(w, "person")
        await answer(w, "person", "person")
        assert texts(events[1:]) == ["42 changed picture 2"]
        assert events[-1].since_ns == 5


async def test_events_wait_for_the_broker_and_the_oldest_are_dropped_and_counted(w: World, events: Events) -> None:
    async with publisher(w, rules=AT_ONCE) as p:
        count = MAX_WAITING + 100
        p.bus.cut()
        for number in range(count):
            p.take(*["person"] * (number % 2 == 0))
        assert (p.metric("waiting_events"), p.metric("dropped_events_total")) == (MAX_WAITING, 100)
        p.bus.heal()
        await eventually(lambda: len(events) == MAX_WAITING, 60)
        assert [event.sequence for event in events] == list(range(101, count + 1))
        assert retained(w.broker) == events[-1]


@pytest.mark.parametrize("leads_after", [True, False])
async def test_events_that_wait_here_do_not_follow_those_that_another_worker_has_published_meanwhile(
    w: World, events: Events, leads_after: bool
) -> None:
    async with publisher(w) as p:
        await answer(w, "person")
        p.bus.cut()
        for _ in range(2):
            p.take("person", "person")
        assert p.metric("waiting_events") == 1
        last = msgspec.structs.replace(events[-1], id="f" * 32, sequence=9, type="left", count=0, before=1, present=[])
        await w.camera.publish(CAM0, last)
        p.leader.present_leader = "e" if leads_after else "other"
        p.bus.heal()
        await asyncio.sleep(RETAINED_S + 10)
        assert retained(w.broker) == last
        assert (p.metric("waiting_events"), p.metric("dropped_events_total")) == (0, 1)
        await answer(w, "person")
        assert texts(events[2:]) == (["10 entered picture 1"] if leads_after else [])


@pytest.mark.parametrize(
    ("leader", "method", "topic"), [("e", "subscribe_now", "result"), ("other", "subscribe", "occupancy/+")]
)
async def test_a_refused_subscription_is_reported_and_tried_again(
    w: World, events: Events, leader: str, method: str, topic: str
) -> None:
    async with publisher(w, leader=leader, refused=method) as p:
        text = f"the broker refused default/sedna/inference/helmet/{topic}: not authorised (0x87)"
        assert p.trouble == f"no occupancy events: {text}"
        delattr(p.bus, method)
        await asyncio.sleep(2 * REFUSED_S)
        await answer(w, "person")
        assert (p.trouble, len(events)) == ("", int(leader == "e"))


@pytest.mark.parametrize("leads_after", [True, False])
async def test_a_refused_event_is_reported_until_one_is_published_or_another_worker_leads(
    w: World, leads_after: bool
) -> None:
    async with publisher(w, refused="publish") as p:
        await answer(w, "person")
        await asyncio.sleep(2 * CHECK_S)
        assert "not authorised" in p.trouble
        assert p.metric("dropped_events_total") == 1
        del p.bus.publish
        if leads_after:
            await answer(w, "person", "person")
        else:
            p.leader.present_leader = "other"
        await asyncio.sleep(2 * CHECK_S)
        assert p.trouble == ""


async def test_an_event_that_is_too_large_for_the_broker_is_dropped_and_the_next_one_is_published(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, MemoryBroker(max_packet=10_000)) as w, publisher(w, rules=AT_ONCE) as p:
        events = await w.hears(topics.OCCUPANCY.filter())
        p.take(*[f"{i}" + "x" * 120 for i in range(200)])
        await asyncio.sleep(1)
        assert "10000" in p.trouble
        assert p.metric("dropped_events_total") > 0
        p.take()
        p.take("person")
        await eventually(lambda: events and events[-1].label == "person")
        assert p.trouble == ""


async def test_after_the_broker_lost_its_events_those_of_cameras_whose_results_a_leader_has_are_published_again(
    w: World,
) -> None:
    async with publisher(w, source=TWO_CAMERAS) as p:
        cam1 = topics.OCCUPANCY.at(ns=NS, service=SERVICE, camera="cam1")
        await w.camera.publish(cam1, msgspec.structs.replace(EXAMPLES[topics.OCCUPANCY.id], camera="cam1"))
        await answer(w, "person")
        first = retained(w.broker)
        w.broker.restart()
        await asyncio.sleep(RETAINED_S + 10)
        assert first is not None
        assert retained(w.broker) == first
        assert w.broker.retained_payload(cam1.text) is None
        assert p.metric("waiting_events") == 0


async def test_the_last_event_is_published_again_if_the_broker_comes_back_with_an_earlier_one(
    w: World, events: Events
) -> None:
    async with publisher(w) as p:
        await answer(w, "person")
        await answer(w, "person", "person")
        first, last = events
        p.bus.cut()
        w.broker.restart()
        await w.camera.wait_connected(10)
        await w.camera.publish(CAM0, first)
        p.bus.heal()
        await asyncio.sleep(RETAINED_S + 10)
        assert retained(w.broker) == last


async def test_the_retained_event_of_a_quiet_camera_stays_known_however_many_events_others_have(
    w: World, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halimede.worker.occupancy_publisher.MAX_IDS", 4)
    async with publisher(w, rules=AT_ONCE, source=TWO_CAMERAS) as p:
        await answer(w, "person", frames=1)
        for _ in range(5):
            await answer(w, "person", frames=1, camera="cam1")
            await answer(w, frames=1, camera="cam1")
        p.bus.cut()
        p.take("person", "person")
        p.bus.heal()
        await asyncio.sleep(RETAINED_S + 10)
        assert p.metric("dropped_events_total") == 0
        assert texts(events)[-1] == "2 changed picture 2"


@pytest.mark.parametrize(
    "fields",
    [{"camera": "another"}, {"camera": ""}, {"camera": "Cam 0/#"}, {"size": None}],
    ids=["another camera", "no camera", "no name", "no size"],
)
@pytest.mark.parametrize("source", [FrameSourceSpec(cameras=["cam0"]), FrameSourceSpec(path="/data")], ids=["", "path"])
async def test_results_that_cannot_be_used_are_counted(
    w: World, events: Events, fields: dict[str, Any], source: FrameSourceSpec
) -> None:
    async with publisher(w, source=source) as p:
        await answer(w, "person", **fields)
        is_name = source.path and fields.get("camera") == "another"
        assert (p.metric("unusable_results_total"), len(events)) == ((0, 1) if is_name else (2, 0))


async def test_a_result_that_its_worker_sends_again_counts_once(w: World, events: Events) -> None:
    async with publisher(w):
        result = result_of("person")
        for _ in range(5):
            await w.camera.publish(topics.RESULT.at(ns=NS, service=SERVICE), result)
        await asyncio.sleep(1)
        assert events == []


async def test_a_cleared_event_is_forgotten_and_a_damaged_one_is_refused(w: World, events: Events) -> None:
    await w.camera.send(Packet(CAM0.text, b"{", qos=1, retain=True))
    async with publisher(w) as p:
        await answer(w, "person")
        await w.camera.clear(CAM0)
        p.leader.present_leader = "other"
        await asyncio.sleep(2 * CHECK_S)
        p.leader.present_leader = "e"
        await asyncio.sleep(2 * CHECK_S)
        await answer(w, "person")
        assert [event.type for event in events] == ["entered", "entered"]
