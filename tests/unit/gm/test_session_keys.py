"""The session keys of services: who draws them, who is sent them, and that nobody else sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.api import parse
from halimede.api.worker_environment import SESSION_KEY_PROPERTY, session_digest, session_key_pattern
from halimede.bus import Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Held
from services.gm.cluster.local import LocalCluster
from services.gm.downstream import Downstream
from tests.inbox import spying
from tests.integration.gm_world import MODELS, SERVICES, model, service, world
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

KEY = "0123456789abcdef" * 2


async def test_a_key_is_a_uids_own_and_a_stores_and_stays_after_a_restart_a_repair_and_a_loss(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with LocalCluster(path) as cluster:
        key = cluster.session_key("u-1")
        assert session_key_pattern.fullmatch(key)
        assert cluster.session_key("u-1") == key != cluster.session_key("u-2")
        path.unlink()
        await cluster.repair()
    async with LocalCluster(path) as cluster:
        assert cluster.session_key("u-1") == key
    for file in (path, *tmp_path.glob("store.db-*"), *tmp_path.glob("store.db.corrupt*")):
        file.unlink(missing_ok=True)
    async with LocalCluster(path) as cluster:
        assert cluster.session_key("u-1") == key, "the lock file has a copy of the secret: workers need no restart"
    async with LocalCluster(tmp_path / "other.db") as cluster:
        assert cluster.session_key("u-1") != key
    for file in (path, tmp_path / "store.db.lock"):
        assert file.stat().st_mode & 0o077 == 0, "only its user reads it"


async def test_a_node_gets_the_key_again_if_it_has_another_one_or_none_unless_it_knows_no_keys() -> None:
    body = service()
    body["metadata"] |= {"uid": "u1", "generation": 1, "namespace": "default"}
    resource = parse(body)
    for session, is_sent in (("", True), (session_digest("f" * 32), True), (session_digest(KEY), False), (None, False)):
        down = Downstream(MemoryBus("gm", MemoryBroker()), 1, lambda _: True, lambda _: KEY)
        version = Held(plural=SERVICES, namespace="default", name="helmet", uid="u1", generation=1, session=session)
        down.replace_reported("edge0", [version])
        down.set_desired("edge0", resource)
        down.answer("edge0", 0)
        # the node's report ends the wait for an insert that was to be sent
        assert down.acknowledge("edge0", resource.key, "u1", 1) is is_sent


async def test_the_key_goes_to_the_nodes_of_the_service_and_nowhere_else(tmp_path: Path) -> None:
    async with (
        world(tmp_path) as w,
        w.gm() as cluster,
        w.node("edge0") as edge,
        w.node("cloud0"),
        spying(w.broker) as packets,
    ):
        await w.apply(model("small"), model("big"), service())
        await eventually(lambda: any(key.plural == SERVICES for key in edge.holds))
        (stored,) = cluster.resources(SERVICES)
        key = cluster.session_key(stored.uid)
        answers = [await w.ask(op, plural=SERVICES, namespace="default", name="helmet") for op in ("get", "list")]
        assert key not in repr([answers, stored, cluster.events(0, "", 1000)])

        def with_key() -> list[Packet]:
            return [p for p in packets if key in repr([p.topic, bytes(p.payload), p.properties])]

        await eventually(lambda: len(with_key()) == 2)
        for packet in with_key():
            names: dict[str, Any] | None = topics.INSERT.parse(packet.topic)
            assert (names["plural"], dict(packet.properties)[SESSION_KEY_PROPERTY]) == (SERVICES, key)
            assert key.encode() not in bytes(packet.payload), "not in the resource"
        models = [p for p in packets if (topics.INSERT.parse(p.topic) or {}).get("plural") == MODELS]
        assert models
        assert not any(SESSION_KEY_PROPERTY in dict(p.properties) for p in models)
