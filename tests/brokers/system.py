"""The whole system on a broker of any kind: GM and two nodes as processes, as an operator starts them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec.structs import replace

from halimede import programs, topics
from halimede.access.site import Principal, Site
from halimede.bus import Bus, Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.client import Client
from halimede.cli.doctor.broker_list import examine_list
from halimede.messages import GmPresence
from halimede.topic import Role
from services.site import Security
from services.system import RunFile, labels_of
from tests.brokers.installation import HOST, KINDS, Installation, make_site, site_of
from tests.brokers.process import BrokerProcess, of_site
from tests.e2e.running import System
from tests.ports import free_port

#: seconds until GM answers on a busy machine, and until a process has ended
START_S, STOP_S = 90.0, 60.0
#: seconds that GM and nodes wait for a broker that is started after them
WAITING_S = 10.0


class SystemProcesses:
    """GM and LCs with the credentials of a site, and their logs in ``home``."""

    def __init__(self, home: Path, site: Site, folder: Path, url: str) -> None:
        self._home, self._site, self._folder, self._url = home, site, folder, url
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start them all; they wait for the broker."""
        gm = self._folder / Principal(Role.GM).folder
        self._start("gm", gm, "--store", str(self._home / "gm"))
        for node in self._site.nodes:
            words = ["--node", node, "--home", str(self._home)]
            for key, value in labels_of(node).items():
                words += ["--label", f"{key}={value}"]
            self._start("lc", self._folder / "nodes" / node, *words)

    @property
    def gm(self) -> subprocess.Popen[bytes]:
        return self._processes[0]

    def stop(self) -> None:
        """End them, LCs first, which end their workers."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, credentials: Path, *words: str) -> None:
        arguments = [*words, "--broker", self._url, "--credentials", str(credentials), "--http", "127.0.0.1:0"]
        environment = {**os.environ, "HALIMEDE_TEST_RUN": str(self._home)}
        with (self._home / f"{name}-{len(self._processes)}.log").open("wb") as log:
            command = programs.command(name, *arguments)
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))


@contextlib.asynccontextmanager
async def system_on(
    installation: Installation, security: Security, home: Path, *, broker_first: bool = True, has_standby: bool = False
) -> AsyncIterator[tuple[System, BrokerProcess]]:
    """Run the whole system on a broker; without ``broker_first`` its clients wait when the broker starts.

    ``has_standby``: a second broker of the same site is the next one in each client's list. Both are nodes of one
    cluster, if brokers of this kind form one.
    """
    site, folder = site_of(free_port(), security), home / "site"
    home.mkdir(parents=True)
    make_site(site, folder)
    broker = of_site(installation, site, folder, home / "broker", member=int(has_standby))
    second = replace(site, port=free_port())
    standby = of_site(installation, second, folder, home / "standby", member=2)
    url = f"{broker.url},{HOST}:{second.port}" if has_standby else broker.url
    processes = SystemProcesses(home, site, folder, url)
    operator = folder / Principal(Role.OPERATOR, "admin").folder
    settings = MqttSettings.from_url(url, credentials=operator)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(broker.stop)
        stack.callback(processes.stop)
        run_file = stack.enter_context(RunFile(home))
        run_file.write(url, site.nodes, operator)
        if broker_first:
            await broker.start()
        if has_standby:
            stack.push_async_callback(standby.stop)
            await standby.start()
            if KINDS[installation.kind].member:
                await wait_for_cluster(settings)
        processes.start()
        if not broker_first:
            await asyncio.sleep(WAITING_S)
            await broker.start()
        bus = MqttBus(f"test-{secrets.token_hex(4)}", settings)
        client = await stack.enter_async_context(Client(bus, patience_s=START_S))
        await wait_for_gm(bus)
        yield System(home, processes.gm, bus, client, settings), broker


async def wait_for_cluster(settings: MqttSettings) -> None:
    """Wait until clients of each broker of a list reach those of the others: until then a node may start again."""
    nodes = [settings.at(endpoint) for endpoint in settings.endpoints]
    async with asyncio.timeout(START_S):
        while any(check.level != "ok" for check in await examine_list(nodes)):
            await asyncio.sleep(1)


async def wait_for_gm(bus: Bus) -> None:
    """Wait until GM is there: without reason code 16 a request that reaches nobody waits until its deadline."""
    presence, online = topics.GM_PRESENCE.filter(), asyncio.Event()

    async def receive(gm: Delivery[GmPresence]) -> None:
        if gm.body.online:
            online.set()

    await bus.subscribe(presence, receive)
    async with asyncio.timeout(START_S):
        await online.wait()
    await bus.unsubscribe(presence)
