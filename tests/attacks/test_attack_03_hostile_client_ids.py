"""Attack 3: a client id of wildcards and slashes, in the hope that it becomes part of a topic or of the broker's rules.

Our own bus refuses it before it connects. On the broker it gains nothing: rules go by the certificate's name alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from paho.mqtt.client import Client as Paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from halimede import topics
from halimede.access.site import Principal
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.mqtt import MqttBus
from halimede.errors import InvalidFieldError
from halimede.topic import Role
from tests.access_world import AUDITOR, AccessWorld, access_world
from tests.attacks.test_attack_01_hostile_names import HOSTILE
from tests.waiting import eventually

CLIENT_IDS = [*HOSTILE, "a+/#b", "%u", "gm\n", "x" * 254]
WANTED = ["sedna/api/request/a", "node/edge1/sedna/upstream/sync", "$SYS/broker/uptime"]


@pytest.mark.parametrize("client_id", CLIENT_IDS, ids=lambda client_id: ascii(client_id[:12]))
def test_attack_03_our_bus_refuses_it_before_it_connects(client_id: str) -> None:
    with pytest.raises(InvalidFieldError, match=r"client id: .* is not accepted: use 1 to 253"):
        MqttBus(client_id, "127.0.0.1:9")
    with pytest.raises(InvalidFieldError, match="client id"):
        MemoryBus(client_id, MemoryBroker())


@pytest.mark.parametrize("client_id", ["a+/#b", "#", "$SYS", "%u", "gm", "lc.edge1", "x" * 60_000])
async def test_attack_03_on_the_broker_it_gains_nothing(tmp_path: Path, client_id: str) -> None:
    async with access_world(tmp_path) as world:
        auditor, honest = await world.client(AUDITOR), await world.client(Principal(Role.LC, "edge0"))
        await auditor.listen(["#"])
        got = _attack(world, client_id)
        assert await honest.publish(topics.SYNC.at(node="edge0").text, "after") == 0
        await eventually(lambda: any(tag == "after" for _, tag in auditor.heard))
        assert [tag for _, tag in auditor.heard] == ["after"]
        assert got == []


def _attack(world: AccessWorld, client_id: str) -> list[str]:
    """Do as another program would: connect as a camera under this id, publish and subscribe; return what came."""
    own = world.folder / Principal(Role.CAMERA, "cam0").folder
    client = Paho(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
    client.tls_set(str(own / "ca.crt"), str(own / "tls.crt"), str(own / "tls.key"))
    got: list[str] = []
    codes: list[int] = []
    client.on_message = lambda _, __, message: got.append(message.topic)
    client.on_publish = lambda _, __, ___, code, ____: codes.append(code.value)
    client.connect("127.0.0.1", world.broker.port)
    client.loop_start()
    try:
        for topic in ("#", "$SYS/#", "node/#"):
            client.subscribe(topic, 1)
        for topic in WANTED:
            client.publish(topic, b"forged", 1).wait_for_publish(30)
    finally:
        client.disconnect()
        client.loop_stop()
    assert codes == [0x87] * len(WANTED)
    return got
