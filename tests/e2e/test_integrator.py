"""The examples for integrators: three programs without halimede, beside a running system."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from halimede.frames.payloads import open_payload
from tests.e2e.running import DIGITS, ROOT, System, digits, running
from tests.programs import run_python
from tests.waiting import patience

EXAMPLES = ROOT / "examples" / "integrator"
LINES = 40


def url(system: System) -> str:
    """The broker with the password that the system wrote for Mosquitto's tools."""
    options = dict(line.split(" ", 1) for line in (system.home / "clients/mosquitto_pub").read_text().splitlines())
    return f"mqtt://{options['-u']}:{options['-P']}@127.0.0.1:{system.port}"


def run(program: str, *arguments: str | Path) -> str:
    return run_python(EXAMPLES / program, *arguments, check=True).stdout


def test_they_are_short_and_import_nothing_of_halimede() -> None:
    for program in EXAMPLES.glob("*.py"):
        text = program.read_text()
        assert len(text.splitlines()) <= LINES, program
        assert "halimede" not in text, program


def test_a_frame_that_msgpack_writes_is_one_that_a_worker_reads(tmp_path: Path) -> None:
    (tmp_path / "seven.png").write_bytes(digits()[0])
    shown = run("frame.py", tmp_path / "seven.png", tmp_path / "frame.msgpack")
    frame = open_payload((tmp_path / "frame.msgpack").read_bytes(), "cam0")
    assert (frame.encoding, bytes(frame.data), frame.sequence) == ("png", digits()[0], 1)
    assert frame.id.hex() in shown


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_camera_of_paho_is_answered_and_a_consumer_of_aiomqtt_sees_it(tmp_path: Path) -> None:
    (tmp_path / "digit.png").write_bytes(digits()[0])
    run("frame.py", tmp_path / "digit.png", tmp_path / "frame.msgpack")
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        command = [sys.executable, str(EXAMPLES / "consumer.py"), url(system)]
        consumer = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
        assert consumer.stdout
        try:
            await system.apply(DIGITS)
            async with asyncio.timeout(patience(60)):
                while await consumer.stdout.readline() != b"JointInferenceService digits Running\n":
                    pass
                for file in ("digit.png", "frame.msgpack"):
                    shown = await asyncio.to_thread(run, "camera.py", url(system), tmp_path / file)
                    assert "published" in shown
                    while not (line := await consumer.stdout.readline()).startswith(b"digits cam0 "):
                        pass
                    assert line.split()[-1] in {b"edge", b"cloud"}
        finally:
            consumer.terminate()
            await consumer.wait()
