"""One container of a pod, as the small kubelet runs it: started, probed, started again, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.kubernetes.client import Body
from tests.kubernetes.podstates import now
from tests.kubernetes.sandbox import PATH, ROOT, Process, Sandbox, Spec
from tests.kubernetes.volumes import Giver, NotYetError, expand
from tests.waiting import patience

#: seconds until something is tried again, where kubelet takes ten and more
BACK_OFF = 0.5
#: a fifth of each time between probes will do
HURRY = 5.0
#: of the log, where there is no other word on a termination
LAST_BYTES = 2048


@dataclass(frozen=True)
class Image:
    """What we know of an image: its own command and its user."""

    entrypoint: Sequence[str]
    user: int = 10001


#: beginnings of names, as the Dockerfile has them
OURS = {
    "halimede/worker": Image(("python", "-m", "halimede", "worker")),
    "halimede/lc": Image(("python", "-m", "halimede", "lc")),
}


def environment() -> dict[str, str]:
    path = f"{Path(sys.prefix) / 'bin'}:{PATH}"
    told = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "HALIMEDE_LOG": "json"}
    told["SSL_CERT_FILE"] = os.devnull  # the authorities of the internet, where no test goes, are not read
    return {"PATH": path, "PYTHONPATH": str(ROOT), "HALIMEDE_HOME": "/var/lib/halimede", **told}


class Run:
    """A container and how it stands."""

    def __init__(self, body: Body, pod: Body, giver: Giver, folder: Path, images: dict[str, Image]) -> None:
        self.name: str = body["name"]
        self.process: Process | None = None
        self.exit_code: int | None = None
        self.starts = 0
        self.ready = False
        self._body = body
        self._pod = pod
        self._giver = giver
        self._folder = folder
        self._images = {**OURS, **images}
        self._state: Body = {}
        self._last: Body = {}

    @property
    def was_started(self) -> bool:
        return self.starts > 0

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0

    @property
    def logs(self) -> str:
        return "".join((self._folder / f"{self.name}.{i}" / "log").read_text() for i in range(self.starts))

    async def once(self, sandbox: Sandbox) -> None:
        """Run it until it has succeeded once."""
        while not await self._run(sandbox, probed=False):
            await asyncio.sleep(BACK_OFF)
        self.ready = True

    async def always(self, sandbox: Sandbox) -> None:
        """Run it, and again whenever it ends."""
        while True:
            await self._run(sandbox, probed=True)
            await asyncio.sleep(BACK_OFF)

    async def _run(self, sandbox: Sandbox, *, probed: bool) -> bool:
        try:
            spec = await self._spec()
        except NotYetError as error:
            self._state = {"waiting": {"reason": error.reason, "message": str(error)}}
            return False
        except (aiohttp.ClientError, TimeoutError):
            return False
        folder = self._folder / f"{self.name}.{self.starts}"
        self.process = await sandbox.start(spec, folder)
        self.starts += 1
        self.exit_code = None
        self._state = {"running": {"startedAt": now()}}
        probes = asyncio.create_task(self._probe(sandbox.address)) if probed else None
        try:
            await self._ended(self.process)
        finally:
            if probes:
                probes.cancel()
                with suppress(asyncio.CancelledError):
                    await probes
        return self.succeeded

    async def _ended(self, process: Process) -> None:
        code = await process.wait()
        said = process.last_words
        if not said and code and self._body.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            said = process.log[-LAST_BYTES:]
        self.exit_code, self.ready = code, False
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}
        self._last, self._state = self._state, {"terminated": {**ended, **({"message": said} if said else {})}}

    async def stop(self, grace: float) -> None:
        """Ask it to end, and make it end when its time is over."""
        if self.process is None or self.exit_code is not None:
            return
        if grace > 0:
            self.process.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                await self._ended(self.process)
        except TimeoutError:
            self.process.send(signal.SIGKILL)
            await self._ended(self.process)

    async def _spec(self) -> Spec:
        """Return what is to be run. Raises NotYetError."""
        known = environment() | await self._giver.environment(self._body)
        image = next((of for name, of in self._images.items() if self._body["image"].startswith(name)), None)
        if image is None:
            raise NotYetError("ErrImagePull", f"there is no image {self._body['image']} here")
        rights = {**self._pod.get("securityContext", {}), **self._body.get("securityContext", {})}
        user = rights.get("runAsUser", image.user)
        if user == 0 and rights.get("runAsNonRoot"):
            raise NotYetError("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")
        given = rights.get("capabilities", {})
        capabilities = given.get("add", ()) if "ALL" in given.get("drop", ()) else None
        command = [expand(text, known) for text in self._body.get("command", ())] or list(image.entrypoint)
        command += [expand(text, known) for text in self._body.get("args", ())]
        group = self._giver.fs_group
        return Spec(
            command=command,
            env=known,
            workdir=self._body.get("workingDir", str(ROOT)),
            mounts=self._giver.mounts(self._body, known),
            user=user,
            group=rights.get("runAsGroup", user),
            groups=() if group is None else (group,),
            read_only_root=rights.get("readOnlyRootFilesystem", False),
            capabilities=capabilities,
            no_new_privileges=rights.get("allowPrivilegeEscalation") is False,
            hosts={"localhost": "127.0.0.1", **({self.name: self._giver.address} if self._giver.address else {})},
        )

    async def _probe(self, address: str) -> None:
        """Look at it as its probes say, somewhat more often, until cancelled."""
        ready, alive = self._body.get("readinessProbe"), self._body.get("livenessProbe")
        self.ready = ready is None
        failures, alive_at = 0, time.monotonic() + (alive or {}).get("initialDelaySeconds", 0)
        async with aiohttp.ClientSession() as session:
            while True:
                if ready is not None:
                    self.ready = await self._answers(session, address, ready)
                if alive is not None and time.monotonic() >= alive_at:
                    alive_at = time.monotonic() + alive.get("periodSeconds", 10) / HURRY
                    failures = 0 if await self._answers(session, address, alive) else failures + 1
                    if failures >= alive.get("failureThreshold", 3) and self.process:
                        self.process.send(signal.SIGKILL)
                await asyncio.sleep((ready or {}).get("periodSeconds", 10) / HURRY / 5)

    async def _answers(self, session: aiohttp.ClientSession, address: str, probe: Body) -> bool:
        asked = probe["httpGet"]
        port = asked["port"]
        if isinstance(port, str):
            port = next(each["containerPort"] for each in self._body["ports"] if each["name"] == port)
        try:
            async with (
                asyncio.timeout(patience(probe.get("timeoutSeconds", 1))),
                session.get(f"http://{address}:{port}{asked['path']}") as answer,
            ):
                return 200 <= answer.status < 400
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def status(self, waiting: tuple[str, str]) -> Body:
        """Return it as a status has it; ``waiting``: why, before it was first started."""
        reason, message = waiting
        state = self._state or {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        return {
            "name": self.name,
            "image": self._body["image"],
            "imageID": "",
            "ready": self.ready,
            "started": "running" in state,
            "restartCount": max(0, self.starts - 1),
            "state": state,
            "lastState": self._last if "terminated" in self._last else {},
        }
