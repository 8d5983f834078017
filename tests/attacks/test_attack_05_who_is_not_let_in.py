"""Attack 5: no certificate, one that does not count, old TLS, or no TLS at all. And a broker that is not ours.

Neither side gives way: the broker refuses the connection, and our client never speaks in clear where TLS was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from halimede.access import certificate_authority as a
from halimede.access.certs import make_certificates
from halimede.access.mosquitto import listener_lines
from halimede.access.passwords import make_passwords
from halimede.access.site import Principal, Site
from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import DisconnectedError, InvalidFieldError, NotAllowedError
from halimede.topic import Role
from services.broker import MosquittoProcess
from tests.access_world import PATIENCE, SITE, AccessWorld, access_world
from tests.ports import free_port
from tests.waiting import patience

GM = Principal(Role.GM)
#: MQTT 3.1.1, client id "x", clean: what any client may send first
CONNECT = bytes([0x10, 13, 0, 4, *b"MQTT", 4, 2, 0, 60, 0, 1, *b"x"])
ACCEPTED = bytes([0x20, 2, 0, 0])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AccessWorld]:
    async with access_world(tmp_path / "site") as made:
        yield made


def pair_of(folder: Path, name: str) -> a.Pair:
    key = a.read_key((folder / f"{name}.key").read_bytes())
    assert key
    return a.Pair(a.read_bundle((folder / f"{name}.crt").read_bytes())[0], key)


def none(_: Path, own: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        (own / name).unlink()


def of_another_authority(folder: Path, own: Path) -> None:
    other = folder.parent / "other"
    make_certificates(SITE, other)
    place(own, pair_of(other / GM.folder, "tls"))


def signed_by_a_user(folder: Path, own: Path) -> None:
    """A user's certificate is no authority: what it signs counts for nothing."""
    signer = pair_of(folder / Principal(Role.LC, "edge0").folder, "tls")
    forged = a.new_client(signer, "gm", 365)
    place(own, forged)
    (own / "tls.crt").write_bytes(a.write_bundle([forged.certificate, signer.certificate]))


def the_brokers_own(folder: Path, own: Path) -> None:
    """It is for servers."""
    place(own, pair_of(folder / "broker", "tls"))


def place(own: Path, pair: a.Pair) -> None:
    (own / "tls.key").write_bytes(a.write_key(pair.key))
    (own / "tls.crt").write_bytes(a.write_bundle([pair.certificate]))


@pytest.mark.slow
@pytest.mark.parametrize("how", [none, of_another_authority, signed_by_a_user, the_brokers_own])
@pytest.mark.usefixtures("each_client")
async def test_attack_05_whose_certificate_does_not_count_is_not_let_in(
    world: AccessWorld, tmp_path: Path, how: Callable[[Path, Path], None]
) -> None:
    own = tmp_path / "attacker"
    shutil.copytree(world.folder / GM.folder, own)
    settings = replace(world.settings(GM), credentials=Credentials(own))
    await MqttBus("gm", settings).check_reachable()
    how(world.folder, own)
    with pytest.raises(NotAllowedError):
        await MqttBus("gm", settings).check_reachable()
    async with MqttBus("gm", settings) as bus:
        with pytest.raises(DisconnectedError):
            await bus.wait_connected(1)


def shake(world: AccessWorld, lowest: ssl.TLSVersion, highest: ssl.TLSVersion) -> str | None:
    """Shake hands with certificates that count, and an attacker's will to use anything; return the version."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = lowest, highest
    own = world.folder / GM.folder
    context.load_cert_chain(own / "tls.crt", own / "tls.key")
    plain = socket.create_connection(("127.0.0.1", world.broker.port), PATIENCE)
    with plain, context.wrap_socket(plain) as secured:
        secured.sendall(CONNECT)
        return secured.version() if secured.recv(4) == ACCEPTED else None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_attack_05_old_tls_is_refused_by_the_broker(world: AccessWorld, version: ssl.TLSVersion) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(shake, world, version, version)
    for newer, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        assert await asyncio.to_thread(shake, world, version, newer) == name


@pytest.mark.usefixtures("each_client")
async def test_attack_05_plain_text_at_the_tls_port_gets_no_answer(world: AccessWorld) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.broker.port)
    writer.write(CONNECT)
    heard = b""
    with contextlib.suppress(ConnectionError):
        heard = await asyncio.wait_for(reader.read(1000), patience(PATIENCE))
    writer.close()
    assert not heard.startswith(b"\x20")
    with pytest.raises(DisconnectedError):
        await MqttBus("gm", f"mqtt://127.0.0.1:{world.broker.port}").check_reachable()


@pytest.mark.usefixtures("each_client")
async def test_attack_05_without_a_password_or_with_a_wrong_one_nobody_gets_in(tmp_path: Path) -> None:
    make_passwords(SITE, tmp_path)
    access = listener_lines(tmp_path, tls=False)
    async with MosquittoProcess(tmp_path / "run", port=free_port(), access=access) as broker:
        password = (tmp_path / "gm" / "password").read_text().strip()
        await MqttBus("gm", f"mqtt://gm:{password}@127.0.0.1:{broker.port}").check_reachable()
        for who in ("", "gm@", "gm:@", f"gm:{password[:-1]}@", f"lc.edge0:{password}@", f"nobody:{password}@"):
            with pytest.raises(NotAllowedError):
                await MqttBus("gm", f"mqtt://{who}127.0.0.1:{broker.port}").check_reachable()


@pytest.mark.usefixtures("each_client")
async def test_attack_05_our_client_does_not_fall_back_to_plain_text(tmp_path: Path) -> None:
    """Somebody who took the broker's port, or an address of a plain broker: not a byte of MQTT leaves in clear."""
    make_certificates(SITE, tmp_path)
    (tmp_path / "gm" / "username").write_text("gm")
    (tmp_path / "gm" / "password").write_text("a-secret-of-gm")
    async with listening(None) as (port, said):
        async with MqttBus("gm", settings(tmp_path, port)) as bus:
            with pytest.raises(DisconnectedError):
                await bus.wait_connected(3)
        assert said, "it did connect"
        assert all(bytes_[:1] == b"\x16" for bytes_ in said), "each begins with a TLS handshake"
        assert not [bytes_ for bytes_ in said if b"MQTT" in bytes_ or b"a-secret" in bytes_]
    async with MosquittoProcess(tmp_path / "run", port=free_port()) as plain:
        with pytest.raises(NotAllowedError, match="it may not use TLS"):
            await MqttBus("gm", settings(tmp_path, plain.port)).check_reachable()


async def test_attack_05_certificates_are_not_shown_on_a_plain_connection(tmp_path: Path) -> None:
    make_certificates(SITE, tmp_path)
    with pytest.raises(InvalidFieldError, match="it is for TLS: write the broker's address as mqtts://"):
        MqttSettings.from_url("mqtt://127.0.0.1", credentials=tmp_path / "gm")


CERTIFICATE = r"the broker's certificate (is not accepted|does not have the name)"
BROKERS = {
    "another site's": CERTIFICATE,
    "a node of ours": CERTIFICATE,
    "ours under another name": CERTIFICATE,
    "ours with old TLS": "the TLS handshake with the broker failed",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("who", BROKERS)
@pytest.mark.usefixtures("each_client")
async def test_attack_05_our_client_refuses_a_broker_that_is_not_ours(tmp_path: Path, who: str) -> None:
    make_certificates(SITE, tmp_path / "ours")
    served = tmp_path / "ours" / "broker"
    if who == "another site's":
        make_certificates(SITE, tmp_path / "theirs")
        served = tmp_path / "theirs" / "broker"
    elif who == "a node of ours":
        served = tmp_path / "ours" / Principal(Role.LC, "edge0").folder
    elif who == "ours under another name":
        make_certificates(Site(broker=["broker.example.com"], nodes=SITE.nodes), tmp_path / "ours")
    context = server_context(served)
    if who == "ours with old TLS":
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with listening(context) as (port, said):
        with pytest.raises(NotAllowedError, match=BROKERS[who]):
            await MqttBus("gm", settings(tmp_path / "ours", port)).check_reachable()
        assert said == []


def server_context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def settings(folder: Path, port: int) -> MqttSettings:
    url = f"mqtts://127.0.0.1:{port}"
    return replace(MqttSettings.from_url(url, credentials=folder / GM.folder), connect_timeout_s=patience(1.0))


@contextlib.asynccontextmanager
async def listening(context: ssl.SSLContext | None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Yield the port of somebody who takes connections, and what was said there first on each."""
    said: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if first := await reader.read(65_536):
                said.append(first)
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], said
    finally:
        server.close()
