"""What the whole system has around it: GMs as processes, users of the broker, `kubectl`."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

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


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
