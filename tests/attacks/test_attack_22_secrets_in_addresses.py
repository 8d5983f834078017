"""Attack 22: a secret in an address. It goes where the address is used, and nowhere else: no log, status, event, error.

Where it has to be: in the manifest, in GM's and the node's stores, on the way between them, and in what an operator is
shown who asks for that very resource.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from halimede.api import parse
from halimede.api.jointinference import FrameSourceSpec
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import InvalidFieldError, hide_secrets
from halimede.models import redact
from tests.e2e.running import ROOT, running
from tests.typed import halimede
from tests.waiting import patience, wait_for

SECRETS = ("s3cret-user", "s3cret-word", "s3cret-token", "s3cret-key")
URL = "http://s3cret-user:s3cret-word@127.0.0.1:9/m.onnx?token=s3cret-token&key=s3cret-key"


def found(text: str | bytes) -> list[str]:
    text = text if isinstance(text, str) else text.decode(errors="replace")
    return [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "mqtt://s3cret-user:s3cret-word@host",
        "rtsp://s3cret-user:s3cret-word@camera/stream?key=s3cret-key",
        "http://s3cret-user:s3cret-word/s3cret-token@host/x",
        "ftp://s3cret-user:s3cret-word@host/" + "x" * 4000,
        "HTTP://s3cret-user@host?s3cret-token#s3cret-key",
        "http://h?a=s3cret-token?b=s3cret-key",
    ],
)
def test_attack_22_no_error_shows_it(url: str) -> None:
    shown = [str(InvalidFieldError("spec.url", value, "use another")) for value in (
        url, {"url": url}, [url], ("a", {"b": [url]}), FrameSourceSpec(url=url), f"see {url} and {url}",
    )]  # fmt: skip
    assert [text for text in shown if found(text)] == []
    assert "***" in shown[0]
    assert not found(redact(url))
    assert not found(hide_secrets(url))


def test_attack_22_what_holds_no_secret_is_shown_as_it_is() -> None:
    for text in ("https://host:8080/a/b.onnx", "what? nothing", "me@home", "/models/a@1.onnx", "file:///a/b"):
        assert hide_secrets(text) == text


@pytest.mark.parametrize(
    "body",
    [
        {"url": URL.replace("http", "ftp"), "format": "onnx"},
        {"url": [URL], "format": "onnx"},
        {"url": "/m.onnx", "format": {"a": URL}},
        {"url": "/m.onnx", "format": "onnx", "sha256": URL},
        {"url": "/m.onnx", "format": "onnx", "other": URL},
        {"url": URL * 100, "format": "onnx"},
    ],
)
def test_attack_22_a_refused_resource_does_not_show_it(body: dict[str, Any]) -> None:
    model = {"apiVersion": "sedna.io/v1alpha1", "kind": "Model", "metadata": {"name": "m"}, "spec": body}
    with pytest.raises(InvalidFieldError) as caught:
        parse(model)
    assert not found(str(caught.value))


@pytest.mark.parametrize("program", [["gm"], ["lc", "--node", "edge0"]])
def test_attack_22_services_given_a_password_in_the_environment_show_it_nowhere(
    tmp_path: Path, program: list[str]
) -> None:
    home = tmp_path / "home"
    line = [sys.executable, "-m", "halimede", *program]
    line += ["--store" if program[0] == "gm" else "--home", str(home)]
    broker = "mqtt://s3cret-user:s3cret-word@127.0.0.1:9"
    environment = {**os.environ, "HALIMEDE_BROKER": broker, "HALIMEDE_LOG_LEVEL": "DEBUG", "HALIMEDE_CREDENTIALS": ""}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(line, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        wait_for(lambda: process.poll() is not None or b"bus down" in (tmp_path / "log").read_bytes(), 30)
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert not found(" ".join(psutil.Process(process.pid).cmdline()))
    finally:
        process.terminate()
        process.wait(patience(30))
    files = [path for path in home.rglob("*") if path.is_file()] + [tmp_path / "log"]
    assert [path for path in files if found(path.read_bytes())] == []


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_attack_22_on_a_running_system_a_models_secrets_stay_in_its_address(tmp_path: Path) -> None:
    from tests.e2e.test_bad_input import condition, manifests

    bodies = manifests()
    bodies["digits-small"]["spec"]["url"] = URL
    heard: list[tuple[str, bytes]] = []
    events: list[str] = []

    async def keep(packet: Packet) -> None:
        heard.append((packet.topic, packet.payload))

    async with running(tmp_path / "home", "edge0,cloud0") as system:
        gm = MqttSettings.from_url(system.settings.url, credentials=system.home / "site" / "gm")
        async with MqttBus("listener", gm) as listener:
            await listener.wait_connected(patience(30))
            await listener.listen("#", 1, keep, 10_000)
            await system.follow("digits")
            for name in ("digits-big", "digits-small", "digits"):
                await system.client.apply(bodies[name])
            await system.until("a reason", lambda: "127.0.0.1:9" in condition(system)[1], 60)
            for words in (["events"], ["describe", "ji", "digits"], ["get", "ji", "-o", "yaml"], ["nodes"],
                          ["get", "models", "-o", "wide"], ["describe", "model", "digits-small"]):  # fmt: skip
                env = {**os.environ, "HALIMEDE_HOME": str(system.home), "HALIMEDE_BROKER": ""}
                done = await asyncio.to_thread(halimede, *words, env=env)
                events.append(done.stdout + done.stderr)
        lines = [" ".join(process.cmdline()) for process in system.processes().values()]
        lines += [" ".join(psutil.Process(system.process.pid).cmdline()), (system.home / "run.json").read_text()]
        processes = [repr(process.environ()) for process in system.processes().values()]
    assert "127.0.0.1:9" in " ".join(events), "the address itself is named"
    assert [text for text in lines + events + processes if found(text)] == []
    leaked = {topic for topic, body in heard if found(body)}
    assert [topic for topic in leaked if "/downstream/" not in topic and "/api/" not in topic] == []
    said = [(tmp_path / "home.log"), *(tmp_path / "home").rglob("*")]
    leaks = [path.name for path in said if path.is_file() and found(path.read_bytes())]
    assert {name.removesuffix("-wal").removesuffix("-shm") for name in leaks} <= {"store.db"}
