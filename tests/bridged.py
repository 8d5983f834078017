"""Two real Mosquittos as a site with a bridge has them: the site's, and a place's behind a link that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from halimede.access.bridge import configuration
from halimede.access.certs import make_certificates
from halimede.access.mosquitto import listener_lines
from halimede.access.passwords import make_passwords
from halimede.access.site import Bridge, Principal, Site, read_site
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.topic import Role
from services.broker import MosquittoProcess, find_mosquitto
from tests.ports import free_port
from tests.proxy import Proxy
from tests.waiting import eventually, patience

PATIENCE = 30
HERE = frozenset({"lc.edge0", "edge-worker.edge0", "cloud-worker.edge0", "camera.cam0", "consumer.gate"})
SITE = {
    "broker": ["broker.example.com", "localhost", "127.0.0.1"],
    "nodes": ["edge0", "cloud0"],
    "cameras": ["cam0"],
    "consumers": ["gate", "viewer"],
    "bridges": [{"name": "factory", "nodes": ["edge0"], "cameras": ["cam0"], "consumers": ["gate"]}],
}


@dataclass
class Place:
    """The broker of a place, from the file that `halimede certs` writes; only ports and paths are the test's."""

    conf: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        libc = ctypes.CDLL(None)
        self.process = subprocess.Popen(
            [find_mosquitto(), "-c", str(self.conf)],
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: libc.prctl(1, signal.SIGTERM),  # noqa: PLW1509 - one system call, safe after a fork
        )
        await eventually(self._listens, PATIENCE, 0.05)

    async def _listens(self) -> bool:
        assert self.process
        assert self.process.poll() is None, self.conf.read_text()
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.close()
            return True
        return False

    async def stop(self) -> None:
        if self.process:
            self.process.terminate()
            try:
                await asyncio.to_thread(self.process.wait, patience(PATIENCE))
            finally:
                self.process.kill()  # one that hangs must not outlive its test


@dataclass
class Bridged:
    """A site's folder, its broker, the link, and the place's broker."""

    folder: Path
    broker: MosquittoProcess
    link: Proxy
    place: Place
    secure: bool
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def url(self, *, here: bool) -> str:
        port = self.place.port if here else self.broker.port
        return f"mqtt{'s' if self.secure else ''}://127.0.0.1:{port}"

    def settings(self, principal: Principal, *, here: bool) -> MqttSettings:
        return MqttSettings.from_url(self.url(here=here), credentials=self.folder / principal.folder)

    async def client(self, principal: Principal, *, here: bool | None = None) -> MqttBus:
        """Connect somebody: those of the place to its broker, all others to the site's."""
        near = principal.username in HERE if here is None else here
        name = f"t-{principal.username}-{'here' if near else 'there'}"
        bus = await self.stack.enter_async_context(MqttBus(name, self.settings(principal, here=near)))
        await bus.wait_connected(patience(PATIENCE))
        return bus


@contextlib.asynccontextmanager
async def bridged(folder: Path, *, secure: bool) -> AsyncIterator[Bridged]:
    """Make the site and start both brokers, with a link between them that the bridge goes through."""
    site = read_site({**SITE, "passwords": not secure})
    make_certificates(site, folder) if secure else make_passwords(site, folder)
    access = listener_lines(folder, tls=secure)
    async with (
        MosquittoProcess(folder / "run", port=free_port(), access=access, secure=secure) as broker,
        Proxy(broker.port) as link,
        contextlib.AsyncExitStack() as stack,
    ):
        place = Place(folder / "place.conf", free_port())
        place.conf.write_text(_conf(site, site.bridges[0], folder, place.port, link.port))
        await place.start()
        stack.push_async_callback(place.stop)
        made = Bridged(folder, broker, link, place, secure)
        async with made.stack:
            yield made


def _conf(site: Site, bridge: Bridge, folder: Path, port: int, link: int) -> str:
    place = folder / "bridges" / bridge.name
    data = folder / "kept"
    data.mkdir()
    principal = Principal(Role.BRIDGE, bridge.name)
    login = None
    if site.passwords:
        own = folder / principal.folder
        login = ((own / "username").read_text().strip(), (own / "password").read_text().strip())
    text = configuration(site, bridge, place, login=login, data=data)
    text = re.sub(r"^listener \d+$", f"listener {port} 127.0.0.1", text, flags=re.MULTILINE)
    # the certificate is for localhost
    text = re.sub(r"^address .*$", f"address localhost:{link}", text, flags=re.MULTILINE)
    text = text.replace("log_dest stderr", f"log_dest file {folder / 'place.log'}")
    return text + ("user root\n" if os.geteuid() == 0 else "")
