"""docker-compose.yml cannot be run by the tests; that it fits the rest of the repository can be checked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import NotAllowedError
from services.broker import MosquittoProcess
from tests.dockerfile import tags
from tests.ports import free_port
from tests.programs import run_python

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = YAML(typ="safe").load(ROOT / "docker-compose.yml")
SERVICES = COMPOSE["services"]


def option(service: str, name: str) -> str:
    """Return the value of an option in a service's command."""
    command = SERVICES[service]["command"]
    return str(command[command.index(f"--{name}") + 1])


def test_it_runs_a_broker_the_manager_and_a_node_of_each_role() -> None:
    assert set(SERVICES) == {"site", "broker", "gm", "edge0", "cloud0"}
    for name, role in (("edge0", "edge"), ("cloud0", "cloud")):
        assert option(name, "node") == name
        assert option(name, "label") == f"node-role.kubernetes.io/{role}="


def test_what_it_refers_to_is_there() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", [])) <= set(SERVICES)
        if "build" in service:
            target = service["build"]["target"]
            assert service["image"] == tags()[target]
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            made_here = source == "./build/site/operators"
            assert source in COMPOSE["volumes"] or (ROOT / source).exists() or made_here


@pytest.mark.slow
@pytest.mark.parametrize(("service", "program"), [("gm", "gm"), ("edge0", "lc"), ("cloud0", "lc")])
def test_its_commands_use_options_that_exist(service: str, program: str) -> None:
    shown = run_python("-m", "halimede", program, "--help", cwd=ROOT, check=True)
    options = {word for word in SERVICES[service]["command"] if word.startswith("--")}
    assert options
    assert all(option in shown.stdout for option in options)


async def test_its_broker_lets_in_those_to_whom_its_site_gives_credentials(tmp_path: Path) -> None:
    """What the service ``site`` runs is run, and Mosquitto with the broker's file, both with other paths."""
    (script,) = SERVICES["site"]["command"]
    python = script.split("<<'END'\n")[1].split("END\n")[0].replace("/site", str(tmp_path))
    await asyncio.to_thread(run_python, "-c", python, cwd=ROOT, check=True)
    written = (ROOT / "deploy" / "compose" / "mosquitto.conf").read_text().replace("/site/", f"{tmp_path}/")
    lines = [line for line in written.splitlines() if line.startswith(("allow", "password", "acl"))]
    async with MosquittoProcess(tmp_path / "run", port=free_port(), access=lines) as broker:
        folders = {"operators/admin": tmp_path / "operators" / "admin"}
        for service in ("gm", "edge0", "cloud0"):
            given = option(service, "credentials")
            mounts = [v.split(":")[1] for v in SERVICES[service]["volumes"]]
            assert [m for m in mounts if m.startswith("/site")] == [given], "its own credentials, and no others"
            folders[service] = Path(given.replace("/site", str(tmp_path))) / ("" if service == "gm" else "lc")
        for folder in folders.values():
            await MqttBus("compose", MqttSettings.from_url(broker.url, credentials=folder)).check_reachable()
        with pytest.raises(NotAllowedError):
            await MqttBus("compose", MqttSettings.from_url(broker.url)).check_reachable()


def test_its_broker_keeps_the_limits_of_the_embedded_one() -> None:
    written = (ROOT / "deploy" / "compose" / "mosquitto.conf").read_text().splitlines()
    names = ("max_packet_size", "max_inflight_messages", "max_queued_messages", "persistence", "set_tcp_nodelay")
    embedded = MosquittoProcess(ROOT)._configuration(1883)
    assert {line for line in written if line.startswith(names)} == {x for x in embedded if x.startswith(names)}
