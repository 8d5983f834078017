"""The first process of a node: makes its mounts, starts containerd and the agent, and reaps what ends.

It runs in a network, mount, UTS and process namespace of its own. When it is killed, the kernel ends all processes of
the node, containers included. Argument: a JSON file, see ``node.Node.start``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: settings of the kernel that kubelet and edgecore demand: it reads these values and leaves the machine's own alone
TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
SOCKET = Path("/run/containerd/containerd.sock")


def main(path: str) -> None:
    """Set up the node and reap for ever."""
    plan = json.loads(Path(path).read_text())
    folder = Path(plan["folder"])
    _mounts(folder)
    subprocess.run(["hostname", plan["name"]], check=True)
    containerd = _start("containerd", plan["containerd"], folder)
    while not SOCKET.exists():
        time.sleep(0.1)
    for archive in [] if (folder / "images-imported").exists() else plan["images"]:
        command = ["ctr", "--address", str(SOCKET), "--namespace", "k8s.io", "images", "import", archive]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (folder / "images-imported").touch()
    children = {containerd: "containerd", _start("agent", plan["agent"], folder): "agent"}
    # a node is power-cut by SIGKILL; SIGTERM is not handled on purpose: nothing of it has to end tidily
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _reap(children, plan, folder)


def _reap(children: dict[int, str], plan: dict[str, Any], folder: Path) -> None:
    while True:
        try:
            pid, _ = os.wait()
        except ChildProcessError:
            time.sleep(0.5)
            continue
        # as systemd does
        if name := children.pop(pid, ""):
            time.sleep(1.0)
            children[_start(name, plan[name], folder)] = name


def _start(name: str, command: list[str], folder: Path) -> int:
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True).pid


def _mounts(folder: Path) -> None:
    _mount("--make-rshared", "/")
    _mount("-t", "proc", "proc", "/proc")
    _mount("-t", "tmpfs", "tmpfs", "/run")
    # names of registries are asked for in the cluster as well, where there are none: nothing leaves the machine
    _mount("--bind", str(folder / "resolv.conf"), "/etc/resolv.conf")
    # each node has its own /var/lib/halimede, /var/lib/cni, /var/lib/kubelet ...
    for path in ("/var/lib", "/var/log"):
        upper, work = (folder / "overlay" / kind / path.strip("/").replace("/", "-") for kind in ("upper", "work"))
        upper.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        _mount("-t", "overlay", "overlay", "-o", f"lowerdir={path},upperdir={upper},workdir={work}", path)
    for name, value in TUNABLES.items():
        if (setting := Path("/proc/sys", name)).exists():
            own = folder / "tunables" / name.replace("/", "-")
            own.parent.mkdir(exist_ok=True)
            own.write_text(f"{value}\n")
            _mount("--bind", str(own), str(setting))


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
