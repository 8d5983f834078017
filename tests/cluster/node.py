"""One node: kubelet and containerd in namespaces and cgroups of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.cluster.processes import GRACE_S, Processes, in_namespace
from tests.cluster.settings import BUILD, DNS_SERVICE, DOMAIN, PREFIX, NodePlan

CGROUPS = Path("/sys/fs/cgroup")
CNI_PLUGINS = "/usr/lib/cni"
SOCKET = "/run/containerd/containerd.sock"
PAUSE = "docker.io/halimede-cluster/pause:1"
CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # without CAP_SYS_RESOURCE a process cannot lower its value, and containers would not start
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


class Agent(Protocol):
    """The program that runs the pods of a node.

    Attributes:
        name: the program's.
        name_server: what pods with the node's DNS and the node itself resolve names with.

    """

    name: str
    name_server: str

    def command(self, node: Node) -> list[str]:
        """Write its settings into the node's folder, and return its command line."""

    def pod_network(self, node: Node) -> dict[str, object]:
        """Return the CNI configuration of the node's pods."""


class Node:
    """A node of the cluster."""

    def __init__(self, plan: NodePlan, processes: Processes, agent: Agent) -> None:
        self.plan = plan
        self.folder = BUILD / "nodes" / plan.name
        self.agent = agent
        self._processes = processes

    @property
    def cgroup(self) -> str:
        """The node's cgroup in each hierarchy."""
        return f"/{PREFIX}/{self.plan.name}"

    def start(self, images: Sequence[Path]) -> None:
        """Start it; it registers itself with the cluster. ``images``: archives that its containerd imports first.

        Raises ClusterError.
        """
        (self.folder / "cni").mkdir(parents=True, exist_ok=True)
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self.agent.pod_network(self)))
        (self.folder / "containerd.toml").write_text(
            CONTAINERD.format(folder=self.folder, socket=SOCKET, pause=PAUSE, plugins=CNI_PLUGINS)
        )
        (self.folder / "resolv.conf").write_text(f"nameserver {self.agent.name_server}\n")
        plan = {
            "name": self.plan.name,
            "folder": str(self.folder),
            "images": [str(image) for image in images],
            "containerd": ["containerd", "--config", str(self.folder / "containerd.toml")],
            "agent": self.agent.command(self),
        }
        (self.folder / "plan.json").write_text(json.dumps(plan))
        for hierarchy in hierarchies():
            make_cgroup(hierarchy, self.cgroup)
        self.power_on()

    def power_on(self) -> None:
        """Start it with all that is on its disk."""
        own = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL")
        init = (sys.executable, Path(__file__).with_name("node_init.py"), self.folder / "plan.json")
        self._processes.start(
            self.plan.name, in_namespace(self.plan.namespace, *own, *init), cwd=self.folder, env={"GOMAXPROCS": "2"}
        )

    def power_off(self) -> None:
        """Kill all its processes at once. Files stay as they are, also those that a real power cut would lose."""
        self._processes.stop(self.plan.name, signal.SIGKILL)

    def ready_for_pods(self) -> bool:
        """Whether all images are there."""
        return (self.folder / "images-imported").exists()

    def remove(self) -> None:
        """End all processes of the node, and remove its cgroups and files."""
        self.power_off()
        end = time.monotonic() + GRACE_S
        own = [hierarchy / self.cgroup.lstrip("/") for hierarchy in (*hierarchies(), CGROUPS / "unified")]
        while (left := [path for path in own if path.exists()]) and time.monotonic() < end:
            for path in left:
                _remove_cgroup(path)
            time.sleep(0.2)
        shutil.rmtree(self.folder, ignore_errors=True)


class Kubelet:
    """Kubernetes' own agent: all that a cluster offers is there for its pods."""

    name = "kubelet"
    name_server = DNS_SERVICE

    def __init__(self, binary: Path, kubeconfig: Path) -> None:
        self._binary = binary
        self._kubeconfig = kubeconfig

    def command(self, node: Node) -> list[str]:
        """Write its settings into the node's folder, and return its command line."""
        folder = node.folder
        (folder / "kubelet.json").write_text(json.dumps(self._settings(node)))
        return [
            str(self._binary),
            f"--config={folder / 'kubelet.json'}",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={node.plan.name}",
            f"--node-ip={node.plan.address}",
            f"--root-dir={folder / 'kubelet'}",
            f"--cert-dir={folder / 'certificates'}",
            "--v=2",
        ]

    def pod_network(self, node: Node) -> dict[str, object]:
        """Return the CNI configuration of the node's pods."""
        # point to point: all traffic of pods passes the node's own rules, also between two pods of one node
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [pod_interface(node.plan)]}

    def _settings(self, node: Node) -> dict[str, object]:
        return kubelet_settings(node) | {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # the API server alone reaches it, in a network of their own
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": DOMAIN,
            "podLogsDir": str(node.folder / "pods"),
            "failCgroupV1": False,
            "registerWithTaints": [],
        }


def kubelet_settings(node: Node) -> dict[str, object]:
    """Return the settings of a kubelet that edgecore's own has as well."""
    return {
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "resolvConf": str(node.folder / "resolv.conf"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "enforceNodeAllocatable": ["pods"],
        # the cluster is on a disk that other programs fill
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
    }


def pod_interface(plan: NodePlan, *, masquerade: bool = False) -> dict[str, object]:
    """Return the CNI plug-in for addresses of the node's range. ``masquerade``: others see the node's own address."""
    routes = [{"dst": "0.0.0.0/0"}]
    ipam = {"type": "host-local", "ranges": [[{"subnet": plan.pods}]], "routes": routes}
    return {"type": "ptp", "ipMasq": masquerade, "ipam": ipam}


def hierarchies() -> list[Path]:
    """Return the cgroup hierarchies of version 1; on a machine with version 2, its only one."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return sorted(path for path in CGROUPS.iterdir() if path.name != "unified" and (path / "cgroup.procs").exists())


def make_cgroup(hierarchy: Path, name: str) -> None:
    """Create a cgroup and its parents; in ``cpuset`` with the processors and memory of the parent."""
    path = hierarchy
    for part in name.strip("/").split("/"):
        above, path = path, path / part
        path.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (above / file).exists() and (path / file).exists():
                (path / file).write_text((above / file).read_text())


def _remove_cgroup(path: Path) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


def remove_parent_cgroups() -> None:
    """Remove the cgroup above those of all nodes."""
    for hierarchy in (*hierarchies(), CGROUPS / "unified"):
        with contextlib.suppress(OSError):
            (hierarchy / PREFIX).rmdir()
