"""GMs as processes of their own on one API server (the double), with a real Mosquitto between them and a node."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from services.broker import MosquittoProcess
from tests.faults.control import Child
from tests.kubernetes.apiserver import Api, on_double
from tests.kubernetes.client import Body
from tests.kubernetes.world import PATIENCE, World, world
from tests.ports import free_port
from tests.simulated import eventually

LEASE = "halimede-gm"


class Gm(Child):
    """One GM. ``user`` is its own name on the API server."""

    user = ""

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class Operators:
    """Who takes part. Nodes of ``w`` are on another broker: use ``lc``."""

    def __init__(self, folder: Path, api: Api, w: World, broker: MosquittoProcess) -> None:
        self.folder, self.api, self.w, self.broker = folder, api, w, broker
        self._settings = folder / "pods.json"
        self._settings.write_text(
            json.dumps({"broker": broker.url, "credentials": False, "hostPaths": ["/models", "/data", "/code"]})
        )

    @asynccontextmanager
    async def gm(self, identity: str) -> AsyncIterator[Gm]:
        """A GM until the end of the block, which kills it."""
        user = await self.w.new_user(identity)
        command = [sys.executable, "-m", "halimede", "gm", "--kubernetes", "--pods-config", str(self._settings)]
        command += ["--kubeconfig", str(user.kubeconfig), "--namespace", self.w.namespace, "--identity", identity]
        command += ["--store", str(self.folder / identity), "--broker", self.broker.url]
        gm = Gm(command, self.folder / f"{identity}.log", {"HALIMEDE_HTTP": "127.0.0.1:0", "HALIMEDE_LOG": "json"})
        gm.user = user.name
        try:
            yield gm
        finally:
            gm.kill()

    @asynccontextmanager
    async def lc(self, node: str) -> AsyncIterator[Child]:
        """A node's local controller as a DaemonSet runs it, until the end of the block, which kills it."""
        command = [sys.executable, "-m", "halimede", "lc", "--node", node, "--home", str(self.folder / "home")]
        environ = {"HALIMEDE_PODS": "1", "HALIMEDE_BROKER": self.broker.url, "HALIMEDE_HTTP": "127.0.0.1:0"}
        lc = Child(command, self.folder / f"lc-{node}.log", {**environ, "HALIMEDE_LOG": "json"})
        try:
            yield lc
        finally:
            lc.kill()

    async def lease(self) -> Body:
        found = await self.api.client.find("Lease", self.w.namespace, LEASE)
        return found["spec"] if found else {}

    async def led_by(self, identity: str) -> int:
        """Wait until a GM leads; return its epoch."""
        epoch = 0

        async def leads() -> bool:
            nonlocal epoch
            lease = await self.lease()
            epoch = lease.get("leaseTransitions", 0)
            return bool(lease.get("holderIdentity") == identity)

        await eventually(leads, PATIENCE, every_s=0.05)
        return epoch


@asynccontextmanager
async def operators(folder: Path) -> AsyncIterator[Operators]:
    """A double with our definitions, two Node objects and somebody who runs pods, and a broker of its own."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(MosquittoProcess(folder / "broker", port=free_port()))
        api = await stack.enter_async_context(on_double(folder))
        yield Operators(folder, api, await stack.enter_async_context(world(api)), broker)
