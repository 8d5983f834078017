"""The operator's tools against a real broker and global manager."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.bus.mqtt import MqttSettings
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.commands import doctor, drain, status, top
from halimede.cli.commands.get import show_nodes
from halimede.cli.options import Format
from halimede.health_checks.check import Check
from halimede.messages import Load
from services.broker import MosquittoProcess, find_mosquitto
from services.site import LocalSite, Security
from tests.integration.cli.conftest import Output, Printed, background, manager, running
from tests.ports import free_port
from tests.waiting import eventually, patience


async def test_status_is_healthy_when_all_runs_and_names_what_does_not(
    broker: BrokerAddress, client: Client, digits_running: None, capsys: Output
) -> None:
    for model in ("digits-big", "digits-small"):
        await client.wait_until(lambda b: "Ready" in str(b), "models", model, timeout_s=30)
    assert await status.show_status(broker, Format.TABLE) == 0
    shown = capsys.readouterr().out
    for part in (str(broker), "mosquitto version", "round trip", "GM:       up, version", "2 online", "1 Running"):
        assert part in shown
    assert "No problems found." in shown

    await client.drain("edge0")
    await client.wait_until(lambda b: "NodeDrained" in str(b), "jointinferenceservices", "digits", timeout_s=30)
    assert await status.show_status(broker, Format.JSON) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is False
    assert told["services"][0]["reason"] == "NodeDrained"
    assert "uncordon" in told["todo"][0]["do"]
    assert [node["name"] for node in told["nodes"] if node.get("drained")] == ["edge0"]


async def test_status_without_a_gm_or_a_broker_says_so_and_fails(broker: BrokerAddress, capsys: Output) -> None:
    assert await status.show_status(broker, Format.TABLE) == 1
    assert "no global manager is connected" in capsys.readouterr().out
    nowhere = BrokerAddress(MqttSettings("127.0.0.1", 9), "the test")
    assert await status.show_status(nowhere, Format.JSON) == 1
    assert json.loads(capsys.readouterr().out)["broker"]["reachable"] is False


@pytest.mark.slow
async def test_top_shows_what_is_there_once_as_a_table_and_as_json(
    broker: BrokerAddress, nodes: Any, digits_running: None, capsys: Output
) -> None:
    load = topics.LOAD.at(ns="default", service="digits", worker="digits-cloud-cloud0")
    await nodes["cloud0"].bus.publish(load, Load(credits=7, service_ms=1.5))
    await top.show_system(broker, 1.0, "rate", Format.JSON, once=True)
    told = json.loads(capsys.readouterr().out)
    (service,) = told["services"]
    assert (service["name"], service["phase"], service["frames"]) == ("digits", "Running", 10)
    assert told["gm"]["online"] is True
    assert told["cloudWorkers"][0]["credits"] == 7
    assert {node["name"]: node["status"] for node in told["nodes"]} == {"edge0": "online", "cloud0": "online"}
    await top.show_system(broker, 1.0, "phase", Format.TABLE, once=True)
    assert "default/digits" in capsys.readouterr().out


async def test_top_goes_on_while_the_broker_is_away(
    mosquitto: MosquittoProcess, broker: BrokerAddress, gm: None, printed: Printed
) -> None:
    async def shows(connected: bool) -> None:
        def last() -> Any:
            lines = printed.out.splitlines()
            return json.loads(lines[-1])["broker"]["connected"] if lines else None

        await eventually(lambda: last() is connected, 30, 0.1)

    async with background(top.show_system(broker, 0.2, "phase", Format.JSON, once=False)):
        await shows(True)
        await mosquitto.kill()
        await shows(False)
        await mosquitto.start()
        await shows(True)


async def test_drain_waits_until_the_node_is_empty_and_says_what_has_no_other(
    broker: BrokerAddress, client: Client, nodes: Any, digits_running: None, capsys: Output
) -> None:
    nodes["edge0"].obedient = False
    assert await drain.drain_node(broker, "edge0", wait=True, timeout_s=1.0) == 1
    said = capsys.readouterr()
    assert "1 worker of 1 service" in said.err
    assert "service digits in namespace default: its edge worker can run only on" in said.err
    nodes["edge0"].obedient = True
    assert await drain.drain_node(broker, "edge0", wait=True, timeout_s=60) == 0
    assert "node edge0 is empty" in capsys.readouterr().out
    await show_nodes(broker, Format.TABLE)
    assert "online,drained" in capsys.readouterr().out
    await drain.uncordon_node(broker, "edge0")
    await running(client)
    with pytest.raises(ApiRefusedError, match="there is no node edge9"):
        await drain.drain_node(broker, "edge9", wait=False, timeout_s=1)


FINE = {
    "name", "connection", "limits", "round trip", "large frames", "allocator", "global manager", "clock", "services",
    "dead letters",
}  # fmt: skip


async def checks(address: str, credentials: str = "") -> dict[str, Check]:
    return {check.name: check async for check in doctor.examine(address, credentials)}


async def test_doctor_finds_an_open_broker_and_what_runs_on_it(
    broker: BrokerAddress, nodes: Any, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path / "absent"))
    found = await checks(f"127.0.0.1:{broker.settings.port}")
    assert {"strangers", "access rules"} <= {check.name for check in found.values() if check.level == "warning"}
    assert "problem" not in {check.level for check in found.values()}
    assert found["protocol"].found == "MQTT v5"
    assert {name: found[name].level for name in FINE} == dict.fromkeys(FINE, "ok")
    assert await doctor.run_checks(f"127.0.0.1:{broker.settings.port}", "", Format.JSON) == 0
    assert json.loads(capsys.readouterr().out)["level"] == "warning"


async def test_doctor_without_a_gm_is_a_problem(broker: BrokerAddress, capsys: Output) -> None:
    assert await doctor.run_checks(f"127.0.0.1:{broker.settings.port}", "", Format.TABLE) == 1
    shown = capsys.readouterr().out
    assert "no global manager is connected" in shown
    assert "halimede up" in shown


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[int]:
    """A Mosquitto with its own defaults: no set_tcp_nodelay, and nothing about its allocator."""
    port = free_port()
    config = tmp_path / "slow.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nuser root\nlog_dest none\n")
    process = await asyncio.create_subprocess_exec(find_mosquitto(), "-c", str(config))

    async def accepts() -> bool:
        with contextlib.suppress(OSError):
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
            return True
        return False

    await eventually(accepts, 30, 0.05)
    yield port
    process.terminate()
    await process.wait()


async def test_doctor_finds_the_small_window_and_the_allocator(slow: int) -> None:
    found = await checks(f"127.0.0.1:{slow}")
    assert found["allocator"].level == "warning"
    assert "MALLOC_TOP_PAD_=16777216" in found["allocator"].do
    assert "max_inflight_messages" in found["limits"].do


async def longest_pause_s(stop: asyncio.Event) -> float:
    """Return the longest time until ``stop`` in which this process did not run."""
    loop, longest = asyncio.get_running_loop(), 0.0
    while not stop.is_set():
        began = loop.time()
        await asyncio.sleep(0.01)
        longest = max(longest, loop.time() - began)
    return longest


async def test_doctor_finds_the_missing_nodelay(slow: int) -> None:
    """Linux acknowledges at once, without the delay, what comes after a pause of 200 ms (tcp_event_data_recv).

    That pause is the sum of this process's and the broker's: a machine that pauses this one for 30 ms is starved.
    """
    deadline = time.monotonic() + patience(30)
    while time.monotonic() < deadline:
        stop = asyncio.Event()
        pause = asyncio.create_task(longest_pause_s(stop))
        found = await checks(f"127.0.0.1:{slow}")
        stop.set()
        if found["round trip"].level == "warning":
            assert "set_tcp_nodelay true" in found["round trip"].do
            return
        assert await pause > 0.03, f"no pause of this process explains it: {found['round trip']}"
    pytest.skip("this machine paused the process in each try: the delay cannot be seen on it")


@pytest.mark.parametrize("security", [Security.PASSWORDS, Security.TLS])
async def test_doctor_is_content_with_a_guarded_site(
    tmp_path: Path, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path / "absent"))
    site = LocalSite(tmp_path / "home", ["edge0"], security)
    site.make()
    async with MosquittoProcess(tmp_path / "home", port=free_port(), access=site.access, secure=site.secure) as guarded:
        settings = MqttSettings.from_url(guarded.url, credentials=site.gm)
        async with manager(settings, tmp_path / "store.db"):
            found = await checks(guarded.url, str(site.operator))
            for name in ("encryption", "strangers", "credentials", "round trip", "access rules", "global manager"):
                assert found[name].level == "ok", found[name]
            stranger = await checks(guarded.url)
            assert "problem" in {check.level for check in stranger.values()}
