"""Publishes what Home Assistant should have: the difference between the desired retained messages and the published.

``set_device`` and ``remove_device`` change the desired messages, one payload for each topic, so a slow broker gets the
latest states and never a queue of old ones. ``run`` sends what the broker has not acknowledged yet: the record first,
then documents and states. Events are no states: they wait in a bounded queue, for a limited time. After each connection
all is sent again, since the broker may have lost it; when Home Assistant starts, the documents are.

Home Assistant skips a part of a document that arrives while it still works on the one before, so two documents of a
device are some seconds apart. The first event of a new entity waits until Home Assistant has subscribed to it. The
states of removed entities are cleared after the document that removes them: Home Assistant would read empty ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import structlog

from halimede.bridges.homeassistant.discovery import (
    OFFLINE,
    ONLINE,
    DeviceState,
    DiscoveryTopics,
    device_messages,
    removal_messages,
)
from halimede.bridges.homeassistant.published_record import OccupancySensor, PublishedRecord
from halimede.bus.message import FAILURE, NO_SUBSCRIBER, REASONS, Announcement, Packet
from halimede.bus.port import Bus
from halimede.errors import DisconnectedError, TooLargeError
from halimede.log import RateLimitedLogger

log = structlog.get_logger()

#: most messages that wait for their acknowledgements
MAX_IN_FLIGHT = 32
#: most events that wait, and seconds after which one is no news
MAX_EVENTS, EVENT_S = 1000, 60
#: seconds between two documents of a device, and between the document with an entity for events and its first event
DOCUMENT_PAUSE_S, FIRST_EVENT_S = 3.0, 1.0
#: seconds after which the states of removed entities are cleared, in addition to the pause of their document
CLEAR_S = 2.0
#: least seconds between two passes, so that many changes become one message; and between two births that count
PASS_S, BIRTH_S = 0.05, 3.0
#: what did not reach Home Assistant, by the names in the attributes of its sensor
NO_SUBSCRIBER_COUNT, QUEUE_FULL, TOO_OLD, REFUSED = "no_subscriber", "queue_full", "too_old", "refused"


def availability_will(topics: DiscoveryTopics) -> Announcement:
    """Return the announcement of the bridge's connection: its will makes all entities unavailable."""
    return Announcement(will=Packet(topics.availability, OFFLINE, retain=True))


@dataclass(frozen=True, slots=True)
class _Event:
    """An event of a device, and the loop time until which it is news."""

    device: str
    topic: str
    payload: bytes
    expires: float


class DiscoveryPublisher:
    """Publishes documents, states and events: ``run`` until cancelled.

    ``bus`` is connected by the caller. ``record``: what the last bridge of this name has published.
    """

    def __init__(self, bus: Bus, topics: DiscoveryTopics, record: PublishedRecord) -> None:
        self._bus = bus
        self._topics = topics
        #: platforms of the entities of each published document, by device
        self._documents: dict[str, Mapping[str, str]] = dict(record.documents)
        self._sensors: tuple[OccupancySensor, ...] = tuple(record.sensors)
        self._is_record_old = False
        #: platforms of entities that the last bridge has published and this one has not, by device: they may still
        #: arrive, so they stay
        self._awaited: dict[str, Mapping[str, str]] = dict(record.documents)
        #: of each device that is being removed the topics whose empty messages the broker has not acknowledged
        self._removing: dict[str, set[str]] = {}
        #: the desired payload of each topic; an empty one is kept until the broker has removed the message
        self._desired: dict[str, bytes] = {}
        #: topics whose payload the broker has not acknowledged, in the order of their changes
        self._pending: dict[str, None] = {}
        #: loop times before which a document or an empty state, and events, must not be sent, by topic. Events of a
        #: topic that is missing wait for their document
        self._earliest: dict[str, float] = {}
        self._events_from: dict[str, float] = {}
        self._events: deque[_Event] = deque()
        self._changed = asyncio.Event()
        self._is_connected = asyncio.Event()
        self._last_birth = -BIRTH_S
        self._limited_log = RateLimitedLogger()
        #: counts of what did not reach Home Assistant
        self.undelivered = dict.fromkeys((NO_SUBSCRIBER_COUNT, QUEUE_FULL, TOO_OLD, REFUSED), 0)
        #: the last message that the broker refused, with the reason; empty: none
        self.refusal = ""

    @property
    def pending(self) -> int:
        """The number of messages that the broker has not acknowledged."""
        return len(self._pending) + len(self._events)

    def set_device(self, device: DeviceState) -> None:
        """Set what Home Assistant should have of a device."""
        awaited = _without(self._awaited.pop(device.id, {}), device.platforms)
        if awaited:
            self._awaited[device.id] = awaited
        self._removing.pop(device.id, None)
        remembered = self._documents.get(device.id, {})
        messages = device_messages(self._topics, device, _without(remembered, awaited))
        platforms = {**awaited, **messages.platforms}
        # in the order of their removals too, which a comparison of mappings does not have
        if list(remembered.items()) != list(platforms.items()):
            self._documents[device.id] = platforms
            self._renew_record()
        for topic, payload in messages.payloads.items():
            self._set(topic, payload)

    def remove_device(self, device: str) -> None:
        """Remove the device with this id and all its messages, unless only the last bridge has published it."""
        is_own = self._topics.document(device) in self._desired or device not in self._awaited
        if device not in self._documents or device in self._removing or not is_own:
            return
        topics = self._removing[device] = set()
        for topic in removal_messages(self._topics, device, self._documents[device]):
            if self._desired.get(topic) == b"" and topic not in self._pending:
                del self._desired[topic]  # it was removed while the device still existed
            else:
                topics.add(topic)
                self._set(topic, b"")

    def remove_absent(self, devices: set[str]) -> None:
        """Remove what the last bridge has published and no longer exists: only ``devices`` do."""
        self._awaited.clear()
        for device in self._documents.keys() - devices:
            self.remove_device(device)

    def set_available(self, *, available: bool) -> None:
        """Set whether the entities show a state: the bridge runs and is connected to the system."""
        self._set(self._topics.availability, ONLINE if available else OFFLINE)

    def set_sensors(self, sensors: tuple[OccupancySensor, ...]) -> None:
        """Set the occupancy sensors that the record keeps."""
        if sensors != self._sensors:
            self._sensors = sensors
            self._renew_record()

    def has_events(self, topic: str) -> bool:
        """Whether a document with the entity for the events of a topic was published."""
        return topic in self._events_from

    def post_event(self, device: str, topic: str, payload: bytes) -> None:
        """Publish an event of a device; a full queue drops its oldest one, which is counted."""
        if len(self._events) >= MAX_EVENTS:
            self._events.popleft()
            self.undelivered[QUEUE_FULL] += 1
        self._events.append(_Event(device, topic, payload, asyncio.get_running_loop().time() + EVENT_S))
        self._changed.set()

    async def start(self) -> None:
        """Subscribe to Home Assistant's birth and to the own availability. Raises RefusedError."""
        self._bus.on_connect(self._connected)
        await self._bus.listen(self._topics.birth, 1, self._on_birth, 8, drop_oldest=True)
        await self._bus.listen(self._topics.availability, 1, self._on_availability, 8, drop_oldest=True)
        self._is_connected.set()

    async def run(self) -> None:
        """Send what is not published yet, until cancelled."""
        while True:
            await self._wait_for_change()
            self._changed.clear()
            try:
                await self._send_events()
                await self._send_pending()
            except DisconnectedError:
                self._changed.set()
                if not self._bus.connected:  # otherwise only an acknowledgement is late
                    self._is_connected.clear()
            await asyncio.sleep(PASS_S)

    # --- desired messages -------------------------------------------------------------------------------------------

    def _set(self, topic: str, payload: bytes) -> None:
        """Make a payload the desired one of a topic."""
        if self._desired.get(topic) == payload:
            return
        self._desired[topic] = payload
        self._pending.pop(topic, None)
        self._pending[topic] = None
        self._changed.set()
        if not self._topics.is_document(topic):
            self._earliest.pop(topic, None)
            if not payload:
                self._earliest[topic] = asyncio.get_running_loop().time() + DOCUMENT_PAUSE_S + CLEAR_S

    def _renew_record(self) -> None:
        """Publish the record again, before anything else."""
        self._is_record_old = True
        self._changed.set()

    def _record(self) -> bytes:
        """Return the payload of the present record."""
        documents = {device: dict(platforms) for device, platforms in self._documents.items()}
        return msgspec.json.encode(PublishedRecord(documents=documents, sensors=list(self._sensors)))

    # --- sending ----------------------------------------------------------------------------------------------------

    async def _wait_for_change(self) -> None:
        """Wait until there is something to send, a document's pause is over, and there is a connection."""
        if not self._changed.is_set():
            now = asyncio.get_running_loop().time()
            waiting = [time for topic, time in self._earliest.items() if topic in self._pending]
            waiting += [
                self._events_from[event.topic] for event in [*self._events][:1] if event.topic in self._events_from
            ]
            due = min(waiting, default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                    await self._changed.wait()
        await self._is_connected.wait()

    async def _send_events(self) -> None:
        """Send the waiting events in their order. Raises DisconnectedError."""
        while self._events:
            now, batch = asyncio.get_running_loop().time(), list[_Event]()
            while self._events and len(batch) < MAX_IN_FLIGHT:
                event = self._events[0]
                if event.expires <= now:
                    self.undelivered[TOO_OLD] += 1
                elif self._must_wait(event, now):
                    break
                else:
                    batch.append(event)
                self._events.popleft()
            if not batch:
                return
            packets = [Packet(event.topic, event.payload, expiry_s=EVENT_S) for event in batch]
            outcomes = await asyncio.gather(*map(self._send, packets), return_exceptions=True)
            failed = [event for event, outcome in zip(batch, outcomes, strict=True) if isinstance(outcome, Exception)]
            for event in reversed(failed):
                self._events.appendleft(event)
            self.undelivered[NO_SUBSCRIBER_COUNT] += sum(outcome == NO_SUBSCRIBER for outcome in outcomes)
            _raise_first(outcomes)

    def _must_wait(self, event: _Event, now: float) -> bool:
        """Whether Home Assistant may not have subscribed to an event's topic yet."""
        if event.topic in self._events_from:
            return self._events_from[event.topic] > now
        return self._topics.document(event.device) in self._pending

    async def _send_pending(self) -> None:
        """Send the desired messages that are not acknowledged. Raises DisconnectedError."""
        while batch := self._batch():
            outcomes = await asyncio.gather(*map(self._publish, batch), return_exceptions=True)
            _raise_first(outcomes)

    def _batch(self) -> list[str]:
        """Return the topics to send next: the record alone, since it must name what is published after it."""
        if self._is_record_old:
            self._is_record_old = False
            self._set(self._topics.record, self._record())
        if self._topics.record in self._pending:
            return [self._topics.record]
        now = asyncio.get_running_loop().time()
        ready = (topic for topic in self._pending if self._earliest.get(topic, 0.0) <= now)
        return [topic for topic, _ in zip(ready, range(MAX_IN_FLIGHT), strict=False)]

    async def _publish(self, topic: str) -> None:
        """Publish the desired payload of a topic. Raises DisconnectedError."""
        payload, loop = self._desired[topic], asyncio.get_running_loop()
        device = self._topics.device_of(topic)
        if self._topics.is_document(topic):
            self._earliest[topic] = loop.time() + DOCUMENT_PAUSE_S
        await self._send(Packet(topic, payload, retain=True))
        if self._desired.get(topic) != payload:
            return  # it has changed meanwhile
        self._pending.pop(topic, None)
        if self._topics.is_document(topic):
            self._allow_events(device)
        if not payload:
            self._earliest.pop(topic, None)
        if not payload and device in self._removing:
            del self._desired[topic]
            self._finish_removal(device, topic)

    def _finish_removal(self, device: str, topic: str) -> None:
        """Note that a message of a device is removed; with the last one, the record no longer needs the device."""
        self._removing[device].discard(topic)
        if not self._removing[device]:
            del self._removing[device], self._documents[device]
            self._awaited.pop(device, None)
            self._renew_record()

    def _allow_events(self, device: str) -> None:
        """Let the events of a device's entities follow its document, and forget entities that are gone."""
        entities = {} if device in self._removing else self._documents.get(device, {})
        topics = {self._topics.state(device, id_) for id_, platform in entities.items() if platform == "event"}
        begin = self._topics.state(device, "")
        for topic in [topic for topic in self._events_from if topic.startswith(begin) and topic not in topics]:
            del self._events_from[topic]
        for topic in topics:
            self._events_from.setdefault(topic, asyncio.get_running_loop().time() + FIRST_EVENT_S)

    async def _send(self, packet: Packet) -> int:
        """Send a packet; return the reason code. A refused one is counted. Raises DisconnectedError."""
        try:
            reason = await self._bus.send(packet)
            cause = REASONS.get(reason, f"reason {reason:#04x}")
        except TooLargeError as error:
            reason, cause = FAILURE, str(error)
        if reason >= FAILURE:
            self.undelivered[REFUSED] += 1
            self.refusal = f"the broker of Home Assistant refuses {packet.topic}: {cause}"
            self._limited_log.warning("message refused", topic=packet.topic, reason=cause)
        return reason

    # --- what arrives -----------------------------------------------------------------------------------------------

    async def _connected(self) -> None:
        """Send all again: the broker may have lost it, and the will has replaced the availability."""
        self._pending = dict.fromkeys(self._desired)
        self._earliest.clear()
        self._is_connected.set()
        self._changed.set()

    async def _on_birth(self, packet: Packet) -> None:
        """Send the documents again when Home Assistant has started."""
        now = asyncio.get_running_loop().time()
        if bytes(packet.payload) != ONLINE or packet.retain or now - self._last_birth < BIRTH_S:
            return
        self._last_birth = now
        log.info("home assistant has started")
        for topic in self._desired:
            if self._topics.is_document(topic):
                self._pending[topic] = None
        self._changed.set()

    async def _on_availability(self, packet: Packet) -> None:
        """Publish the availability again if the will of an earlier bridge has replaced it."""
        desired = self._desired.get(self._topics.availability)
        if desired is not None and bytes(packet.payload) != desired and not packet.retain:
            self._pending[self._topics.availability] = None
            self._changed.set()


def _without(platforms: Mapping[str, str], excluded: Mapping[str, str]) -> dict[str, str]:
    """Return the platforms of entities that are not in ``excluded``."""
    return {id_: platform for id_, platform in platforms.items() if id_ not in excluded}


def _raise_first(outcomes: list[int | BaseException] | list[BaseException | None]) -> None:
    """Raise the first error of several outcomes, if there is one."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
