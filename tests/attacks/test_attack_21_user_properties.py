"""User properties by the thousand, of 64 KiB, or of characters that end connections: refused, counted, acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes

from halimede import codec, topics
from halimede.bus import Delivery, Packet
from halimede.bus.message import MAX_PROPERTIES, MAX_PROPERTY
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.mqtt5.decoder import properties as read
from halimede.bus.settings import Client
from halimede.contract.examples import EXAMPLES, address
from halimede.topic import Topic
from services.broker import MosquittoProcess
from tests.attacks.flooding import connect, publish, user
from tests.faults.control import control
from tests.inbox import Inbox
from tests.paho_properties import v5_properties
from tests.simulated import eventually
from tests.waiting import patience
from tests.worlds import World

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
        for number, beside in enumerate([*TOO_MUCH.values(), *ODD.values(), user(unique, "the next")], 1):
            packet = publish(f"{unique}/{where.text}", body, qos=1, beside=beside, mid=number)
            await asyncio.to_thread(link.sendall, packet)
        await eventually(lambda: marked, 30)
        link.close()
        assert bus.stats.rejected == len(TOO_MUCH)
        assert bus.stats.connects == 1
        assert len(marked) == 1


async def test_attack_21_both_buses_agree_on_how_much_may_be_beside_a_body(world: World, unique: str) -> None:
    bus, inbox = await world.connect(unique), Inbox[bytes]()
    sender = await world.connect(f"{unique}-s")
    await bus.subscribe(topics.CAMERA_FRAME.filter(ns="default", camera=unique), inbox)
    at = topics.CAMERA_FRAME.at(ns="default", camera=unique).text
    most = tuple((f"n{i}", "v") for i in range(MAX_PROPERTIES))
    for properties in ((*most, ("more", "v")), (("n", "v" * (MAX_PROPERTY + 1)),), most, (("n", "v" * MAX_PROPERTY),)):
        await sender.send(Packet(at, b"frame", properties=properties))
    await inbox.has(2)
    assert [d.packet.properties for d in inbox.deliveries] == [most, (("n", "v" * MAX_PROPERTY),)]
    assert bus.stats.rejected == 2


async def test_attack_21_gm_answers_the_request_after_one_with_too_much_beside_it(tmp_path: Path) -> None:
    async with control(tmp_path) as plane, plane.gm() as gm:
        await plane.ask("version")
        before = gm.stats.rejected
        link = await asyncio.to_thread(connect, plane.broker.port, "attacker")
        for beside in TOO_MUCH.values():
            request = publish("sedna/api/request/operator", b'{"op": "version"}', beside=beside)
            await asyncio.to_thread(link.sendall, request)
        await plane.until(lambda: gm.stats.rejected == before + len(TOO_MUCH))
        assert (await plane.ask("version")).error is None
        assert gm.stats.connects == 1
        link.close()


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff"), max_size=20)


@given(
    response=TEXT,
    correlation=st.binary(max_size=40),
    expiry_s=st.none() | st.integers(0, 2**32 - 1),
    users=st.lists(st.tuples(TEXT, TEXT), max_size=MAX_PROPERTIES).map(tuple),
)
def test_attack_21_our_reader_reads_what_paho_writes(
    response: str, correlation: bytes, expiry_s: int | None, users: tuple[tuple[str, str], ...]
) -> None:
    packet = Packet("t", b"", 1, False, response, correlation, expiry_s, users)
    written = v5_properties(packet, PacketTypes.PUBLISH)
    section = bytes(written.pack()) if written else b"\0"
    length = 1
    while section[length - 1] & 0x80:
        length += 1
    assert read(section[length:]) == (response, correlation, expiry_s, users)


@given(st.binary(max_size=200))
def test_attack_21_our_reader_ends_on_any_bytes(section: bytes) -> None:
    with contextlib.suppress(ValueError):
        read(section)
