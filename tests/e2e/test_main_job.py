"""The main job on one machine, as its users see it: separate processes that speak only through topics."""

from __future__ import annotations

import asyncio
import io
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from halimede.bus import Packet
from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttBus
from tests.e2e.running import DIGITS, System, digits, running
from tests.waiting import patience

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]
SERVICE = "digits"


async def started(system: System) -> None:
    await system.follow(SERVICE)
    await system.apply(DIGITS)
    await system.until("Running", lambda: system.phase == "Running")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A system that runs the service, for tests that leave one another's alone; the one that deletes it comes last."""
    async with running(tmp_path_factory.mktemp("shared") / "home") as system:
        await started(system)
        yield system


def missing(system: System) -> set[str]:
    return set(system.sent) - set(system.results)


async def everything_retained(system: System, credentials: Path) -> list[str]:
    """Return the topics of all retained messages that a user may read."""
    topics: list[str] = []

    async def keep(packet: Packet) -> None:
        topics.append(packet.topic)

    async with MqttBus("retained", replace(system.settings, credentials=Credentials(credentials))) as bus:
        await bus.wait_connected(patience(10))
        await bus.listen("#", 1, keep, 1000)
        await asyncio.sleep(1)
    return topics


@pytest.mark.slow
async def test_all_listen_on_loopback_for_health_alone_and_speak_to_the_broker_alone(shared: System) -> None:
    await shared.send(digits()[:50])
    broker = shared.processes()["broker"]
    ports = {c.laddr.port for c in broker.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    looked_at = [p for name, p in shared.processes().items() if name != "broker"]
    assert len(looked_at) == 1 + 3 + 3
    for process in looked_at:
        connections = process.net_connections("inet")  # psutil reads /proc/net/tcp for this process's sockets
        (listening,) = [c for c in connections if c.status == psutil.CONN_LISTEN]
        assert listening.laddr.ip == "127.0.0.1"
        assert {c.raddr.port for c in connections if c is not listening} == ports
    await shared.until("answers", lambda: not missing(shared))


@pytest.mark.slow
async def test_a_bare_jpeg_of_an_old_publisher_is_answered(shared: System, tmp_path: Path) -> None:
    from PIL import Image

    picture = tmp_path / "seven.jpg"
    Image.open(io.BytesIO(digits()[7])).resize((64, 64)).convert("RGB").save(picture)
    before = set(shared.results) | set(shared.sent)
    command = ["mosquitto_pub", "-V", "mqttv311", "-q", "1", "-t", "default/sedna/frames/cam1"]
    await asyncio.to_thread(subprocess.run, [*command, "-f", str(picture)], check=True, env=shared.tools)
    await shared.until("the answer", lambda: set(shared.results) - before)
    assert [shared.results[id_].camera for id_ in set(shared.results) - before] == ["cam1"]


async def test_a_deleted_service_stops_its_workers_and_clears_its_retained_topics(shared: System) -> None:
    for plural, name in (("jointinferenceservices", SERVICE), ("models", "digits-small"), ("models", "digits-big")):
        await shared.client.delete(plural, name)
    await shared.until("workers gone", lambda: not any(n.startswith("worker:") for n in shared.processes()))
    await shared.until("status cleared", lambda: shared.status is None)
    # what an operator may read, and what nodes report to GM
    for who in (shared.settings.credentials.folder, shared.home / "site" / "gm"):
        retained = await everything_retained(shared, who)
        assert retained, "somebody's presence at least"
        assert [topic for topic in retained if not topic.endswith("/presence")] == []


@pytest.mark.slow
async def test_killed_parts_come_back_and_every_accepted_frame_is_answered_once(tmp_path: Path) -> None:
    """kill -9 of GM, of an edge node's LC and of the cloud worker, while frames flow."""
    pictures = digits()
    async with running(tmp_path / "home") as system:
        await started(system)
        sending = asyncio.gather(system.send(pictures[:450], "cam0", 40), system.send(pictures[450:], "cam1", 40))
        for victim in ("gm", "lc:edge0", "worker:digits-cloud-cloud0"):
            await asyncio.sleep(2)
            before = system.processes()[victim]
            before.kill()
            await system.until(f"a new {victim}", lambda v=victim, b=before: system.processes().get(v, b).pid != b.pid)
        await sending
        await system.until("all answers", lambda: not missing(system))
        await system.until("the status has them all", lambda: system.metric("inferenceNumber") >= len(pictures))
        await system.until("Running again", lambda: system.phase == "Running")
        assert [i for i, n in system.copies.items() if n > 1] == []
        assert system.metric("lost") == 0
        assert len(system.results) == len(pictures)
