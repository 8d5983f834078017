"""The main job on one machine, as its users see it: separate processes that speak only through topics."""

from __future__ import annotations

import asyncio
import io
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from tests.e2e.running import System, digits, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A system that runs the service, for tests that leave one another's alone; the one that deletes it comes last."""
    async with running(tmp_path_factory.mktemp("shared") / "home") as system:
        await system.run_digits()
        yield system


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
    await shared.until_answered()


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
    for plural, name in (("jointinferenceservices", "digits"), ("models", "digits-small"), ("models", "digits-big")):
        await shared.client.delete(plural, name)
    await shared.until("workers gone", lambda: not shared.workers())
    await shared.until("status cleared", lambda: shared.status is None)
    # what an operator may read, and what nodes report to GM
    for who in (shared.settings.credentials.folder, shared.home / "site" / "gm"):
        # a topic that is cleared meanwhile is sent as well, without the flag
        retained = [packet.topic for packet in await shared.messages_of(who, 1) if packet.retain]
        assert retained, "somebody's presence at least"
        assert [topic for topic in retained if not topic.endswith("/presence")] == []


async def test_killed_parts_come_back_and_every_accepted_frame_is_answered_once(tmp_path: Path) -> None:
    """kill -9 of GM, of an edge node's LC and of the cloud worker, while frames flow."""
    pictures = digits()
    async with running(tmp_path / "home") as system:
        await system.run_digits()
        sending = asyncio.gather(system.send(pictures[:450], "cam0", 40), system.send(pictures[450:], "cam1", 40))
        for victim in ("gm", "lc:edge0", "worker:digits-cloud-cloud0"):
            await asyncio.sleep(2)
            before = system.processes()[victim]
            before.kill()
            await system.until(f"a new {victim}", lambda v=victim, b=before: system.processes().get(v, b).pid != b.pid)
        await sending
        await system.until_answered()
        await system.until("the status has them all", lambda: system.metric("inferenceNumber") >= len(pictures))
        await system.until_running()
        assert [i for i, n in system.copies.items() if n > 1] == []
        assert system.metric("lost") == 0
        assert len(system.results) == len(pictures)
