"""The lean client beside Mosquitto's own tools and paho: what each of them writes, the others read."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halimede.bus import Packet
from halimede.bus.message import NO_SUBSCRIBER
from halimede.bus.mqtt import MqttBus, MqttSettings
from services.broker import MosquittoProcess
from tests.simulated import eventually
from tests.waiting import patience

PATIENCE = 20.0
VERSIONS = ["mqttv5", "mqttv311", "mqttv31"]
MIB = 1024 * 1024


@pytest.fixture
async def bus(mosquitto: MosquittoProcess, unique: str) -> AsyncIterator[MqttBus]:
    settings = MqttSettings("127.0.0.1", mosquitto.port, client="lean")
    async with MqttBus(unique, settings) as bus:
        await bus.wait_connected(patience(PATIENCE))
        yield bus


class Ear:
    """What has come to a subscription."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []

    async def __call__(self, packet: Packet) -> None:
        self.packets.append(packet)

    async def has(self, count: int) -> None:
        await eventually(lambda: len(self.packets) >= count, PATIENCE)
        assert len(self.packets) == count


async def tool(name: str, broker: MosquittoProcess, *words: str | Path) -> bytes:
    """Run one of Mosquitto's tools to its end; return what it printed."""
    if not (binary := shutil.which(name)):
        pytest.skip(f"needs {name} (mosquitto-clients)")
    process = await asyncio.create_subprocess_exec(
        binary, "-p", str(broker.port), *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(patience(PATIENCE)):
            out, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, errors
    return out


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_mosquitto_pub_says_at_any_qos_arrives(
    bus: MqttBus, mosquitto: MosquittoProcess, unique: str, version: str
) -> None:
    ear = Ear()
    await bus.listen(f"{unique}/+", 1, ear, 10)
    for qos in range(3):
        await tool("mosquitto_pub", mosquitto, "-V", version, "-q", str(qos), "-t", f"{unique}/{qos}", "-m", f"é{qos}")
    await ear.has(3)
    came = [(packet.topic, packet.payload, packet.qos, packet.retain) for packet in ear.packets]
    assert came == [(f"{unique}/{qos}", f"é{qos}".encode(), min(qos, 1), False) for qos in range(3)]


@pytest.mark.parametrize("version", VERSIONS[:2])
async def test_mosquitto_sub_hears_what_we_say(
    bus: MqttBus, mosquitto: MosquittoProcess, unique: str, version: str
) -> None:
    beside = "|%P|%R|%D|%E" if version == "mqttv5" else ""
    words = ["-V", version, "-q", "1", "-t", f"{unique}/#", "-C", "4", "-F", f"%t|%q|%r|%l|%p{beside}"]
    hearing = asyncio.create_task(tool("mosquitto_sub", mosquitto, *words))
    async with asyncio.timeout(patience(PATIENCE)):
        while await bus.send(Packet(f"{unique}/are/you/there", b"")) == NO_SUBSCRIBER:
            assert not hearing.done()
            await asyncio.sleep(0.02)
    properties = (("epoch", "7"), ("é", ""))
    packets = [
        Packet(f"{unique}/a", "é".encode(), 1, False, "r/s", b"corr", 60, properties),
        Packet(f"{unique}/b", b"joined ", 0, tail=b"with its tail"),
        Packet(f"{unique}/c", memoryview(b"h" * 5_000), 1, tail=memoryview(b"t" * MIB)),
    ]
    for packet in packets:
        await bus.send(packet)
    first, *lines = (await hearing).decode().splitlines()
    assert first.startswith(f"{unique}/are/you/there|1|0|0|")
    nothing = "||||" if beside else ""
    said = "|epoch:7 é:|r/s|corr|60" if beside else ""
    assert lines[0] in {f"{unique}/a|1|0|2|é{said}", f"{unique}/a|1|0|2|é{said[:-2]}59"}
    assert lines[1:] == [
        f"{unique}/b|0|0|20|joined with its tail{nothing}",
        f"{unique}/c|1|0|{MIB + 5_000}|{'h' * 5_000}{'t' * MIB}{nothing}",
    ]


@pytest.mark.parametrize("sender", ["lean", "paho"])
async def test_lean_and_paho_read_the_same_of_one_message(
    bus: MqttBus, mosquitto: MosquittoProcess, unique: str, sender: str
) -> None:
    """As if they were one: all that a packet can carry, of all sizes."""
    lean, stock = Ear(), Ear()
    async with MqttBus(f"{unique}-paho", MqttSettings("127.0.0.1", mosquitto.port, client="paho")) as paho:
        await paho.wait_connected(patience(PATIENCE))
        await bus.listen(f"{unique}/#", 1, lean, 100)
        await paho.listen(f"{unique}/#", 1, stock, 100)
        properties = (("epoch", "7"), ("epoch", "8"), ("\ufeff", "é"), ("", ""))
        packets = [
            Packet(unique, b"", 1),
            Packet(f"{unique}/é", b"\0\xff", 0),
            Packet(f"{unique}/a", b"x" * 4096, 1, False, "r", b"\0\xff", None, properties),
            Packet(f"{unique}/a/b", bytes(MIB), 1, False, "", b"", None, ()),
        ]
        for packet in packets:
            await (bus if sender == "lean" else paho).send(packet)
        await lean.has(len(packets))
        await stock.has(len(packets))
        assert lean.packets == stock.packets == packets
