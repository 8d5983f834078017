"""Containers without a container engine: namespaces and bind mounts of this machine stand for one. It needs root.

A container sees what is on an image of ours (the system's programs, Python, this repository, all read-only), what its
pod mounts, and nothing else of this machine: its own mounts, processes and network, a user without privileges, and of
capabilities those alone that it keeps. Seccomp profiles and limits of memory and CPU are not imitated.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.waiting import eventually, patience

ROOT = Path(__file__).parents[2]
TOOLS = ("unshare", "nsenter", "setpriv", "ip", "mount", "chroot")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
#: of the system, as an image has them
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ssl", "/etc/alternatives")
FILES = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "resolv.conf")
DEVICES = ("null", "zero", "full", "random", "urandom")


def missing() -> str:
    """Why containers cannot be had here; empty if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root, for namespaces"
    if lacking := [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]:
        return f"needs {', '.join(lacking)}"
    probe = ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", "mount -t tmpfs none /mnt"]
    tried = subprocess.run(probe, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    return f"namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else ""


async def run(*command: str) -> str:
    """Run a tool; raise RuntimeError with what it says if it fails."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env={"PATH": PATH})
    said, wrong = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{shlex.join(command)}: {wrong.decode().strip()}")
    return said.decode()


class Network:
    """A bridge of our own. ``host`` is this machine's address on it, each pod gets another one."""

    def __init__(self) -> None:
        self.name = f"hk{secrets.token_hex(4)}"
        self._prefix = ""
        self._free: Iterator[int] = iter(range(2, 255))

    @property
    def host(self) -> str:
        return f"{self._prefix}.1"

    async def __aenter__(self) -> Self:
        taken = await run("ip", "-4", "-o", "address")
        # a range for tests of networks, which nobody has at home
        free = [f"198.{n}.{m}" for n, m in itertools.product((18, 19), range(256)) if f"198.{n}.{m}." not in taken]
        self._prefix = random.choice(free)
        await run("ip", "link", "add", self.name, "type", "bridge")
        await run("ip", "address", "add", f"{self.host}/24", "dev", self.name)
        await run("ip", "link", "set", self.name, "up")
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await run("ip", "link", "delete", self.name)

    async def join(self, pid: int) -> str:
        """Connect the network namespace of a process; return its address."""
        address = f"{self._prefix}.{next(self._free)}"
        ours = f"hk{secrets.token_hex(4)}"
        await run("ip", "link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        await run("ip", "link", "set", ours, "master", self.name, "up")
        there = f"ip link set lo up; ip address add {address}/24 dev eth0; ip link set eth0 up"
        await run("nsenter", f"--net=/proc/{pid}/ns/net", "sh", "-euc", there)
        return address


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A file or folder of this machine, seen at ``path``."""

    source: Path
    path: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What runs in a container. ``capabilities`` None: as many as an engine leaves root by default."""

    command: Sequence[str]
    env: Mapping[str, str]
    workdir: str = str(ROOT)
    mounts: Sequence[Mount] = ()
    user: int = 0
    group: int = 0
    groups: Sequence[int] = ()
    read_only_root: bool = False
    capabilities: Sequence[str] | None = None
    no_new_privileges: bool = False
    hosts: Mapping[str, str] = field(default_factory=dict)


class Sandbox:
    """The network of one pod, and a process that holds it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._pause: asyncio.subprocess.Process | None = None
        self.address = ""

    async def open(self) -> None:
        hold = [*dies_with_us(), "unshare", "--net", "sleep", "infinity"]
        self._pause = await asyncio.create_subprocess_exec(*hold, env={"PATH": PATH})
        mine = Path("/proc/self/ns/net").readlink()
        net = Path(f"/proc/{self._pause.pid}/ns/net")
        await eventually(lambda: net.readlink() != mine, 30)
        self.address = await self._network.join(self._pause.pid)

    async def close(self) -> None:
        if self._pause is not None:
            self._pause.kill()
            await self._pause.wait()
            self._pause = None

    async def start(self, spec: Spec, folder: Path) -> Process:
        """Start a container; ``folder`` is for its log and its files here."""
        assert self._pause is not None
        folder.mkdir(parents=True)
        (folder / "root").mkdir()
        (folder / "termination-log").touch()
        (folder / "termination-log").chmod(0o666)
        (folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in spec.hosts.items()))
        (folder / "start.sh").write_text("\n".join(script(spec, folder)) + "\n")
        spaces = [f"--net=/proc/{self._pause.pid}/ns/net", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *dies_with_us(), "nsenter", *spaces, "sh", str(folder / "start.sh"),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env={"PATH": PATH},
            )  # fmt: skip
        try:
            async with asyncio.timeout(patience(30)):
                while not (folder / "started").exists() and process.returncode is None:
                    await asyncio.sleep(0.005)
        except BaseException:
            process.kill()
            raise
        return Process(process, folder)


class Process:
    """A running container, or one that has ended."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self.folder = folder

    @property
    def pid(self) -> int:
        """Its first process, as this machine numbers it; 0: there is none any more."""
        try:
            return int(psutil.Process(self._process.pid).children()[0].pid)
        except (psutil.Error, IndexError):
            return 0

    def send(self, number: signal.Signals) -> None:
        if pid := self.pid:
            os.kill(pid, number)

    async def wait(self) -> int:
        """Return the exit code as kubelet tells it."""
        code = await self._process.wait()
        return 128 - code if code < 0 else code

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def last_words(self) -> str:
        return (self.folder / "termination-log").read_text(errors="replace")


def dies_with_us() -> list[str]:
    """The beginning of a command that does not outlive a killed test."""
    return ["setpriv", "--pdeathsig", "KILL"]


def script(spec: Spec, folder: Path) -> Iterator[str]:
    """Yield the lines that make a container's root and become its first process."""
    root = folder / "root"
    yield "set -eu; umask 022"
    yield f"cd {root}; mount -t tmpfs -o mode=755 root {root}; cd {root}"
    yield "mkdir -p etc dev proc tmp var/lib run; chmod 1777 tmp; mount -t proc proc proc"
    image = dict.fromkeys((*SYSTEM, sys.base_prefix, str(ROOT), sys.prefix))
    parts: list[Mount] = []
    for place in map(Path, image):
        if place.is_symlink():
            yield f"mkdir -p .{place.parent}; ln -s {place.readlink()} .{place}"
        elif place.is_dir() and not any(str(other) in image for other in place.parents):
            parts.append(Mount(source=place, path=str(place), read_only=True))
    for name in FILES:
        yield f"if [ -e /etc/{name} ]; then cp -L /etc/{name} etc/{name}; fi"
    yield f"cp {folder / 'hosts'} etc/hosts"
    for name in DEVICES:
        yield f"touch dev/{name}; mount --bind /dev/{name} dev/{name}"
    yield "ln -s /proc/self/fd dev/fd; mkdir -m 1777 dev/shm; mount -t tmpfs -o mode=1777 shm dev/shm"
    yield f"touch dev/termination-log; mount --bind {folder / 'termination-log'} dev/termination-log"
    # this repository may be below a folder that a pod mounts, such as /tmp
    for mount in sorted([*parts, *spec.mounts], key=lambda mount: mount.path):
        yield from bound(mount)
    yield f"mkdir -p {shlex.quote('.' + spec.workdir)}"
    if spec.read_only_root:
        yield f"mount -o remount,ro {root}"
    yield f": > {folder / 'started'}"
    groups = ["--groups", ",".join(map(str, spec.groups))] if spec.groups else ["--clear-groups"]
    # the kernel forgets who shall not be outlived when the user changes
    limits = [*dies_with_us(), "--reuid", str(spec.user), "--regid", str(spec.group), *groups]
    if spec.capabilities is not None:
        kept = ",".join(["-all", *(f"+{name.lower()}" for name in spec.capabilities)])
        limits += ["--bounding-set", kept, "--inh-caps", "-all"]
    if spec.no_new_privileges:
        limits.append("--no-new-privs")
    env = ["env", "-i", f"--chdir={spec.workdir}", *(f"{name}={value}" for name, value in spec.env.items())]
    yield f"exec chroot {root} {shlex.join([*limits, *env, *spec.command])}"


def bound(mount: Mount) -> Iterator[str]:
    """Yield the lines that put one thing into the root that is the current folder."""
    at, source = shlex.quote("." + mount.path), shlex.quote(str(mount.source))
    made = f"mkdir -p {at}" if mount.source.is_dir() else f"mkdir -p $(dirname {at}); touch {at}"
    yield f"{made}; mount --rbind {source} {at}"
    if mount.read_only:
        yield f"mount -o remount,bind,ro {at}"
