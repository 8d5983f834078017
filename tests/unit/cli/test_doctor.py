"""Each check of ``doctor`` on its own: what is well, what is not, and what it says to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.access.mosquitto import ENVIRONMENT
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import Grants
from halimede.bus.settings import MqttSettings
from halimede.cli.cameras import rows, statuses
from halimede.cli.commands import doctor
from halimede.cli.doctor import broker, broker_features, machine
from halimede.cli.doctor.broker import V5, V311
from halimede.cli.system_facts import listen
from halimede.health_checks.check import Check
from halimede.messages import CameraStatus


def levels(checks: list[Check]) -> list[str]:
    return [check.level for check in checks]


@pytest.mark.parametrize(
    ("grants", "level", "part"),
    [
        (Grants(), "ok", "messages of any size"),
        (Grants(retain=False), "problem", "retained messages"),
        (Grants(shared=False), "problem", "shared subscriptions"),
        (Grants(wildcards=False), "problem", "wildcard"),
        (Grants(max_qos=0), "problem", "QoS 1"),
        (Grants(max_packet=65536), "warning", "65536 bytes"),
        (Grants(receive_maximum=20), "warning", "20 messages in flight"),
    ],
)
def test_limits_are_judged_by_what_the_broker_said(grants: Grants, level: str, part: str) -> None:
    (check,) = broker_features.limits(grants)
    assert check.level == level
    assert part in check.found
    assert bool(check.do) == (level != "ok")


@pytest.fixture
async def doctor_bus(memory_broker: MemoryBroker) -> AsyncIterator[MemoryBus]:
    async with MemoryBus("doctor", memory_broker) as bus:
        await bus.wait_connected(5.0)
        yield bus


async def say(broker_: MemoryBroker, said: CameraStatus) -> None:
    async with MemoryBus("camera", broker_) as camera:
        await camera.wait_connected(5.0)
        await camera.publish(topics.CAMERA_STATUS.at(ns="default", camera="door"), said)


async def test_what_cameras_say_is_retained_and_heard(memory_broker: MemoryBroker, doctor_bus: MemoryBus) -> None:
    said = CameraStatus(camera="door", state="stalled", reason="Stalled")
    await say(memory_broker, said)
    assert await statuses(doctor_bus, 0.2) == [("default/sedna/cameras/door/status", said)]


#: of blakeblackshear/frigate issues 5798 and 6684, and an @ in the password as in 4974
LEAKS = (
    "Did you mean file:rtsp://hass:Welcome123%21@192.168.1.3:554",
    'error="dial tcp: i/o timeout" url=rtsp://frigate:Welcome123@10.0.0.108:554/cam/realmonitor?channel=1&pw=Welcome123',
    "got: rtsp://User:Welcome123$p*@JX@192.168.1.2:554/live",
)


@pytest.mark.parametrize("text", LEAKS)
async def test_a_foreign_camera_shows_no_secret(memory_broker: MemoryBroker, doctor_bus: MemoryBus, text: str) -> None:
    await say(memory_broker, CameraStatus(camera="door", state="failed", source=text, reason=text, error=text))
    reports = await statuses(doctor_bus, 0.2)
    assert (await listen(doctor_bus, 0.2)).cameras == reports
    for row in rows(reports, []):
        assert "Welcome123" not in str(row)
        assert "JX" not in str(row)
        assert row["error"].startswith(text[:8])
        assert row["state"] == "failed"


def test_the_disk_is_looked_at_where_a_system_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(machine.disks(tmp_path / "absent")) == ["ok"]
    monkeypatch.setattr(machine, "ENOUGH_FREE", 10**18)
    assert levels(machine.disks(tmp_path)) == ["warning"]
    monkeypatch.setattr(machine, "MIN_FREE", 10**18)
    assert levels(machine.disks(tmp_path)) == ["problem"]


Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


async def answered(answering: Answering) -> Check:
    server = await asyncio.start_server(answering, "127.0.0.1", 0)
    async with server:
        return await broker.version(MqttSettings("127.0.0.1", server.sockets[0].getsockname()[1]))


@pytest.mark.parametrize(
    ("answer", "level", "part"),
    [
        (b"\x20\x03\x00\x87\x00", "ok", "MQTT v5"),
        (b"\x20\x02\x00\x01", "problem", "only MQTT 3.1.1"),
        (b"HTTP/1.1 400 Bad Request\r\n", "problem", "without a reply"),
        (b"", "problem", "without a reply"),
    ],
)
async def test_the_protocol_is_read_from_the_first_answer(answer: bytes, level: str, part: str) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        writer.close()

    check = await answered(server)
    assert check.level == level
    assert part in check.found


async def test_a_broker_that_answers_the_older_version_alone_is_found_out() -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        level = (await reader.read(100))[8]
        assert level in {V311, V5}
        writer.write(b"\x20\x02\x00\x05" if level == V311 else b"")
        writer.close()

    assert "only MQTT 3.1.1" in (await answered(server)).found


async def test_what_cannot_be_reached_ends_the_examination(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path))
    checks = [check async for check in doctor.examine("127.0.0.1:9", "")]
    assert [(c.name, c.level) for c in checks][-2:] == [("name", "ok"), ("connection", "problem")]
    checks = [check async for check in doctor.examine("no-such-host.invalid", "")]
    assert [(c.name, c.level) for c in checks][-1:] == [("name", "problem")]
    checks = [check async for check in doctor.examine("x:y", "")]
    assert [(c.name, c.level) for c in checks][-1:] == [("broker", "problem")]


class Line:
    """What a network and a broker on it take, in milliseconds, for ``doctor_broker.speed``."""

    def __init__(self, network: float, small: float, large: float) -> None:
        self.network, self.small, self.large = network, small, large
        self.sizes: list[int] = []

    async def distance_ms(self, _: MqttSettings) -> float:
        return self.network

    async def round_trips(self, _: Any, count: int, body: bytes = b"", **__: Any) -> list[float]:
        self.sizes.append(len(body))
        return [self.small + self.large * len(body) / broker.LARGE] * count


@pytest.fixture
def speed(doctor_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> Callable[[Line, str], Any]:
    async def checks(line: Line, host: str) -> list[Check]:
        monkeypatch.setattr(broker, "_distance_ms", line.distance_ms)
        monkeypatch.setattr("halimede.cli.doctor.latency.round_trips", line.round_trips)
        return [check async for check in broker.speed(doctor_bus, MqttSettings(host))]

    return checks


@pytest.mark.parametrize(
    ("line", "small", "large", "do"),
    [
        (Line(0.1, 0.4, 2.0), "ok", "ok", ""),
        (Line(0.1, 44.0, 45.0), "warning", "ok", "set_tcp_nodelay true"),
        (Line(60.0, 62.0, 80.0), "warning", "ok", "the network is slow"),
        (Line(60.0, 102.0, 80.0), "warning", "ok", "set_tcp_nodelay true"),
        (Line(15.0, 16.0, 1500.0), "ok", "warning", "encoding"),
        (Line(15.0, 16.0, 120_000.0), "ok", "warning", "encoding"),
    ],
    ids=["a loopback", "Nagle", "far", "far, and Nagle", "narrow", "very narrow"],
)
async def test_what_takes_long_is_named(line: Line, small: str, large: str, do: str, speed: Any) -> None:
    found = {check.name: check for check in await speed(line, "broker.example.com")}
    assert (found["round trip"].level, found["large frames"].level) == (small, large)
    assert do in found["round trip"].do + found["large frames"].do
    # a line on which a tenth takes long already is not filled for minutes
    assert (broker.LARGE in line.sizes) is (line.large < 100_000)


def open_port(proc: Path) -> None:
    (proc / "net").mkdir()
    (proc / "net/tcp").write_text("  sl  local_address\n 0: 0100007F:075B 0:0 0A 0:0 00:0 0 0 0 4711 1\n")


def test_an_allocator_that_cannot_be_seen_is_no_finding(tmp_path: Path) -> None:
    assert machine.check_allocator(1883, tmp_path) is None
    open_port(tmp_path)
    assert machine.check_allocator(1883, tmp_path) is None


@pytest.mark.parametrize(
    ("environ", "maps", "level"),
    [
        (ENVIRONMENT, "libc.so.6", "ok"),
        ({**ENVIRONMENT, "MALLOC_TOP_PAD_": "1"}, "libc.so.6", "warning"),
        ({}, "libc.so.6", "warning"),
        ({}, "/lib/ld-musl-x86_64.so.1", None),
    ],
)
def test_the_brokers_environment_says_whether_its_allocator_is_pinned(
    tmp_path: Path, environ: dict[str, str], maps: str, level: str | None
) -> None:
    open_port(tmp_path)
    process = tmp_path / "42"
    (process / "fd").mkdir(parents=True)
    (process / "fd/3").symlink_to("socket:[4711]")
    (process / "comm").write_text("mosquitto\n")
    (process / "maps").write_text(maps)
    (process / "environ").write_text("\0".join(f"{name}={value}" for name, value in environ.items()))
    check = machine.check_allocator(1883, tmp_path)
    assert (check and check.level) == level


@pytest.mark.parametrize(
    ("control", "level"),
    [("cubic\n", "ok"), ("reno\n", "ok"), ("dctcp\n", "ok"), ("bbr\n", "warning"), ("bbr2\n", "warning"), (None, None)],
)
def test_a_congestion_control_that_paces_is_told_and_without_one_nothing_is_said(
    tmp_path: Path, control: str | None, level: str | None
) -> None:
    file = tmp_path / "tcp_congestion_control"
    if control is not None:
        file.write_text(control)
    check = machine.check_congestion(file)
    assert (check and check.level) == level
    if check:
        assert str(control).strip() in check.found
        assert ("sysctl -w net.ipv4.tcp_congestion_control=cubic" in check.do) is (level == "warning")


@pytest.mark.parametrize(("host", "said"), [("127.0.0.1", True), ("localhost", True), ("broker.example.com", False)])
async def test_this_machines_pacing_matters_where_the_broker_is_on_it(
    host: str, said: bool, speed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, check = tmp_path / "tcp_congestion_control", machine.check_congestion
    file.write_text("bbr\n")
    monkeypatch.setattr(machine, "check_congestion", lambda: check(file))
    checks = await speed(Line(0.1, 0.4, 2.0), host)
    assert [check.level for check in checks if check.name == "congestion"] == ["warning"] * said
