"""docker-compose.yml run by podman and its compose front end, in a network namespace of its own.

The file is used as it is shipped, in a copy of what it mounts. What this machine's kernel or rights ask of podman is in
a containers.conf of the test's own. The images have to be there: ``make images BUILD="podman build --format docker"``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.dockerfile import tags
from tests.e2e.running import DIGITS, ROOT, digits
from tests.programs import run_program
from tests.waiting import eventually

CLONE_NEWNET = 0x40000000
IMAGES = (tags()["gm"], tags()["node"], "eclipse-mosquitto:2.0")
CONTAINERS = ("broker", "gm", "edge0", "cloud0")
#: without systemd (no journal, no cgroups of its making), and without the right to raise limits
CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
{runtime}
"""
BUILD = 'make images BUILD="podman build --format docker"'


def front_end() -> str | None:
    """Return the path of podman-compose: of this environment, or of the machine."""
    return shutil.which("podman-compose", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def configuration() -> str:
    """Return what podman needs here."""
    # crun does not run where version 1 and 2 of cgroups are mixed
    runtime = 'runtime = "runc"' if shutil.which("runc", path="/usr/sbin:/usr/bin") else ""
    return CONFIGURATION.format(runtime=runtime)


def missing() -> str:
    """Why containers cannot be run here; empty if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root, for a network namespace"
    if lacking := [tool for tool in ("podman", "nsenter", "ip") if shutil.which(tool) is None]:
        return f"needs {', '.join(lacking)}: apt install podman netavark aardvark-dns runc iproute2"
    if front_end() is None:
        return "needs podman-compose 1.1 or newer: pip install podman-compose"
    for image in IMAGES:
        if subprocess.run(["podman", "image", "exists", image], check=False).returncode:
            return f"podman has no image {image}: {BUILD}"
    return ""


@contextlib.contextmanager
def network() -> Iterator[str]:
    """A network namespace with a loopback interface; this thread's new sockets are in it."""
    name = f"halimede-compose-{secrets.token_hex(4)}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        with open("/proc/thread-self/ns/net") as ours, open(f"/run/netns/{name}") as theirs:  # noqa: PTH123
            if libc.setns(theirs.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield name
            finally:
                libc.setns(ours.fileno(), CLONE_NEWNET)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@dataclass(frozen=True)
class Compose:
    """A running docker-compose.yml: its folder, and the name of its project."""

    folder: Path
    project: str

    @property
    def credentials(self) -> Path:
        """The operator's."""
        return self.folder / "build" / "site" / "operators" / "admin"

    @property
    def environment(self) -> dict[str, str]:
        # a shell sets PWD, which the file's paths of the examples begin with
        return {**os.environ, "CONTAINERS_CONF": str(self.folder / "containers.conf"), "PWD": str(self.folder)}

    def podman(self, *words: str) -> str:
        done = run_program("podman", *words, env=self.environment)
        assert done.returncode == 0, done.stderr
        return done.stdout + (done.stderr if words[0] == "logs" else "")

    def compose(self, *words: str) -> None:
        command = (front_end() or "", "-p", self.project, *words)
        done = run_program(*command, cwd=self.folder, env=self.environment, timeout_s=180)
        assert done.returncode == 0, done.stdout + done.stderr

    def pid(self, service: str) -> int:
        """Return the process of a service's container; 0 while it does not run."""
        (told,) = json.loads(self.podman("inspect", f"{self.project}_{service}_1"))
        found: int = told["State"]["Pid"]
        return found

    def logs(self) -> str:
        """Return the last lines of all containers."""
        last = [(name, self.podman("logs", "--tail", "20", f"{self.project}_{name}_1")) for name in CONTAINERS]
        return "\n".join(f"== {name}\n{text}" for name, text in last)

    async def kill(self, service: str) -> None:
        """End a container as a crash does, and wait until podman has started it again.

        `podman kill` would not do: podman takes it for the user's decision, and leaves the container.
        """
        before = self.pid(service)
        os.kill(before, signal.SIGKILL)

        async def is_back() -> bool:  # in a thread: frames go on
            return await asyncio.to_thread(self.pid, service) not in {0, before}

        await eventually(is_back, 60, 0.2)


@contextlib.contextmanager
def running(tmp_path: Path) -> Iterator[Compose]:
    """Start it, in a copy of what it mounts; remove its containers, volumes and networks at the end."""
    digits()  # the models are there
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    shutil.copytree(ROOT / "deploy" / "compose", tmp_path / "deploy" / "compose")
    shutil.copytree(DIGITS, tmp_path / "examples" / "digits", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "build" / "site" / "operators").mkdir(parents=True)
    (tmp_path / "containers.conf").write_text(configuration())
    with network():
        compose = Compose(tmp_path, f"halimede-{secrets.token_hex(4)}")
        try:
            compose.compose("up", "--detach", "--no-build")
            yield compose
        finally:
            compose.compose("down", "--volumes", "--timeout", "10")
