"""A site that changes while its broker runs: users that go, certificates and authorities that are replaced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from halimede.access.certs import finish_authority, make_certificates, rotate_authority
from halimede.access.mosquitto import configuration, listener_lines
from halimede.access.passwords import make_passwords
from halimede.access.site import Principal, Site
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.contract.examples import NAMES
from halimede.errors import DisconnectedError, NotAllowedError
from halimede.topic import Role
from halimede.topics import PRESENCE, RESULT, SYNC
from services.broker import MosquittoProcess, find_mosquitto
from tests.access_world import PATIENCE
from tests.ports import free_port
from tests.waiting import eventually, patience

SITE = Site(nodes=["edge0", "edge1"], consumers=["viewer"])
FEWER = Site(nodes=["edge0"], consumers=["viewer"])
LC1, WORKER = Principal(Role.LC, "edge1"), Principal(Role.EDGE, "edge0")


def guarded(folder: Path, *, tls: bool) -> MosquittoProcess:
    access = listener_lines(folder, tls=tls)
    return MosquittoProcess(folder / "run", port=free_port(), access=access, secure=tls)


def reload(broker: MosquittoProcess) -> None:
    assert broker.pid
    os.kill(broker.pid, signal.SIGHUP)


def settings(broker: MosquittoProcess, folder: Path, user: Principal) -> MqttSettings:
    return MqttSettings.from_url(broker.url, credentials=folder / user.folder)


async def check_reachable(broker: MosquittoProcess, folder: Path, site: Site = SITE) -> None:
    """Everybody can connect."""
    for user in site.principals():
        await MqttBus(f"knock-{user.username}", settings(broker, folder, user)).check_reachable()


@pytest.mark.parametrize("tls", [True, False], ids=["certificates", "passwords"])
async def test_a_removed_node_loses_its_rights_at_the_brokers_next_reload(tmp_path: Path, *, tls: bool) -> None:
    make = make_certificates if tls else make_passwords
    make(SITE, tmp_path)
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / LC1.folder, kept)
    async with guarded(tmp_path, tls=tls) as broker:
        stolen = MqttSettings.from_url(broker.url, credentials=kept)
        sync = Packet(SYNC.at(node="edge1").text, b"{}")
        heard: list[Packet] = []

        async def hear(packet: Packet) -> None:
            heard.append(packet)

        async with MqttBus("lc", stolen) as lc, MqttBus("gm", settings(broker, tmp_path, Principal(Role.GM))) as gm:
            await lc.wait_connected(patience(PATIENCE))
            await gm.wait_connected(patience(PATIENCE))
            await lc.listen(PRESENCE.filter(node="edge1").text, 1, hear, 10)
            assert await lc.send(sync) in {0, 0x10}
            make(FEWER, tmp_path)
            reload(broker)
            await eventually(lambda: _refused(lc, sync), PATIENCE)
            heard.clear()
            assert await gm.send(Packet(PRESENCE.at(node="edge1").text, b"x")) in {0, 0x10}
            await check_reachable(broker, tmp_path, FEWER)
            assert heard == []
            if not tls:
                with pytest.raises(NotAllowedError):
                    await MqttBus("again", stolen).check_reachable()


async def _refused(bus: MqttBus, packet: Packet) -> bool:
    try:
        return await bus.send(packet, 2) == 0x87
    except DisconnectedError:
        return True


async def test_a_node_that_is_added_gets_in_after_a_reload(tmp_path: Path) -> None:
    make_passwords(FEWER, tmp_path)
    async with guarded(tmp_path, tls=False) as broker:
        make_passwords(SITE, tmp_path)
        reload(broker)
        await eventually(lambda: "Reloading config" in broker.log.read_text())
        await check_reachable(broker, tmp_path)


@pytest.mark.usefixtures("each_client")
async def test_new_certificates_count_without_a_restart(tmp_path: Path) -> None:
    make_certificates(SITE, tmp_path)
    async with (
        guarded(tmp_path, tls=True) as broker,
        MqttBus("worker", settings(broker, tmp_path, WORKER)) as worker,
    ):
        await worker.wait_connected(patience(PATIENCE))
        first_end = worker.certificate_end
        assert first_end > time.time()
        make_certificates(SITE, tmp_path, rotate=True)
        reload(broker)
        await check_reachable(broker, tmp_path)
        # who is connected stays so, and connects again with the new one
        packet = Packet(RESULT.at(ns=NAMES["ns"], service=NAMES["service"]).text, b"{}")
        assert await worker.send(packet) == 0x10
        connects = worker.stats.connects
        worker.renew()
        await eventually(lambda: worker.stats.connects > connects)
        assert worker.certificate_end >= first_end


async def test_a_new_authority_locks_nobody_out_at_any_step(tmp_path: Path) -> None:
    make_certificates(SITE, tmp_path)
    async with guarded(tmp_path, tls=True) as broker:
        rotate_authority(SITE, tmp_path)
        await check_reachable(broker, tmp_path)  # it has the old one alone
        await broker.restart()
        await check_reachable(broker, tmp_path)
        make_certificates(SITE, tmp_path, rotate=True, only=["broker", WORKER.username])
        reload(broker)
        await check_reachable(broker, tmp_path)  # old and new certificates side by side
        make_certificates(SITE, tmp_path, rotate=True)
        await check_reachable(broker, tmp_path)
        finish_authority(SITE, tmp_path)
        await check_reachable(broker, tmp_path)
        await broker.restart()
        await check_reachable(broker, tmp_path)


async def test_the_written_configuration_runs_as_it_is(tmp_path: Path) -> None:
    make_certificates(SITE, tmp_path)
    port, conf = free_port(), tmp_path / "broker" / "mosquitto.conf"
    text = configuration(SITE, tmp_path).replace("listener 8883", f"listener {port} 127.0.0.1")
    conf.write_text(text + ("user root\n" if os.geteuid() == 0 else ""))
    command = [find_mosquitto(), "-c", str(conf)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        gm = MqttSettings.from_url(f"mqtts://127.0.0.1:{port}", credentials=tmp_path / "gm")
        async with MqttBus("gm", gm) as bus:
            await bus.wait_connected(patience(PATIENCE))
            assert bus.max_packet == 16 * 1024 * 1024 + 64 * 1024
    finally:
        process.terminate()
        process.wait(patience(10))
