"""A running system lets in whom it knows, and no secret of it is anywhere but in its own files."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from halimede.bus.credentials import Credentials
from halimede.cli.client import NotLetInError, check_reachable
from tests.e2e.running import DIGITS, System, digits, running
from tests.e2e.shell import halimede
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]
SECRET_FILES = ("password", "tls.key", "ca.key", "passwords")


@dataclass
class Guarded:
    """A system that runs the digits, and a stranger who has listened from its beginning."""

    system: System
    tls: bool
    stranger: asyncio.subprocess.Process


@pytest_asyncio.fixture(params=[(), ("--tls",)], ids=["passwords", "tls"], scope="module", loop_scope="module")
async def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    """One for each way of letting in: what is looked at changes nothing; the test that deletes comes last."""
    async with running(tmp_path_factory.mktemp("guarded") / "a home", "edge0,cloud0", *request.param) as system:
        stranger = ["mosquitto_sub", "-h", "127.0.0.1", "-p", system.port, "-t", "#", "-t", "$SYS/#", "-W", "60"]
        if request.param:
            stranger += ["--cafile", str(system.home / "site" / "ca.crt")]
        listening = await asyncio.create_subprocess_exec(
            *stranger, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "XDG_CONFIG_HOME": "/nowhere"}
        )
        await system.run_digits()
        yield Guarded(system, bool(request.param), listening)
    assert not (system.home / "clients").exists()


async def test_mosquittos_own_tools_work_as_the_operator(guarded: Guarded) -> None:
    command = ["mosquitto_sub", "-t", "sedna/gm/presence", "-C", "1", "-W", "20"]
    heard = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, env=guarded.system.tools)
    assert b'"online":true' in heard.stdout, heard.stderr


def secrets_of(home: Path) -> set[bytes]:
    """Return every secret of a site: passwords, and the lines of keys."""
    found: set[bytes] = set()
    for path in (home / "site").rglob("*"):
        if path.name in SECRET_FILES and path.is_file():
            lines = path.read_bytes().splitlines()
            found |= {line.split(b":", 1)[-1] for line in lines if line and not line.startswith(b"-----")}
    return {secret for secret in found if len(secret) >= 16}


def where_it_should_not_be(system: System) -> Iterator[tuple[str, bytes]]:
    """Yield what users and other processes get to see."""
    for name, process in {**system.processes(), "launcher": psutil.Process(system.process.pid)}.items():
        yield f"command line of {name}", " ".join(process.cmdline()).encode()
        yield f"environment of {name}", repr(process.environ()).encode()
    for path in system.home.rglob("*"):
        if path.is_file() and not {"site", "clients"} & set(path.relative_to(system.home).parts):
            yield str(path), path.read_bytes()
    yield "what the launcher said", (system.home.parent / f"{system.home.name}.log").read_bytes()


async def test_no_secret_is_anywhere_but_in_the_files_of_the_site(guarded: Guarded) -> None:
    system = guarded.system
    await system.send(digits()[:50])
    await system.until_answered()
    secrets = secrets_of(system.home)
    assert len(secrets) >= 8, "a user each at least"
    seen = list(where_it_should_not_be(system))
    seen += [
        (packet.topic, bytes(packet.payload)) for packet in await system.messages_of(system.home / "site" / "gm", 3)
    ]
    for words in (["get", "ji", "digits", "-o", "yaml"], ["describe", "ji", "digits"], ["events"], ["nodes"],
                  ["get", "models", "-o", "json"], ["logs", "digits"]):  # fmt: skip
        seen.append((" ".join(words), (await halimede(system.home, *words)).encode()))
    assert len(seen) > 20
    assert [(name, s) for name, text in seen for s in secrets if s in text] == []
    # the search finds what is there
    clients = (system.home / "clients" / "mosquitto_sub").read_bytes()
    assert guarded.tls or any(secret in clients for secret in secrets)


async def test_a_worker_is_told_its_roles_credentials_and_the_files_are_their_owners(guarded: Guarded) -> None:
    system = guarded.system
    site = system.home / "site"
    for name, role, node in (("edge-edge0", "edge-worker", "edge0"), ("cloud-cloud0", "cloud-worker", "cloud0")):
        told = system.processes()[f"worker:digits-{name}"].environ()
        assert told["HALIMEDE_CREDENTIALS"] == str(site / "nodes" / node / role)
        assert [k for k, v in told.items() if str(site) in v and k != "HALIMEDE_CREDENTIALS"] == []
    for folder in (site, system.home / "clients"):
        for path in (folder, *folder.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            if path.is_dir():
                assert mode == 0o700, f"{path}: {mode:o}"
            elif path.name in SECRET_FILES or folder.name == "clients":
                assert mode == 0o600, f"{path}: {mode:o}"


async def test_the_whole_job_is_done_and_whoever_shows_nothing_gets_nothing(guarded: Guarded) -> None:
    """The last one of a system: it deletes what runs."""
    system, listening = guarded.system, guarded.stranger
    assert system.settings.secure is guarded.tls
    before = set(system.sent)
    pictures = digits()[:200]
    await system.send(pictures)
    await system.until_answered()
    mine = [result for id_, result in system.results.items() if id_ in set(system.sent) - before]
    assert {r.by for r in mine} == {"edge", "cloud"}
    assert not any(r.degraded for r in mine)
    await system.until("the count", lambda: system.metric("inferenceNumber") == len(system.sent))
    await halimede(system.home, "delete", "-f", DIGITS)
    await system.until("status cleared", lambda: system.status is None)
    await system.until("workers gone", lambda: not system.workers())
    if listening.returncode is None:
        listening.terminate()
    heard, complained = await asyncio.wait_for(listening.communicate(), patience(30))
    assert (heard, listening.returncode == 0) == (b"", False), complained


async def test_two_systems_refuse_one_anothers_clients_and_nodes_that_change_keep_them_out(tmp_path: Path) -> None:
    from halimede.cli.broker_address import BrokerAddress

    async with running(tmp_path / "one", "edge0,edge1") as one, running(tmp_path / "two", "edge0") as two:
        for a, b in ((one, two), (two, one)):
            theirs = replace(a.settings, credentials=b.settings.credentials)
            with pytest.raises(NotLetInError, match=r"Not authorized.*current folder of a user of this broker's site"):
                await check_reachable(BrokerAddress(theirs, "the test"))
        kept = (tmp_path / "one" / "site" / "nodes" / "edge0" / "lc" / "password").read_bytes()
        gone = (tmp_path / "one" / "site" / "nodes" / "edge1" / "lc" / "password").read_bytes()
    async with running(tmp_path / "one", "edge0,edge2") as one:
        site = one.home / "site"
        assert (site / "nodes" / "edge0" / "lc" / "password").read_bytes() == kept
        assert sorted(p.name for p in (site / "nodes").iterdir()) == ["edge0", "edge2"]
        old = tmp_path / "old"
        old.mkdir()
        (old / "username").write_text("lc.edge1")
        (old / "password").write_bytes(gone)
        with pytest.raises(NotLetInError):
            await check_reachable(BrokerAddress(replace(one.settings, credentials=Credentials(old)), "the test"))


async def test_insecure_is_said_loudly_and_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_CREDENTIALS", "/those/of/another/system")
    async with running(tmp_path / "home", "edge0", "--insecure") as system:
        assert system.settings.credentials is None
        assert "INSECURE" in (tmp_path / "home.log").read_text()
        assert not (system.home / "site").exists()


async def test_a_home_is_used_again_with_another_protection_of_the_broker(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for options in ((), ("--tls",), ("--insecure",), ()):
        async with running(home, "edge0", *options) as system:
            async with asyncio.timeout(patience(30)):
                while [node.online for node in await system.client.nodes()] != [True]:
                    await asyncio.sleep(0.1)
            if not options:
                assert system.settings.credentials
