"""The program of the bridge to Home Assistant on a real Mosquitto with a site's rules."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from halimede import programs
from halimede.access.mosquitto import listener_lines
from halimede.access.passwords import make_passwords
from halimede.access.site import Site
from halimede.bus.mqtt import MqttBus, MqttSettings
from services.broker import MosquittoProcess
from tests.homeassistant.listener import DiscoveryListener
from tests.ports import free_port
from tests.waiting import eventually, output_of, patience


@dataclass
class GuardedSite:
    """A broker with the rules of a site that has a consumer ``homeassistant``."""

    folder: Path
    port: int

    def user(self, path: str) -> str:
        return str(self.folder / "site" / path)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedSite]:
    folder = tmp_path_factory.mktemp("site")
    make_passwords(Site(nodes=["edge0"], consumers=["homeassistant", "viewer"]), folder / "site")
    broker = MosquittoProcess(folder, port=free_port(), access=listener_lines(folder / "site", tls=False))
    asyncio.run(broker.start())
    yield GuardedSite(folder, broker.port)
    asyncio.run(broker.stop())


async def started(site: GuardedSite, *options: str) -> asyncio.subprocess.Process:
    """Start ``halimede bridge homeassistant`` as its user would."""
    command = [sys.executable, "-m", "halimede", "bridge", "homeassistant", "--broker", f"127.0.0.1:{site.port}"]
    variables = {**programs.child_variables(), "PATH": "/usr/bin:/bin", "HALIMEDE_HOME": str(site.folder)}
    return await asyncio.create_subprocess_exec(
        *command, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=variables
    )


async def test_the_program_runs_with_the_rights_of_its_consumer_and_ends_with_a_signal(site: GuardedSite) -> None:
    user = site.user("consumers/homeassistant")
    async with MqttBus("core", MqttSettings.from_url(f"127.0.0.1:{site.port}", credentials=user)) as bus:
        await bus.wait_connected(patience(10))
        core = DiscoveryListener(bus)
        await core.start()
        process = await started(site, "--credentials", user)
        await eventually(lambda: core.state("availability") == b"online", 60)
        await eventually(lambda: set(core.documents) == {"system"})
        process.send_signal(signal.SIGTERM)
        output = await output_of(process)
        assert process.returncode == 0, output
        assert "refuse" not in output
        await eventually(lambda: core.state("availability") == b"offline")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--credentials", "consumers/viewer"], "homeassistant/halimede/halimede"),
        (["--credentials", "consumers/homeassistant", "--prefix", "other"], "read and write other/#"),
        (["--credentials", "consumers/homeassistant", "--control"], "use the credentials of an operator"),
    ],
)
async def test_a_user_without_the_rights_gets_one_line_with_what_to_do(
    site: GuardedSite, options: list[str], message: str
) -> None:
    process = await started(site, *(site.user(option) if "/" in option else option for option in options))
    output = await output_of(process)
    errors = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert process.returncode == 1, output
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in output
