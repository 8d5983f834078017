"""The whole cluster: started in order, and removed without a trace."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cluster import network
from tests.cluster.control_plane import ControlPlane
from tests.cluster.node import Kubelet, Node, remove_parent_cgroups
from tests.cluster.processes import Processes, in_namespace
from tests.cluster.settings import CONTROL, CONTROL_NAMESPACE, LOGS, ROOT, STATE, NodePlan

#: parts of the names of images that edge nodes need
EDGE_IMAGES = ("/pause:", "/lc:", "/worker:")
IMPORT_S, READY_S = 600.0, 180.0


class Cluster:
    """Nodes and a control plane: ``with Cluster(...) as cluster``. ``images``: archives by image reference."""

    def __init__(
        self, binaries: Path, images: Mapping[str, Path], *, plans: Sequence[NodePlan], toleration_s: int
    ) -> None:
        self.processes = Processes(LOGS)
        self.control = ControlPlane(binaries, self.processes, toleration_s=toleration_s)
        self._binaries = binaries
        self._images = images
        self.nodes = [
            Node(plan, self.processes, Kubelet(binaries / "kubelet", self.control.kubeconfig(plan.name)))
            for plan in plans
        ]

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.control.kubeconfig("admin")

    def __enter__(self) -> Cluster:
        self.remove()
        try:
            self._start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def command(self, *words: str | Path) -> list[str]:
        """Return a command line that runs where the API server and all pods can be reached."""
        return in_namespace(CONTROL_NAMESPACE, *words)

    def _start(self) -> None:
        for folder in (CONTROL, LOGS):
            shutil.rmtree(folder, ignore_errors=True)
        _step("network namespaces", network.create)
        _step("control plane", self.control.start)
        proxy = (
            sys.executable,
            "-m",
            "tests.cluster.service_proxy",
            self.control.kubeconfig("proxy"),
            CONTROL,
        )
        self.processes.start("service-proxy", self.command(*proxy), cwd=ROOT)
        for node in self.nodes:
            _step(f"node {node.plan.name}", functools.partial(node.start, self._images_of(node)))
        _step("images on all nodes", self._imported)
        _step("nodes Ready", self._ready)
        state = {
            "nodes": {node.plan.name: node.plan.address for node in self.nodes},
            "binaries": str(self._binaries),
            "images": {name: str(path) for name, path in self._images.items()},
        }
        STATE.write_text(json.dumps(state))

    def _images_of(self, node: Node) -> list[Path]:
        """Return what can run there: an edge node beside a cloud node has neither GM nor broker."""
        alone = len(self.nodes) == 1
        there = alone or node.plan.name != "edge0"
        return [path for name, path in self._images.items() if there or any(part in name for part in EDGE_IMAGES)]

    def _imported(self) -> None:
        done = lambda: all(node.ready_for_pods() for node in self.nodes)  # noqa: E731
        self.processes.wait("images", done, IMPORT_S)

    def _ready(self) -> None:
        path = "{.items[*].status.conditions[?(@.type=='Ready')].status}"

        def ready() -> bool:
            return self.control.kubectl("get", "nodes", "-o", f"jsonpath={path}").split() == ["True"] * len(self.nodes)

        self.processes.wait("nodes Ready", ready, READY_S)

    def remove(self) -> None:
        """End all processes, and remove nodes, namespaces and cgroups, also those that a former run left."""
        for node in self.nodes:
            node.remove()
        self.processes.stop_all()
        network.remove()
        remove_parent_cgroups()
        STATE.unlink(missing_ok=True)


def _step(what: str, action: Callable[[], None]) -> None:
    began = time.monotonic()
    action()
    print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)
