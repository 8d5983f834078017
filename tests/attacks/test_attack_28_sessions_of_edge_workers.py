"""Attack 28: a client connects with the client id of the session that holds a worker's accepted frames.

It ends the session, and with it the frames that the broker has accepted: most of all while the workers hang. The
attacker reads everything that an operator of the site may read, and computes ids from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from paho.mqtt.client import Client as Paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from tests.e2e.running import System, digits, running
from tests.faults.timeline import CAMERAS, Timeline, under_load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

VICTIMS = ("worker:digits-edge-edge0", "worker:digits-edge-edge1")
#: what a client id of a session begins with, in any message
SESSION = re.compile(rb"intake\.[A-Za-z0-9._~-]+")
#: seconds for which the attacker ends sessions: the local controller replaces hung workers after some 15 s
ATTACK_S = 10


class Attacker:
    """Reads what an operator may read, and ends the sessions whose client ids it finds or computes."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.read: set[bytes] = set()
        self.messages = 0
        #: connections that the broker accepted, and those among them that ended a session
        self.connections = self.ended = 0

    async def listen(self, bus: MqttBus) -> None:
        await bus.listen("#", 1, self._on_packet, 1000)

    async def _on_packet(self, packet: Packet) -> None:
        self.messages += 1
        text = b"\n".join([packet.topic.encode(), packet.payload, repr(packet.properties).encode()])
        self.read.update(SESSION.findall(text))

    def client_ids(self) -> list[str]:
        """Return all ids that it has read, and those that it can compute from the uid in the service's status."""
        status = self._system.status
        uid = status.uid if status else ""
        digest = hashlib.sha256("\0".join([uid, *sorted(CAMERAS)]).encode()).hexdigest()
        names = [f"intake.default.{victim.removeprefix('worker:')}" for victim in VICTIMS]
        return sorted({f"{name}.{digest[:8]}" for name in names} | {text.decode() for text in self.read})

    async def attack(self, seconds: float) -> None:
        """Take the sessions over again and again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    for client_id in self.client_ids():
                        await asyncio.to_thread(self._take, client_id)
                    await asyncio.sleep(0.5)

    def _take(self, client_id: str) -> None:
        """Connect with a client id, so that the broker ends its session, and end the connection."""
        settings = self._system.settings
        client = Paho(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
        client.username_pw_set(*settings.login())
        client.on_connect = self._on_connect
        client.connect("127.0.0.1", settings.port, clean_start=False)
        client.loop(timeout=1)
        client.loop(timeout=1)
        client.disconnect()
        client.loop(timeout=0.2)

    def _on_connect(self, _client: object, _data: object, flags: object, code: object, _properties: object) -> None:
        self.connections += code == 0
        self.ended += bool(getattr(flags, "session_present", False))


@contextlib.asynccontextmanager
async def hung(timeline: Timeline, system: System) -> AsyncIterator[None]:
    """Stop both edge workers by SIGSTOP; the block ends when both were replaced."""
    before = {name: system.processes()[name] for name in VICTIMS}
    timeline.fault()
    for process in before.values():
        os.kill(process.pid, signal.SIGSTOP)
    yield
    for name, process in before.items():
        await system.until(
            f"a new {name}", lambda name=name, process=process: system.processes().get(name, process).pid != process.pid
        )


async def test_attack_28_no_accepted_frame_vanishes_while_workers_hang(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as system:
        attacker = Attacker(system)
        async with MqttBus("attacker", system.settings) as bus:
            await bus.wait_connected(30)
            await attacker.listen(bus)
            async with under_load(system, digits()) as timeline:
                async with hung(timeline, system):
                    await attacker.attack(ATTACK_S)
                await system.until("Running again", lambda: system.phase == "Running")
        print(timeline.row("attack on sessions"))
        print(f"connections {attacker.connections}, ended sessions {attacker.ended}, ids {attacker.client_ids()}")
        assert attacker.messages > 100, "it has read the bus"
        assert attacker.connections, "the broker accepted it"
        assert attacker.ended == 0, "no id that it has read or computed is that of a session"
        assert timeline.unnamed() == 0
