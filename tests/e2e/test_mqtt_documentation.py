"""docs/mqtt.md: both of its programs as they stand there, and what it says of users, bodies and reason codes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import queue
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import jsonschema
import msgspec
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from PIL import Image

from halimede import topics
from halimede.contract import asyncapi
from halimede.messages import Frame
from tests.e2e.running import ROOT, System, digits, running
from tests.e2e.shell import blocks, environment, type_line
from tests.e2e.test_documentation import HOME, commands
from tests.npm import npm_package
from tests.password_broker import password_broker
from tests.programs import run_program

DOCUMENT = "docs/mqtt.md"
TEXT = (ROOT / DOCUMENT).read_text()
#: words of two pages without the code, and lines of a program
WORDS, LINES = 900, 17
#: what npm installs: the package that the document names
NPM = "mqtt@5"
NOT_AUTHORIZED, NO_SUBSCRIBER = 135, 16
#: seconds in which the broker answers, on a busy machine
ANSWER = 20.0


def table(first: str) -> list[list[str]]:
    """Return the rows of the table that begins with this heading, by their cells."""
    (found,) = re.findall(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines()]


def test_it_has_two_pages_and_short_programs() -> None:
    prose = re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= WORDS
    programs = [*blocks(DOCUMENT, "python"), *blocks(DOCUMENT, "javascript")]
    assert len(programs) == 2
    for program in programs:
        assert len([line for line in program.splitlines() if line]) <= LINES
        assert "halimede" not in program


def test_its_topics_are_those_of_the_contract() -> None:
    contract = {topic.template: topic for topic in topics.CONTRACT}
    for name, _, qos, _ in table("topic"):
        topic = contract[re.sub("<(.*?)>", r"{\1}", name.strip("`")).replace("{namespace}", "{ns}")]
        assert ("retained" in qos) == topic.retain, name


def test_its_fields_of_a_frame_are_those_of_the_contract() -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(Frame)}
    rows = {cells[0].strip("`"): cells[2].startswith("required") for cells in table("field")}
    assert rows.keys() <= fields.keys()
    assert {name for name, required in rows.items() if required} == {
        name for name, field in fields.items() if field.required
    }


def test_its_bodies_fit_their_schemas() -> None:
    result, *cameras = map(json.loads, blocks(DOCUMENT, "json"))
    assert len(cameras) == 2
    for topic, bodies in ((topics.RESULT, [result]), (topics.CAMERA_STATUS, cameras)):
        for body in bodies:
            jsonschema.validate(body, asyncapi.schema(topic))


@contextlib.asynccontextmanager
async def system_of_a_user(tmp_path: Path, *options: str) -> AsyncIterator[System]:
    """Start a system below the home folder of a user, in which the document's lines find it and a picture."""
    pictures = tmp_path / "examples" / "digits" / "pictures"
    pictures.mkdir(parents=True)
    Image.open(io.BytesIO(digits()[0])).save(pictures / "camera.jpg")
    async with running(tmp_path / HOME, "edge0,cloud0", *options) as system:
        yield system


async def round_trip(system: System, tmp_path: Path, program: str) -> str:
    """Type the line that starts a program, after the service has been applied; return what it prints."""
    await system.run_digits()
    (line,) = (line for line in commands(DOCUMENT) if line.startswith(f"{program} "))
    line = line.replace(" 1883 ", f" {system.port} ")
    return await type_line(line, environment("", HOME=str(tmp_path), PYTHONPATH=""), tmp_path)


def check(output: str) -> None:
    """Fail unless a program has shown the service as Running, and then the answer to its picture."""
    before, topic, answer = output.rpartition("default/sedna/inference/digits/result")
    assert topic, output
    assert re.search(r"\Wby\W+(edge|cloud)\W", answer), output
    assert re.search(r"\Wcamera\W+cam0\W", answer), output
    assert "default/sedna/status/jointinferenceservices/digits" in before, output
    assert "Running" in before, output


class OtherProgram:
    """A client of paho as any program has it: what the broker says to it, and what it receives."""

    def __init__(self, system: System, user: str, *, password: str = "", will: tuple[str, str] | None = None) -> None:
        folder = system.home / "site" / user
        words = [(folder / name).read_text().strip() for name in ("username", "password")]
        self.codes: queue.Queue[int] = queue.Queue()
        self.received: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self.client.username_pw_set(words[0], password or words[1])
        if will:
            self.client.will_set(*will, qos=1, retain=True)
        self.client.on_connect = lambda client, data, flags, code, properties: self.codes.put(code.value)
        self.client.on_publish = lambda client, data, number, code, properties: self.codes.put(code.value)
        self.client.on_subscribe = lambda client, data, number, codes, properties: self.codes.put(codes[0].value)
        self.client.on_message = lambda client, data, message: self.received.put(
            (message.topic, json.loads(message.payload))
        )
        self.client.connect("127.0.0.1", int(system.port))
        self.client.loop_start()

    def code(self) -> int:
        return self.codes.get(timeout=ANSWER)

    def publish(self, topic: str, body: bytes | str, *, retain: bool = False) -> int:
        """Publish with QoS 1; return the reason code of the acknowledgement."""
        self.client.publish(topic, body, qos=1, retain=retain)
        return self.code()

    def next(self) -> tuple[str, Any]:
        return self.received.get(timeout=ANSWER)

    def die(self) -> None:
        """End the connection without a word, as a power cut does."""
        connection = self.client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def users(system: System) -> None:
    """Do what the document says of users, reason codes and the status of a camera."""
    frames, status = "default/sedna/frames/cam0", "default/sedna/cameras/cam0/status"
    gone, state = blocks(DOCUMENT, "json")[1:]
    with OtherProgram(system, "cameras/cam0", password="wrong") as stranger:
        assert stranger.code() == NOT_AUTHORIZED
    with OtherProgram(system, "consumers/viewer") as consumer:
        assert consumer.code() == 0
        consumer.client.subscribe("default/sedna/cameras/+/status", qos=1)
        assert consumer.code() == 1
        assert consumer.publish(frames, digits()[0]) == NOT_AUTHORIZED
        with OtherProgram(system, "cameras/cam0", will=(status, gone)) as camera:
            assert camera.code() == 0
            assert camera.publish(frames, digits()[0]) == NO_SUBSCRIBER
            assert camera.publish("default/sedna/frames/cam1", digits()[0]) == NOT_AUTHORIZED
            assert camera.publish(status, state, retain=True) == 0
            assert consumer.next() == (status, json.loads(state))
            camera.die()
            assert consumer.next() == (status, json.loads(gone))


def refused(folder: Path, *command: str) -> str:
    """Run a program with a wrong password; return what it prints."""
    (folder / "picture.jpg").touch()
    with password_broker(folder) as broker:
        arguments = ("127.0.0.1", str(broker.port), broker.wrong, "picture.jpg")
        done = run_program(*command, *arguments, cwd=folder, timeout_s=ANSWER)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"the broker at 127.0.0.1:{broker.port}")
    assert done.stdout == ""
    return line


def program_of(language: str, folder: Path, *, tls: bool = False) -> list[str]:
    """Write a program of the document, or what it says of TLS; return the command that runs it."""
    text = blocks(DOCUMENT, language)[0]
    if language == "python":
        (line,) = re.findall(r"`(client\.tls_set\(.*?\))`", TEXT)
        secured = re.sub(r"client\.username_pw_set\(.*\)", lambda _: line, text)
        (folder / "client.py").write_text(secured if tls else text)
        return [sys.executable, "client.py"]
    assert 'In JavaScript, it is `protocol: "mqtts"`, with the content of the files as `ca`, `cert` and `key`.' in TEXT
    login = '[username, password] = ["username", "password"]'
    secured = text.replace(login, '[ca, cert, key] = ["ca.crt", "tls.crt", "tls.key"]')
    secured = secured.replace("username, password,", 'protocol: "mqtts", ca, cert, key,')
    (folder / "node_modules").symlink_to(npm_package(NPM))
    (folder / "client.mjs").write_text(secured if tls else text)
    return ["node", "client.mjs"]


LANGUAGES = pytest.mark.parametrize("language", ["python", pytest.param("javascript", marks=pytest.mark.slow)])


@LANGUAGES
def test_a_program_ends_with_the_reason_where_its_password_is_wrong(tmp_path: Path, language: str) -> None:
    line = refused(tmp_path, *program_of(language, tmp_path))
    assert "Not authorized" in line
    assert "refuses this client" in line or language == "javascript"


@LANGUAGES
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tls", [False, True], ids=["password", "tls"])
async def test_a_program_shows_the_service_and_the_answer_to_its_picture(
    tmp_path: Path, language: str, *, tls: bool
) -> None:
    program_of(language, tmp_path, tls=tls)
    async with system_of_a_user(tmp_path, *(["--tls"] if tls else [])) as system:
        check(await round_trip(system, tmp_path, "node" if language == "javascript" else language))


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_what_each_user_may_do(tmp_path: Path) -> None:
    async with system_of_a_user(tmp_path) as system:
        await asyncio.to_thread(users, system)
