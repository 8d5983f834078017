"""The embedded broker: it starts where there is room, says what is wrong, and leaves no process behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.errors import HalimedeError, InvalidFieldError
from services import broker as module
from services import system as system_module
from services.broker import MosquittoProcess
from services.site import Security
from services.system import RunFile
from tests.ports import free_port
from tests.simulated import eventually
from tests.waiting import patience


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@pytest.mark.parametrize("is_lost", [False, True], ids=["taken before", "lost between looking and starting"])
async def test_without_a_port_it_takes_the_next_free_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int, is_lost: bool
) -> None:
    monkeypatch.setattr(module, "DEFAULT_PORT", taken)
    if is_lost:
        monkeypatch.setattr(MosquittoProcess, "_can_use", lambda _, port: True)
    async with MosquittoProcess(tmp_path) as broker:
        assert broker.port > taken


async def test_a_broker_that_starts_again_has_the_port_that_its_clients_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = MosquittoProcess(tmp_path)
    with socket.create_server((module.HOST, 0)) as other:
        monkeypatch.setattr(module, "DEFAULT_PORT", other.getsockname()[1])
        await broker.start()
        port = broker.port
        await broker.kill()
    async with broker:
        assert broker.port == port > module.DEFAULT_PORT


async def test_a_given_port_in_use_is_a_clear_error(tmp_path: Path, taken: int) -> None:
    with pytest.raises(InvalidFieldError, match=f"port: {taken} .* in use"):
        await MosquittoProcess(tmp_path, port=taken).start()


async def test_a_missing_mosquitto_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.broker.shutil.which", lambda *_, **__: None)
    with pytest.raises(HalimedeError, match="apt install mosquitto"):
        await MosquittoProcess(tmp_path).start()


async def test_a_configuration_that_it_refuses_is_shown(tmp_path: Path) -> None:
    broker = MosquittoProcess(tmp_path, access=["nonsense true"])
    with pytest.raises(HalimedeError, match=r"mosquitto\.conf"):
        await broker.start()
    assert broker.pid is None


async def test_a_restart_keeps_the_port_and_loses_what_was_retained(tmp_path: Path, unique: str) -> None:
    got: list[bytes] = []

    async def receive(packet: Packet) -> None:
        got.append(packet.payload)

    async with MosquittoProcess(tmp_path, port=free_port()) as broker:
        port, pid = broker.port, broker.pid
        async with MqttBus(unique, broker.url) as bus:
            await bus.wait_connected(patience(5))
            await bus.send(Packet("kept", b"old", retain=True))
        await broker.restart()
        assert broker.port == port
        assert broker.pid != pid
        async with MqttBus(unique, broker.url) as bus:
            await bus.wait_connected(patience(5))
            await bus.listen("kept", 1, receive, 10)
            await bus.send(Packet("kept", b"new"))
            await eventually(lambda: got == [b"new"])


async def test_its_log_is_kept_over_a_restart_and_an_old_line_is_no_sign_that_it_runs(tmp_path: Path) -> None:
    async with MosquittoProcess(tmp_path, port=free_port()) as broker:
        before = broker.log.read_text()
        assert " running" in before
        await broker.restart()
        assert broker.log.read_text().startswith(before)
        assert " running" in broker.log.read_text().removeprefix(before)
    with pytest.raises(HalimedeError, match=r"did not start"):
        await MosquittoProcess(tmp_path, access=["nonsense true"]).start()


async def test_its_unexpected_end_is_noticed(tmp_path: Path) -> None:
    async with MosquittoProcess(tmp_path, port=free_port()) as broker:
        waiting = asyncio.create_task(broker.wait())
        assert broker.pid
        os.kill(broker.pid, signal.SIGKILL)
        async with asyncio.timeout(patience(5)):
            assert await waiting == -signal.SIGKILL
        await broker.start()
        assert broker.pid


async def test_one_that_does_not_react_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_TIMEOUT", 0.1)
    broker = MosquittoProcess(tmp_path)
    await broker.start()
    pid = broker.pid
    assert pid
    os.kill(pid, signal.SIGSTOP)
    await broker.stop()
    assert not psutil.pid_exists(pid)


async def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    program = f"""
        import asyncio, pathlib
        from services.broker import MosquittoProcess
        async def main():
            broker = MosquittoProcess(pathlib.Path({str(tmp_path)!r}))
            await broker.start()
            print(broker.pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
    """
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(program), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout
    async with asyncio.timeout(patience(20)):
        pid = int(await parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    await parent.wait()
    await eventually(lambda: ended(pid))


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_the_system_outlives_a_broker_that_cannot_be_restarted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_module, "BROKER_PAUSE", 0.05)
    said: list[str] = []
    with RunFile(tmp_path) as run_file:
        layout = system_module.SystemLayout(tmp_path, security=Security.INSECURE)
        system = system_module.System(layout, run_file, said.append)
        broker = system._broker
        await broker.start()
        keeping = asyncio.create_task(system._keep_broker())
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            assert broker.pid
            os.kill(broker.pid, signal.SIGKILL)
            await eventually(lambda: broker.pid is None)
            thief.bind((module.HOST, broker.port))
            thief.listen()
            await eventually(lambda: sum("did not start" in line for line in said) >= 2)
            assert not keeping.done()
        await eventually(lambda: broker.pid is not None, 10)
        # stopping does not wait for a long pause
        monkeypatch.setattr(system_module, "BROKER_LONGEST_PAUSE", 60.0)
        system._stopping.set()
        await broker.stop()
        async with asyncio.timeout(patience(1)):
            await keeping
    assert said[0] == "the broker ended; restarting it"
    assert "it is in use" in said[1]


async def test_a_broker_that_dies_again_and_again_is_started_ever_more_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    with RunFile(tmp_path) as run_file:
        system = system_module.System(system_module.SystemLayout(tmp_path), run_file, lambda _: None)

        async def stops_within(seconds: float) -> bool:
            pauses.append(seconds)
            return len(pauses) == 8

        async def nothing() -> int:
            return 1

        monkeypatch.setattr(system, "_is_stopped_within", stops_within)
        monkeypatch.setattr(system._broker, "wait", nothing)
        monkeypatch.setattr(system._broker, "restart", nothing)
        await system._keep_broker()
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def newer_mosquitto(folder: Path, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a ``mosquitto`` that logs as version 2.1 does: as root one of its first entries has the word running."""
    program = f"""\
        #!/bin/sh
        echo "1795903183: Info: running mosquitto as user: root."
        {start} {module.find_mosquitto()} "$@"
        echo "1795903183: mosquitto version 2.1.2 terminating"
        exit 3
    """
    folder.mkdir()
    (folder / "mosquitto").write_text(textwrap.dedent(program))
    (folder / "mosquitto").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


async def test_it_has_started_when_it_accepts_connections_and_not_when_its_log_has_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unique: str
) -> None:
    newer_mosquitto(tmp_path / "bin", "sleep 0.5; exec", monkeypatch)
    async with MosquittoProcess(tmp_path / "broker") as broker, MqttBus(unique, broker.url) as bus:
        await bus.wait_connected(patience(5))


async def test_the_error_of_a_failed_start_is_its_cause_and_not_the_last_entry_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer_mosquitto(tmp_path / "bin", "", monkeypatch)
    broker = MosquittoProcess(tmp_path / "broker", access=[f"acl_file {tmp_path / 'missing'}"])
    with pytest.raises(HalimedeError, match=r"did not start: Error: Unable to open acl_file .*missing") as failure:
        await broker.start()
    assert "terminating" not in str(failure.value)
