"""A real core of Home Assistant as a process on loopback, and what its API says of its entities."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import aiohttp

from halimede.errors import HalimedeError
from tests.ports import free_port
from tests.programs import run_program
from tests.waiting import eventually

HOST = "127.0.0.1"
#: the oldest core with device discovery, and the oldest Python for which such a core exists
OLDEST, PYTHON = "2024.12", "3.13"
#: seconds until a core answers: its first start installs packages
START_S = 600.0
CONFIGURATION = """\
homeassistant:
  name: halimede
  latitude: 0
  longitude: 0
  elevation: 0
  unit_system: metric
  time_zone: UTC
http:
  server_host: {host}
  server_port: {port}
api:
websocket_api:
logger:
  default: warning
"""
CREATED = "2026-01-01T00:00:00+00:00"


def find_core(folder: Path | None) -> Path:
    """Return the program ``hass`` in a folder. Raises HalimedeError with what to install where."""
    steps = (
        f"make a virtual environment of Python {PYTHON} or newer there, and install `homeassistant` (from {OLDEST}) "
        "and `paho-mqtt` into it: python3.13 -m venv FOLDER && FOLDER/bin/pip install homeassistant paho-mqtt"
    )
    if folder is None:
        raise HalimedeError(
            f"HOMEASSISTANT names no folder with a core. What to do: {steps}; then HOMEASSISTANT=FOLDER"
        )
    program = folder / "bin" / "hass"
    if not program.exists():
        raise HalimedeError(f"HOMEASSISTANT={folder}: there is no bin/hass in it. What to do: {steps}")
    if run_program(folder / "bin" / "python", "-c", "import paho.mqtt", timeout_s=120).returncode:
        raise HalimedeError(f"HOMEASSISTANT={folder}: paho-mqtt is missing. What to do: {steps}")
    return program


class HomeAssistantCore:
    """A core with its own folder, connected to the broker on ``broker_port``; ``prefix``: its discovery prefix."""

    def __init__(self, program: Path, folder: Path, broker_port: int, prefix: str = "homeassistant") -> None:
        self._program = program
        self.folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._token = secrets.token_hex(32)
        self._key = secrets.token_hex(64)
        folder.mkdir(parents=True)
        (folder / "configuration.yaml").write_text(CONFIGURATION.format(host=HOST, port=self._port))
        (folder / ".storage").mkdir()
        entry = {
            "created_at": CREATED, "modified_at": CREATED, "disabled_by": None, "discovery_keys": {}, "domain": "mqtt",
            "data": {"broker": HOST, "port": broker_port}, "entry_id": "1" * 26, "version": 1, "minor_version": 2,
            "options": {
                "discovery": True, "discovery_prefix": prefix,
                "birth_message": {"topic": f"{prefix}/status", "payload": "online", "qos": 0, "retain": False},
                "will_message": {"topic": f"{prefix}/status", "payload": "offline", "qos": 0, "retain": False},
            },
            "pref_disable_new_entities": False, "pref_disable_polling": False, "source": "user", "subentries": [],
            "title": HOST, "unique_id": None,
        }  # fmt: skip
        self._store("core.config_entries", {"entries": [entry]}, minor=5)
        user = {
            "id": "2" * 32, "group_ids": ["system-admin"], "is_owner": True, "is_active": True, "name": "test",
            "system_generated": False, "local_only": False,
        }  # fmt: skip
        token = {
            "id": "3" * 32, "user_id": user["id"], "client_id": None, "client_name": "test", "client_icon": None,
            "token_type": "long_lived_access_token", "created_at": CREATED, "access_token_expiration": 3.2e8,
            "token": self._token, "jwt_key": self._key, "last_used_at": None, "last_used_ip": None, "expire_at": None,
            "credential_id": None, "version": None,
        }  # fmt: skip
        groups = [{"id": "system-admin", "name": "Administrators"}]
        self._store("auth", {"users": [user], "groups": groups, "credentials": [], "refresh_tokens": [token]})

    def _store(self, key: str, data: Any, minor: int = 1) -> None:
        content = {"version": 1, "minor_version": minor, "key": key, "data": data}
        (self.folder / ".storage" / key).write_text(json.dumps(content))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        command = [self._program, "-c", self.folder, "--log-no-color"]
        with (self.folder / "process.log").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        await eventually(self._is_running, START_S, 0.5)

    async def stop(self) -> None:
        """Stop it as its user would: it says goodbye to its broker."""
        if self._process:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, 120)
            self._process = None

    @property
    def log(self) -> str:
        """Its log: a line for each document that it has dropped."""
        return (self.folder / "process.log").read_text(errors="replace")

    async def _is_running(self) -> bool:
        assert self._process
        assert self._process.poll() is None, self.log[-2000:]
        try:
            return str(json.loads(await self._request("config"))["state"]) == "RUNNING"
        except (aiohttp.ClientError, OSError):
            return False

    async def states(self) -> dict[str, dict[str, Any]]:
        """Return the states of all entities that came by MQTT, with their attributes, by entity id."""
        template = {"template": "{{ integration_entities('mqtt') | tojson }}"}
        own = set(json.loads(await self._request("template", template)))
        every = json.loads(await self._request("states"))
        return {state["entity_id"]: state for state in every if state["entity_id"] in own}

    async def call(self, domain: str, service: str, **data: Any) -> None:
        """Call a service, as a button of its page does."""
        await self._request(f"services/{domain}/{service}", data)

    async def picture(self, entity: str) -> bytes:
        return await self._request(f"image_proxy/{entity}")

    async def _request(self, path: str, data: dict[str, Any] | None = None) -> bytes:
        """Ask the API; with data by POST."""
        url, method = f"http://{HOST}:{self._port}/api/{path}", "GET" if data is None else "POST"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, json=data, headers=self._headers) as response,
        ):
            response.raise_for_status()
            return await response.read()

    @property
    def _headers(self) -> dict[str, str]:
        """A header with a token signed as the core signs them (JWT, HS256)."""
        now = int(time.time())
        parts = [{"alg": "HS256", "typ": "JWT"}, {"iss": "3" * 32, "iat": now - 10, "exp": now + 3600}]
        text = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        signature = hmac.digest(self._key.encode(), text.encode(), hashlib.sha256)
        return {"Authorization": f"Bearer {text}.{_base64(signature)}"}


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
