"""A subscription that the broker stops granting is named to the application and to the operator, and costs no other.

Mosquitto's own access file grants whatever is asked and then delivers nothing; its security plugin refuses as other
brokers do.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from halimede import messages as m
from halimede import topics
from halimede.bus.mqtt import MqttBus
from halimede.errors import RefusedError
from services.broker import MosquittoProcess
from tests.inbox import Inbox
from tests.ports import free_port
from tests.simulated import eventually
from tests.waiting import patience

PLUGINS = sorted(Path("/usr/lib").glob("*/mosquitto_dynamic_security.so"))
REFUSED, GRANTED = "node/edge0/sedna/upstream/sync", "node/edge0/sedna/presence"


def rules(path: Path, *refused: str) -> None:
    """Everything is granted to anybody, but for these subscriptions."""
    acls = [{"acltype": "subscribeLiteral", "topic": topic, "priority": 1, "allow": False} for topic in refused]
    path.write_text(
        json.dumps(
            {
                "defaultACLAccess": dict.fromkeys(
                    ("publishClientSend", "publishClientReceive", "subscribe", "unsubscribe"), True
                ),
                "clients": [],
                "groups": [{"groupname": "all", "roles": [{"rolename": "rules"}], "clients": []}],
                "roles": [{"rolename": "rules", "acls": acls}],
                "anonymousGroup": "all",
            }
        )
    )


@pytest.mark.slow
@pytest.mark.skipif(not PLUGINS, reason="this Mosquitto comes without its security plugin")
async def test_a_subscription_refused_at_a_reconnect_is_named_where_the_operator_looks(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    access = ["allow_anonymous true", f"plugin {PLUGINS[0]}", f"plugin_opt_config_file {path}"]
    rules(path)
    syncs, births, dead_letters = Inbox[m.Sync](), Inbox[m.Presence](), Inbox[m.DeadLetter]()
    async with (
        MosquittoProcess(tmp_path / "broker", port=free_port(), access=access) as broker,
        MqttBus("gm", broker.url) as bus,
        MqttBus("operator", broker.url) as operator,
    ):
        await bus.wait_connected(patience(10))
        await operator.wait_connected(patience(10))
        await operator.subscribe(topics.DEAD_LETTER.filter(), dead_letters)
        await bus.subscribe(topics.SYNC.filter(node="edge0"), syncs)
        await bus.subscribe(topics.PRESENCE.filter(node="edge0"), births)
        await operator.publish(topics.SYNC.at(node="edge0"), m.Sync(epoch=1))
        await syncs.has(1)
        assert bus.refused == {}

        rules(path, REFUSED)
        await broker.restart()
        await eventually(lambda: bus.refused, 30)
        assert bus.refused == {REFUSED: "not authorised"}
        for _ in range(10):  # a dead letter goes out once, and the operator may have been slower to come back
            with contextlib.suppress(AssertionError):
                await eventually(lambda: dead_letters.deliveries, 8)  # long enough to be no brief connection
                break
            await broker.restart()
        dead_letter = dead_letters.deliveries[0].body
        assert (dead_letter.client, dead_letter.topic) == ("gm", REFUSED)
        assert "refused this subscription" in dead_letter.reason
        await operator.publish(topics.PRESENCE.at(node="edge0"), m.Presence(node="edge0", epoch=1, online=True))
        await births.has(1)
        with pytest.raises(RefusedError, match="not authorised"):
            await operator.subscribe(topics.SYNC.filter(node="edge0"), syncs)

        rules(path)
        await broker.restart()
        await eventually(lambda: bus.connected and not bus.refused, 30)
