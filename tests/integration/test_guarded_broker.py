"""A broker that asks who is there: what clients and commands say when it does not let them in, and that they go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from halimede.access.certs import make_certificates
from halimede.access.mosquitto import listener_lines
from halimede.access.passwords import make_passwords
from halimede.access.site import Site
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.broker_address import find
from halimede.cli.client import Client, NoBrokerError, NotLetInError, check_reachable
from halimede.cli.doctor import broker as doctor_broker
from halimede.cli.follow import follow
from halimede.errors import RefusedError
from halimede.topics import GM_PRESENCE
from services.broker import MosquittoProcess
from services.site import LocalSite, Security
from tests.integration.cli.conftest import manager
from tests.integration.gm_world import model
from tests.ports import free_port
from tests.simulated import eventually
from tests.typed import halimede
from tests.waiting import patience

ROOT = Path(__file__).parents[2]
MODES = pytest.mark.parametrize("security", [Security.PASSWORDS, Security.TLS])


@dataclass
class Guarded:
    """A broker with its site."""

    site: LocalSite
    broker: MosquittoProcess

    def settings(self, folder: Path | None = None, path: str = "") -> MqttSettings:
        return MqttSettings.from_url(self.broker.url + path, credentials=folder)


@contextlib.asynccontextmanager
async def guarded(home: Path, security: Security, port: int | None = None) -> AsyncIterator[Guarded]:
    site = LocalSite(home, ["edge0"], security)
    site.make()
    async with MosquittoProcess(home, port=port or free_port(), access=site.access, secure=site.secure) as broker:
        yield Guarded(site, broker)


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    names = {"HALIMEDE_BROKER": "", "HALIMEDE_CREDENTIALS": "", "HALIMEDE_HOME": "/nowhere", **environment}
    return halimede(*words, env={**os.environ, **names})


@pytest.mark.slow
@MODES
async def test_a_command_says_at_once_why_it_is_not_let_in_and_what_to_do(tmp_path: Path, security: Security) -> None:
    async with guarded(tmp_path / "a", security) as a:
        (other := LocalSite(tmp_path / "b", ["edge0"], security)).make()
        for words in (["nodes"], ["results", "digits"], ["get", "ji", "-w"]):
            for credentials, advice in (
                ("", "give a user's folder with --credentials DIR or HALIMEDE_CREDENTIALS"),
                (str(other.operator), f"check that {other.operator} is the current folder of a user of this broker's"),
            ):
                environment = {"HALIMEDE_BROKER": a.broker.url, "HALIMEDE_CREDENTIALS": credentials}
                said = await asyncio.to_thread(command, *words, **environment)
                assert said.returncode == 1
                assert advice in said.stderr
                assert "no MQTT broker answers" not in said.stderr
                assert len(said.stderr.splitlines()) == 1, said.stderr
        right = await asyncio.to_thread(
            command, "--credentials", str(a.site.operator), "--broker", a.broker.url, "nodes"
        )
        assert "no global manager is connected" in right.stderr


async def test_an_address_of_the_wrong_kind_is_told_from_a_broker_that_is_not_there(tmp_path: Path) -> None:
    async with guarded(tmp_path / "a", Security.TLS) as tls, guarded(tmp_path / "b", Security.PASSWORDS) as plain:
        with pytest.raises(NoBrokerError, match=r"requires TLS .*mqtts://"):
            await check_reachable(find(f"127.0.0.1:{tls.broker.port}", {}))
        with pytest.raises(NotLetInError, match="it may not use TLS"):
            await check_reachable(find(f"mqtts://127.0.0.1:{plain.broker.port}", {}))
        with pytest.raises(NoBrokerError, match="refused"):
            await check_reachable(find(f"mqtts://127.0.0.1:{free_port()}", {}))


async def test_the_run_files_credentials_go_with_the_run_files_broker_alone(tmp_path: Path) -> None:
    async with guarded(tmp_path, Security.PASSWORDS) as a:
        (tmp_path / "run.json").write_text(json.dumps({"broker": a.broker.url, "credentials": str(a.site.operator)}))
        home = {"HALIMEDE_HOME": str(tmp_path)}
        await check_reachable(find("", home))
        assert find(a.broker.url, home).settings.credentials is None
        chosen = find("", {**home, "HALIMEDE_CREDENTIALS": str(a.site.gm)}).settings.credentials
        assert chosen
        assert chosen.folder == a.site.gm


@pytest.mark.slow
@MODES
async def test_a_controller_that_comes_to_another_systems_broker_says_why_it_waits_and_comes_back(
    tmp_path: Path, security: Security
) -> None:
    """The port of a system changes hands while its LC runs."""
    async with contextlib.AsyncExitStack() as stack:
        a = await stack.enter_async_context(guarded(tmp_path / "a", security))
        port, folder = a.broker.port, a.site.node("edge0")
        log = (tmp_path / "lc.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "halimede", "lc", "--node", "edge0", "--home", str(tmp_path / "lc"),
             "--broker", a.broker.url, "--credentials", str(folder)],
            cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "HALIMEDE_LOG": "json"},
        )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(process.terminate)

        def logged(word: str) -> int:
            """Count what its own connection says: that for files comes and goes with it."""
            lines = Path(log.name).read_text().splitlines()
            return sum(word in line and '"client": "lc.edge0"' in line for line in lines)

        await eventually(lambda: logged("bus connected") == 1, 30)
        await a.broker.kill()
        async with guarded(tmp_path / "b", security, port) as b:
            reason = "Not authorized" if security is Security.PASSWORDS else "certificate is not accepted"
            await eventually(lambda: logged(reason) == 1, 30)
            async with MqttBus("watch", b.settings(b.site.gm)) as gm:
                heard: list[str] = []

                async def keep(packet: Packet) -> None:
                    heard.append(packet.topic)

                await gm.wait_connected(patience(10))
                await gm.listen("node/#", 1, keep, 10)
                await asyncio.sleep(2)
            assert heard == []
        await a.broker.start()
        await eventually(lambda: logged("bus connected") == 2, 30)
        assert process.poll() is None


async def test_a_prefix_parts_systems_on_one_guarded_broker(tmp_path: Path) -> None:
    site = LocalSite(tmp_path, ["edge0"], Security.PASSWORDS)
    site.make()
    make_passwords(Site(nodes=["edge0"], prefix="site1"), site.folder)
    operator = str(site.operator)
    async with MosquittoProcess(tmp_path, port=free_port(), access=site.access) as broker:
        url = f"{broker.url}/site1"
        async with manager(MqttSettings.from_url(url, credentials=site.gm), tmp_path / "gm" / "store.db"):
            address = find(url, {}, credentials=operator)
            async with Client.to(address) as client:
                assert (await client.apply(model("m")))[0] == "created"
            async with asyncio.timeout(patience(20)):
                async for _, presence in follow(address, GM_PRESENCE.filter()):
                    assert presence
                    assert presence.online
                    break
            shown = await asyncio.to_thread(command, "get", "models", "--broker", url, "--credentials", operator)
            assert (shown.returncode, "m" in shown.stdout.split()) == (0, True), shown.stderr
            with pytest.raises(NotLetInError, match="use the credentials of an operator"):
                async with Client.to(find(broker.url, {}, credentials=operator)) as beside:
                    await beside.nodes()
            async with MqttBus("plain", MqttSettings.from_url(broker.url, credentials=site.gm)) as bus:
                await bus.wait_connected(patience(10))
                with pytest.raises(RefusedError):
                    await bus.clear(GM_PRESENCE.at())


@pytest.mark.slow
@MODES
async def test_doctor_resets_no_connection(tmp_path: Path, security: Security) -> None:
    """`kubectl port-forward` ends with the first connection that the broker's machine resets."""
    async with guarded(tmp_path / "a", security) as a, port_forward(a.broker.port) as (port, errors):
        scheme = "mqtts" if a.site.secure else "mqtt"
        said = await asyncio.to_thread(
            command, "doctor", "--broker", f"{scheme}://127.0.0.1:{port}", "--credentials", str(a.site.operator)
        )
        assert "a client without credentials is refused" in said.stdout, said.stdout + said.stderr
        assert errors == []


@pytest.mark.parametrize("asked_for", [False, True])
async def test_doctor_finds_a_tls_broker_that_accepts_clients_without_certificate(
    tmp_path: Path, asked_for: bool
) -> None:
    make_certificates(Site(nodes=["edge0"]), tmp_path)
    access = [line for line in listener_lines(tmp_path, tls=True) if "require" not in line and "identity" not in line]
    access = [line.replace("allow_anonymous false", f"allow_anonymous {str(not asked_for).lower()}") for line in access]
    async with MosquittoProcess(tmp_path / "run", port=free_port(), access=tuple(access), secure=True) as broker:
        url = f"mqtts://localhost:{broker.port}"
        settings = MqttSettings.from_url(url, credentials=tmp_path / "operators" / "admin")
        assert (await doctor_broker.strangers(settings)).level == ("ok" if asked_for else "warning")


@contextlib.asynccontextmanager
async def port_forward(target: int) -> AsyncIterator[tuple[int, list[OSError]]]:
    """Yield a port that leads to ``target``, and the resets that come from there, as a kubelet sees them."""
    errors: list[OSError] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[OSError]) -> None:
        with contextlib.suppress(OSError):
            while data := await _read(reader, seen):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(copy(reader, outer, []), copy(inner, writer, errors))
        outer.close()
        writer.close()

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], errors


async def _read(reader: asyncio.StreamReader, seen: list[OSError]) -> bytes:
    try:
        return await reader.read(65_536)
    except OSError as error:
        seen.append(error)
        return b""


async def test_a_name_that_the_certificate_does_not_have_is_not_blamed_on_credentials(tmp_path: Path) -> None:
    site = Site(broker=["broker.example.com", "localhost"], nodes=["edge0"])
    make_certificates(site, tmp_path)
    admin = str(tmp_path / "operators" / "admin")
    access = listener_lines(tmp_path, tls=True)
    async with MosquittoProcess(tmp_path / "run", port=free_port(), access=access, secure=True) as broker:
        by_name, by_address = (f"mqtts://{host}:{broker.port}" for host in ("localhost", "127.0.0.1"))
        for client in ("lean", "paho"):
            environment = {"HALIMEDE_CREDENTIALS": admin, "HALIMEDE_MQTT_CLIENT": client}
            said = await asyncio.to_thread(command, "nodes", "--broker", by_address, **environment)
            assert said.returncode == 1
            assert "the broker's certificate does not have the name 127.0.0.1" in said.stderr
            assert "halimede certs add --broker 127.0.0.1" in said.stderr
            assert "current folder of a user" not in said.stderr
        status = await asyncio.to_thread(command, "status", "--broker", by_address, "--credentials", admin)
        assert "its certificate has other names" in status.stdout
        assert "credentials" not in status.stdout
        doctor = await asyncio.to_thread(command, "doctor", "--broker", by_address, "--credentials", admin)
        names = "does not have the name 127.0.0.1; it has broker.example.com, localhost"
        assert names in " ".join(doctor.stdout.split())
        right = await asyncio.to_thread(command, "nodes", "--broker", by_name, "--credentials", admin)
        assert "no global manager is connected" in right.stderr
