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

from tests.cluster.processes import GRACE_S, Processes, in_namespace
from tests.cluster.settings import DNS_SERVICE, DOMAIN, PREFIX, Folders, NodePlan

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


class Node:
    """A node of the cluster. ``images``: archives that its containerd imports first."""

    def __init__(
        self, plan: NodePlan, folders: Folders, processes: Processes, *, kubelet: Path, kubeconfig: Path
    ) -> None:
        self.plan = plan
        self.folder = folders.node(plan.name)
        self._processes = processes
        self._kubelet = kubelet
        self._kubeconfig = kubeconfig

    @property
    def cgroup(self) -> str:
        """The node's cgroup in each hierarchy."""
        return f"/{PREFIX}/{self.plan.name}"

    def start(self, images: Sequence[Path]) -> None:
        """Start it; the node registers itself with the API server. Raises ClusterError."""
        (self.folder / "cni").mkdir(parents=True, exist_ok=True)
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(self._pod_network()))
        (self.folder / "containerd.toml").write_text(
            CONTAINERD.format(folder=self.folder, socket=SOCKET, pause=PAUSE, plugins=CNI_PLUGINS)
        )
        (self.folder / "resolv.conf").write_text(f"nameserver {DNS_SERVICE}\n")
        (self.folder / "kubelet.json").write_text(json.dumps(self._settings()))
        plan = {
            "name": self.plan.name,
            "folder": str(self.folder),
            "images": [str(image) for image in images],
            "containerd": ["containerd", "--config", str(self.folder / "containerd.toml")],
            "kubelet": [
                str(self._kubelet),
                f"--config={self.folder / 'kubelet.json'}",
                f"--kubeconfig={self._kubeconfig}",
                f"--hostname-override={self.plan.name}",
                f"--node-ip={self.plan.address}",
                f"--root-dir={self.folder / 'kubelet'}",
                f"--cert-dir={self.folder / 'certificates'}",
                "--v=2",
            ],
        }
        (self.folder / "plan.json").write_text(json.dumps(plan))
        for hierarchy in hierarchies():
            make_cgroup(hierarchy, self.cgroup)
        own = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL")
        init = (sys.executable, Path(__file__).with_name("node_init.py"), self.folder / "plan.json")
        self._processes.start(
            self.plan.name, in_namespace(self.plan.namespace, *own, *init), cwd=self.folder, env={"GOMAXPROCS": "2"}
        )

    def ready_for_pods(self) -> bool:
        """Whether all images are there."""
        return (self.folder / "images-imported").exists()

    def remove(self) -> None:
        """End all processes of the node, and remove its cgroups and files."""
        self._processes.stop(self.plan.name, signal.SIGKILL)
        end = time.monotonic() + GRACE_S
        own = [hierarchy / self.cgroup.lstrip("/") for hierarchy in (*hierarchies(), CGROUPS / "unified")]
        while (left := [path for path in own if path.exists()]) and time.monotonic() < end:
            for path in left:
                _remove_cgroup(path)
            time.sleep(0.2)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _settings(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # the API server alone reaches it, in a network of their own
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": DOMAIN,
            "resolvConf": str(self.folder / "resolv.conf"),
            "podLogsDir": str(self.folder / "pods"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup,
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "enforceNodeAllocatable": ["pods"],
            # the cluster is on a disk that other programs fill
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "registerWithTaints": [],
        }

    def _pod_network(self) -> dict[str, object]:
        routes = [{"dst": "0.0.0.0/0"}]
        ipam = {"type": "host-local", "ranges": [[{"subnet": self.plan.pods}]], "routes": routes}
        # point to point: all traffic of pods passes the node's own rules, also between two pods of one node
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}


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
