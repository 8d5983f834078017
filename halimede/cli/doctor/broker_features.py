"""The checks of ``doctor`` for the features and limits of a broker: by what it announces, and by trying them.

A broker announces features in its CONNACK, and may have less: it grants a subscription and delivers nothing, or
acknowledges a message and drops it. So ``try_features`` publishes messages to itself, on topics of a camera that does
not exist. ``limits`` and ``judge`` are pure: their rows say what is missing, what follows from that, and which option
of the broker sets it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from halimede import topics
from halimede.access.emqx import MAX_PACKET_KIB
from halimede.access.mosquitto import MAX_INFLIGHT, MAX_PACKET, MAX_QUEUED
from halimede.bus import Bus
from halimede.bus.message import FAILURE, NO_SUBSCRIBER, Announcement, Grants, Packet
from halimede.bus.mqtt import MqttBus
from halimede.bus.settings import MqttSettings
from halimede.codec import MAX_BYTES
from halimede.errors import BusError, DisconnectedError, RefusedError
from halimede.health_checks.check import Check, ok, problem, warning

#: the name of the check
NAME = "limits"
#: in-flight publishes that a broker should accept: with fewer, frames of fast cameras wait for one another
RECEIVE_MAXIMUM = 100
#: messages that are tried for a client without a connection, twice as many as may be in flight, and bytes of each
QUEUED, QUEUED_BYTES = 2 * RECEIVE_MAXIMUM, 512
#: seconds for a connection; for a small message; for a further one of several; for a large one
CONNECT_S, ARRIVAL_S, IDLE_S, LARGE_S = 3.0, 2.0, 1.0, 10.0
#: bytes of the messages that are tried before the largest possible one
SIZES = (64 * 1024, 1024 * 1024, 4 * 1024 * 1024)
#: bytes of a message that almost every camera sends: without them nothing works
ORDINARY = 1024 * 1024
#: bytes of topic and properties; seconds for which a retained message or a session stays if this process is killed
RESERVED, EXPIRY_S = 1024, 60
#: the content of small messages
TEXT = b"halimede doctor"
#: bytes of FlashMQ's buffer for a client: with less it drops the largest frames
FLASHMQ_BUFFER = 32 * 1024 * 1024
#: brokers that have everything
GOOD = "Mosquitto 2 or EMQX 5"


class Software(StrEnum):
    """Brokers whose options are known, by a part of the version that they report."""

    MOSQUITTO = "Mosquitto"
    EMQX = "EMQX"
    FLASHMQ = "FlashMQ"
    RABBITMQ = "RabbitMQ"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that halimede needs of a broker."""

    #: the observation that it is missing; empty: the check has a text with numbers
    missing: str
    #: what follows if it is missing
    follows: str
    #: settings by which brokers have it; a broker that is not listed has it always, or never
    options: Mapping[Software, str]
    #: without it there is a problem, else a warning
    is_essential: bool = True


class Feature(Enum):
    """What a broker should have; the value is its ``Requirement``."""

    SHARED = Requirement(
        "the broker does not support shared subscriptions",
        "the workers of a service cannot share its frames and requests",
        {Software.EMQX: "mqtt.shared_subscription = true"},
    )
    RETAINED = Requirement(
        "the broker does not support retained messages",
        "GM and clients do not learn the state of what existed before they connected",
        {
            Software.MOSQUITTO: "retain_available true",
            Software.EMQX: "mqtt.retain_available = true",
            Software.FLASHMQ: "retained_messages_mode enabled",
        },
    )
    RETAINED_BY_WILDCARD = Requirement(
        "the broker sends no retained messages to subscriptions with wildcards",
        "GM and clients do not learn the state of what existed before they connected",
        {},
    )
    WILDCARDS = Requirement(
        "the broker does not support wildcard subscriptions",
        "GM, nodes and workers cannot subscribe",
        {Software.EMQX: "mqtt.wildcard_subscription = true"},
    )
    QOS = Requirement(
        "the broker does not support QoS 1",
        "messages may be lost",
        {Software.MOSQUITTO: "max_qos 2", Software.EMQX: "mqtt.max_qos_allowed = 2"},
    )
    EMPTY_WILL = Requirement(
        "the broker does not publish a will without payload",
        "workers cannot connect, or those that have ended seem to be there",
        {},
    )
    ABSENCE = Requirement(
        "the broker does not report that a message has no subscriber (reason code 16), or a client subscribes to all "
        "topics",
        "frames and results without a receiver count as received, and the first request to a cloud without workers "
        "waits until its deadline",
        {},
        is_essential=False,
    )
    PACKET = Requirement(
        "",
        "larger frames are not delivered",
        {
            Software.MOSQUITTO: f"max_packet_size {MAX_PACKET}",
            Software.EMQX: f'mqtt.max_packet_size = "{MAX_PACKET_KIB}KB"',
            # its buffer for a client limits what it delivers, and grows by powers of two
            Software.FLASHMQ: f"max_packet_size {MAX_PACKET}` and `client_max_write_buffer_size {FLASHMQ_BUFFER}",
            Software.RABBITMQ: f"mqtt.max_packet_size_authenticated = {MAX_PACKET}",
        },
        is_essential=False,
    )
    IN_FLIGHT = Requirement(
        "",
        "frames of fast cameras wait for one another",
        {
            Software.MOSQUITTO: f"max_inflight_messages {MAX_INFLIGHT}",
            Software.EMQX: f"mqtt.max_inflight = {MAX_INFLIGHT}",
            Software.FLASHMQ: f"max_qos_msg_pending_per_client {MAX_INFLIGHT}",
            Software.RABBITMQ: f"mqtt.prefetch = {MAX_INFLIGHT}",
        },
        is_essential=False,
    )
    QUEUE = Requirement(
        "",
        "frames that arrive while their worker is away, or has many unanswered frames, are lost and not counted",
        {
            Software.MOSQUITTO: f"max_queued_messages {MAX_QUEUED}",
            Software.EMQX: f"mqtt.max_mqueue_len = {MAX_QUEUED}",
        },
    )


@dataclass(frozen=True, slots=True)
class Trials:
    """Results of the tries.

    Attributes:
        missing: features that the broker does not have.
        in_flight: messages that it sent before the first was acknowledged, at most ``RECEIVE_MAXIMUM``.
        queued: messages that it kept for a client without a connection, of ``QUEUED`` that it acknowledged.
        largest: bytes of the largest message that was delivered.
        lost: bytes of the message that was not delivered; 0: all were.

    """

    missing: frozenset[Feature] = frozenset()
    in_flight: int = RECEIVE_MAXIMUM
    queued: int = QUEUED
    largest: int = 0
    lost: int = 0


def recognize(version: str) -> Software:
    """Return the software of a broker by the version that it reports."""
    matching = (software for software in Software if software and software.lower() in version.lower())
    return next(matching, Software.UNKNOWN)


def limits(grants: Grants, software: Software = Software.UNKNOWN) -> list[Check]:
    """Return the rows about what the broker announced in its CONNACK (``grants``)."""
    missing = announced_missing(grants)
    checks = [_row(feature, software) for feature in Feature if feature in missing]
    if grants.max_packet and grants.max_packet < MAX_BYTES:
        what = f"the broker accepts at most {grants.max_packet} bytes in one message"
        checks.append(_row(Feature.PACKET, software, what))
    if grants.receive_maximum < RECEIVE_MAXIMUM:
        what = f"the broker accepts {grants.receive_maximum} messages in flight from one client"
        checks.append(_row(Feature.IN_FLIGHT, software, what))
    size = f"{grants.max_packet} bytes a message" if grants.max_packet else "messages of any size"
    return checks or [ok(NAME, f"{size}, {grants.receive_maximum} in flight; retained, wildcard and shared supported")]


def announced_missing(grants: Grants) -> frozenset[Feature]:
    """Return the features that a CONNACK denies."""
    able = {
        Feature.RETAINED: grants.retain,
        Feature.WILDCARDS: grants.wildcards,
        Feature.SHARED: grants.shared,
        Feature.QOS: grants.max_qos > 0,
    }
    return frozenset(feature for feature, is_able in able.items() if not is_able)


async def examine_features(settings: MqttSettings, grants: Grants, software: Software) -> list[Check]:
    """Try what the broker did not deny, and return the rows about the results."""
    try:
        return judge(await try_features(settings, grants), grants, software)
    except BusError as error:
        return [problem(NAME, str(error), "see the broker's log")]


def judge(trials: Trials, grants: Grants, software: Software) -> list[Check]:
    """Return the rows about the results of the tries. ``grants`` is what the CONNACK announced."""
    checks = [_row(feature, software) for feature in Feature if feature in trials.missing]
    if trials.in_flight < min(RECEIVE_MAXIMUM, grants.receive_maximum):
        what = f"the broker sends {trials.in_flight} messages to a client before the first is acknowledged"
        checks.append(_row(Feature.IN_FLIGHT, software, what))
    if trials.queued < QUEUED:
        dropped = QUEUED - trials.queued
        what = f"the broker acknowledges {QUEUED} messages for a client without a connection, and drops {dropped}"
        checks.append(_row(Feature.QUEUE, software, what))
    if trials.lost:
        what = f"the broker does not deliver a message of {trials.lost} bytes, although it announces no lower limit"
        checks.append(_row(Feature.PACKET, software, what, is_essential=trials.lost <= ORDINARY))
    if checks:
        return checks
    tried = "shared subscriptions, retained messages by wildcards, reason code 16, a will without payload"
    numbers = f"{trials.in_flight} messages in flight, {trials.queued} queued, {trials.largest} bytes a message"
    return [ok("features", f"tried: {tried}, {numbers}")]


def _row(feature: Feature, software: Software, what: str = "", *, is_essential: bool = False) -> Check:
    """Return the row of a missing feature; ``what`` is the observation, if it has numbers."""
    requirement = feature.value
    level = problem if requirement.is_essential or is_essential else warning
    return level(NAME, f"{what or requirement.missing}: {requirement.follows}", remedy(feature, software))


def remedy(feature: Feature, software: Software) -> str:
    """Return what to do about a missing feature: the broker's option, or to use another broker if it has none."""
    options = feature.value.options
    if software in options:
        return f"set `{options[software]}` in the configuration of {software}"
    if software or not options:
        return f"{software or 'this broker'} has no option for it: use another broker, such as {GOOD}"
    named = ", ".join(f"{option} `{setting}`" for option, setting in options.items())
    return f"set it if this broker has it: {named}; else use another broker, such as {GOOD}"


async def try_features(settings: MqttSettings, grants: Grants) -> Trials:
    """Try everything that halimede needs, with new connections. Raises BusError if there is no connection."""
    name = f"doctor-{secrets.token_hex(8)}"
    async with MqttBus(name, settings) as bus:
        trial = _Trial(bus, settings, name)
        await bus.wait_connected(CONNECT_S)
        missing = {feature for feature, attempt in trial.attempts(grants) if not await trial.has(attempt)}
        in_flight = await trial.count_in_flight() if grants.max_qos else RECEIVE_MAXIMUM
        queued = await trial.count_queued() if grants.max_qos else QUEUED
        largest, lost = await trial.try_sizes(min(grants.max_packet or settings.max_packet, settings.max_packet))
    return Trials(frozenset(missing), in_flight, queued, largest, lost)


class _Trial:
    """Tries features with messages of one client to itself; ``name`` is the client's id. Raises BusError."""

    def __init__(self, bus: Bus, settings: MqttSettings, name: str) -> None:
        self._bus = bus
        self._settings = settings
        self._name = name
        self._topic = topics.CAMERA_FRAME.at(ns="default", camera=name).text
        self._wildcard = topics.CAMERA_FRAME.filter(camera=name).text

    def attempts(self, grants: Grants) -> list[tuple[Feature, Callable[[], Awaitable[bool]]]]:
        """Return features with their tries, except for those that the CONNACK denies."""
        denied = announced_missing(grants)
        # each with the announced feature that the try needs
        tries: list[tuple[Feature, Callable[[], Awaitable[bool]], Feature]] = [
            (Feature.SHARED, self.has_shared, Feature.SHARED),
            (Feature.ABSENCE, self.has_absence, Feature.QOS),
            (Feature.EMPTY_WILL, self.has_empty_will, Feature.RETAINED),
            (Feature.RETAINED_BY_WILDCARD, self.has_retained_by_wildcard, Feature.RETAINED),
        ]
        return [(feature, attempt) for feature, attempt, needs in tries if not denied & {needs}]

    async def has(self, attempt: Callable[[], Awaitable[bool]]) -> bool:
        """Whether a try succeeds; a broker that ends the connection does not have the feature."""
        await self._bus.wait_connected(CONNECT_S)
        try:
            return await attempt()
        except DisconnectedError:
            return False

    async def has_shared(self) -> bool:
        """Whether a shared subscription receives a message."""
        with suppress(RefusedError):
            async with self._subscribe(f"$share/{self._name}/{self._topic}") as packets:
                await self._bus.send(Packet(self._topic, TEXT))
                return await _arrival(packets) is not None
        return False

    async def has_absence(self) -> bool:
        """Whether the broker reports that a message has no subscriber: a request to a node that does not exist.

        True if it refuses the message, because that shows nothing.
        """
        topic = topics.LOGS_REQUEST.at(node=self._name, client=self._name).text
        reason = await self._bus.send(Packet(topic, b""))
        return reason == NO_SUBSCRIBER or reason >= FAILURE  # refused: nothing was learned

    async def has_empty_will(self) -> bool:
        """Whether the broker publishes the will of a client that ends, if the will has no payload."""
        will = Packet(self._topic, b"", retain=True)
        async with self._subscribe(self._topic) as packets:
            dying = MqttBus(f"{self._name}-will", self._settings, lambda: Announcement(will=will))
            dying.once = True
            async with dying:
                await dying.wait_connected(CONNECT_S)
            packet = await _arrival(packets)
            return packet is not None and not packet.payload

    async def has_retained_by_wildcard(self) -> bool:
        """Whether a subscription with a wildcard receives a retained message that is there already."""
        await self._bus.send(Packet(self._topic, TEXT, retain=True, expiry_s=EXPIRY_S))
        try:
            async with self._subscribe(self._wildcard) as packets:
                return await _arrival(packets) is not None
        finally:
            with suppress(BusError):
                await self._bus.send(Packet(self._topic, b"", retain=True))

    async def count_in_flight(self) -> int:
        """Return how many messages, at most ``RECEIVE_MAXIMUM``, arrive while none is acknowledged."""
        await self._bus.wait_connected(CONNECT_S)
        arrived: list[Packet] = []
        with suppress(DisconnectedError):
            async with self._subscribe(self._topic, later=True) as packets:
                await asyncio.gather(*(self._bus.send(Packet(self._topic, TEXT)) for _ in range(RECEIVE_MAXIMUM)))
                while len(arrived) < RECEIVE_MAXIMUM and (packet := await _arrival(packets, IDLE_S)):
                    arrived.append(packet)
                for packet in arrived:
                    packet.done()
                late = RECEIVE_MAXIMUM - len(arrived)
                while late and (packet := await _arrival(packets, IDLE_S)):  # they must not arrive in the next try
                    packet.done()
                    late -= 1
        return len(arrived)

    async def count_queued(self) -> int:
        """Return how many messages, of ``QUEUED``, a session receives that arrived while it had no connection."""
        await self._bus.wait_connected(CONNECT_S)
        settings = replace(self._settings, session_s=EXPIRY_S, receive_maximum=RECEIVE_MAXIMUM)
        name = f"{self._name}-queue"
        packets: asyncio.Queue[Packet] = asyncio.Queue()
        async with MqttBus(name, settings) as leaving:
            await leaving.wait_connected(CONNECT_S)
            await leaving.listen(self._topic, 1, packets.put, QUEUED)
        await asyncio.gather(*(self._bus.send(Packet(self._topic, bytes(QUEUED_BYTES))) for _ in range(QUEUED)))
        count = 0
        async with MqttBus(name, settings) as returning:
            await returning.wait_connected(CONNECT_S)
            await returning.listen(self._topic, 1, packets.put, QUEUED, inherit=True)
            while count < QUEUED and await _arrival(packets):
                count += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    await returning.unlisten(self._topic)
        return count

    async def try_sizes(self, limit: int) -> tuple[int, int]:
        """Return the bytes of the largest message that arrived, and of the first that did not (0: all did).

        ``limit``: most bytes of a packet. On a slow connection large messages are not tried.
        """
        loop, largest, took_s = asyncio.get_running_loop(), 0, 0.0
        for size in [*(size for size in SIZES if size < limit - RESERVED), limit - RESERVED]:
            if largest and took_s * size / largest > LARGE_S / 2:
                break
            await self._bus.wait_connected(CONNECT_S)
            began = loop.time()
            try:
                async with self._subscribe(self._topic) as packets:
                    await self._bus.send(Packet(self._topic, bytes(size)), LARGE_S)
                    packet = await _arrival(packets, LARGE_S)
            except DisconnectedError:
                packet = None
            if packet is None:
                return largest, size
            largest, took_s = size, loop.time() - began
        return largest, 0

    @asynccontextmanager
    async def _subscribe(self, filter_: str, *, later: bool = False) -> AsyncIterator[asyncio.Queue[Packet]]:
        """Subscribe within the block, and yield the queue of arriving messages. Raises RefusedError.

        ``later``: messages are acknowledged by the caller, with ``done``.
        """
        packets: asyncio.Queue[Packet] = asyncio.Queue()
        await self._bus.listen(filter_, 1, packets.put, RECEIVE_MAXIMUM, later=later)
        try:
            yield packets
        finally:
            await self._bus.unlisten(filter_)


async def _arrival(packets: asyncio.Queue[Packet], seconds: float = ARRIVAL_S) -> Packet | None:
    """Return the next message; None if there is none in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await packets.get()
    return None
