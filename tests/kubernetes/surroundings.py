"""What the whole system has around it: GMs as processes, users of the broker, `kubectl`, a server with models."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import http.server
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttBus, MqttSettings
from tests.kubernetes.apiserver import Api
from tests.waiting import patience


@dataclass
class Gm:
    """A GM as a process."""

    identity: str
    process: asyncio.subprocess.Process
    log: Path

    async def kill(self, number: signal.Signals) -> int:
        """Send a signal and wait for its end; return the exit code."""
        self.process.send_signal(number)
        async with asyncio.timeout(patience(30)):
            return await self.process.wait()


async def kubectl(api: Api, *arguments: str, stdin: str = "") -> str:
    """Run the real `kubectl` as the administrator; return what it prints."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "kubectl", f"--kubeconfig={api.kubeconfig}", f"--cache-dir={api.folder / 'kubectl'}",
        f"--namespace={api.namespace}", *arguments,
        stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT,
        env={"HOME": str(api.folder), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    async with asyncio.timeout(patience(60)):
        said, _ = await process.communicate(stdin.encode())
    assert process.returncode == 0, said.decode()
    return said.decode()


@asynccontextmanager
async def user(broker: str, site: Path, kind: str, name: str) -> AsyncIterator[MqttBus]:
    """Somebody of the site, connected."""
    settings = MqttSettings.from_url(broker, credentials=Credentials(site / kind / name))
    async with MqttBus(name, settings) as bus:
        await bus.wait_connected(patience(30))
        yield bus


@contextmanager
def served(host: str, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server with models; yield its address, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer((host, 0), functools.partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{host}:{server.server_address[1]}", asked
        server.shutdown()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
