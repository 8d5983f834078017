"""KubeEdge in the cluster: cloudcore beside the control plane, and one node that edgecore runs.

The node is at a place of its own. Its name server knows the names of the site's broker, and none of the cluster; no
Service is reached from there.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from tests.cluster import network
from tests.cluster.kubectl import Kubectl, condition, until
from tests.cluster.node import PAUSE, SOCKET, Node, kubelet_settings, pod_interface
from tests.cluster.processes import Processes, in_namespace, run
from tests.cluster.requirements import CLOUDCORE, CRDS, EDGECORE
from tests.cluster.settings import (
    BROKER_NAME,
    BUILD,
    CLOUD_NAME,
    CONTROL,
    CONTROL_NAMESPACE,
    CONTROL_PLANE,
    LOGS,
    NODES,
    PLACE,
    RESOLVER,
)

TUNNEL_PORT, CERTIFICATE_PORT = 10000, 10002
#: parts of the names of images that the node needs
IMAGES = ("/pause:", "/lc:0", "/worker:0", "/eclipse-mosquitto:")
START_S = 300.0
Body = dict[str, Any]


def default_settings(binary: Path) -> Body:
    """Return the settings that a program of KubeEdge has by default."""
    found: Body = yaml.safe_load(run(binary, "--defaultconfig"))
    return found


class EdgeCore:
    """KubeEdge's agent. ``token``: lets it join."""

    name = EDGECORE
    #: where the place's resolver listens: also pods reach it
    name_server = PLACE.address

    def __init__(self, binary: Path, token: str) -> None:
        self._binary = binary
        self._token = token

    def command(self, node: Node) -> list[str]:
        """Write its settings into the node's folder, and return its command line."""
        settings = default_settings(self._binary)
        modules, folder = settings["modules"], node.folder / "edgecore"
        folder.mkdir(exist_ok=True)
        settings["database"]["dataSource"] = str(folder / "edgecore.db")
        hub = modules["edgeHub"]
        hub["httpServer"] = f"https://{CONTROL_PLANE}:{CERTIFICATE_PORT}"
        hub["websocket"]["server"] = f"{CONTROL_PLANE}:{TUNNEL_PORT}"
        hub["token"] = self._token
        for key, name in (("tlsCaFile", "ca.crt"), ("tlsCertFile", "edge.crt"), ("tlsPrivateKeyFile", "edge.key")):
            hub[key] = str(folder / name)
        # its own broker, for clients of the node alone: none of Debian's has to be there
        modules["eventBus"]["mqttMode"] = 0
        edged = modules["edged"]
        edged |= {
            "hostnameOverride": node.plan.name,
            "nodeIP": node.plan.address,
            "rootDirectory": str(folder / "pods"),
        }
        edged["podSandboxImage"] = PAUSE
        kubelet = edged["tailoredKubeletConfig"]
        kubelet |= kubelet_settings(node) | {"imageServiceEndpoint": f"unix://{SOCKET}", "clusterDNS": []}
        path = node.folder / "edgecore.yaml"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(settings))
        return [str(self._binary), f"--config={path}"]

    def pod_network(self, node: Node) -> dict[str, object]:
        """Return the CNI configuration of the node's pods: other machines see the node's address; with host ports."""
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [pod_interface(node.plan, masquerade=True), ports]}


class KubeEdge:
    """Starts and removes both: ``with KubeEdge(...) as place``. ``images``: archives by image reference."""

    def __init__(self, binaries: Path, images: Mapping[str, Path], kubectl: Kubectl) -> None:
        self._binaries = binaries
        self._images = [path for name, path in images.items() if any(part in name for part in IMAGES)]
        self._kubectl = kubectl
        self._processes = Processes(LOGS)
        self._node: Node | None = None

    def __enter__(self) -> KubeEdge:
        network.add(PLACE)
        try:
            self._start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._remove()

    def _start(self) -> None:
        self._processes.start("place-dns", in_namespace(PLACE.namespace, *self._resolver()), cwd=BUILD)
        namespace = self._kubectl.run("create", "namespace", "kubeedge", "--dry-run=client", "-o", "yaml")
        self._kubectl.apply(namespace)
        self._kubectl.run("apply", "--server-side", "-R", "-f", str(self._binaries / CRDS))
        self._processes.start(CLOUDCORE, in_namespace(CONTROL_NAMESPACE, *self._cloudcore()), cwd=CONTROL)
        secret = until("KubeEdge's token", self._token, START_S)
        agent = EdgeCore(self._binaries / EDGECORE, base64.b64decode(secret).decode())
        self._node = Node(PLACE, self._processes, agent)
        shutil.rmtree(self._node.folder, ignore_errors=True)
        self._node.start(self._images)
        until(f"{PLACE.name} Ready", self.ready, START_S)

    def _token(self) -> str:
        return self._kubectl.run("get", "secret", "tokensecret", "-n", "kubeedge", "-o", "jsonpath={.data.tokendata}")

    def _cloudcore(self) -> list[str | Path]:
        folder = CONTROL / CLOUDCORE
        folder.mkdir(exist_ok=True)
        settings = default_settings(self._binaries / CLOUDCORE)
        settings["kubeAPIConfig"]["kubeConfig"] = str(CONTROL / "admin.yaml")
        modules = settings["modules"]
        # it writes rules for `kubectl logs`, which are not used
        modules["iptablesManager"]["enable"] = False
        hub = modules["cloudHub"]
        hub["advertiseAddress"] = [CONTROL_PLANE]
        hub["unixsocket"] = {"address": f"unix://{folder / 'kubeedge.sock'}", "enable": True}
        for key, name in (
            ("tlsCAFile", "ca.crt"),
            ("tlsCAKeyFile", "ca.key"),
            ("tlsCertFile", "server.crt"),
            ("tlsPrivateKeyFile", "server.key"),
        ):
            hub[key] = str(folder / name)
        path = folder / "cloudcore.yaml"
        path.write_text(yaml.safe_dump(settings))
        return [self._binaries / CLOUDCORE, f"--config={path}"]

    def _resolver(self) -> Sequence[str]:
        (cloud,) = (node for node in NODES if node.name == "cloud0")
        names = {CLOUD_NAME: cloud.address, BROKER_NAME: PLACE.address}
        return (*RESOLVER, *(f"--host-record={name},{address}" for name, address in names.items()))

    def ready(self) -> bool:
        """Whether Kubernetes reaches the node."""
        return condition(self._kubectl.body("node", PLACE.name), "Ready") == "True"

    def cut_uplink(self) -> None:
        """Cut the place off from the rest of the world."""
        network.set_uplink(PLACE.name, up=False)

    def heal_uplink(self) -> None:
        """Connect it again."""
        network.set_uplink(PLACE.name, up=True)

    def restart_edgecore(self) -> None:
        """Send SIGTERM to edgecore, and wait for the next one: the node starts it a second later, as systemd does."""
        (first,) = self._edgecores()
        os.kill(first, signal.SIGTERM)
        until("another edgecore", lambda: (found := self._edgecores()) and first not in found, 60)

    def _edgecores(self) -> list[int]:
        """Return the process ids of the node's edgecore, as this machine has them."""
        wanted = [str(self._binaries / EDGECORE), f"--config={self._started().folder / 'edgecore.yaml'}"]
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if path.read_bytes().decode().split("\0")[:2] == wanted:
                    found.append(int(path.parent.name))
        return found

    def cut_power(self, seconds: float) -> None:
        """Kill all processes of the node at once, and start it again after some seconds."""
        node = self._started()
        node.power_off()
        time.sleep(seconds)
        node.power_on()

    def command(self, *words: str | Path) -> list[str]:
        """Return a command line that runs on a machine of the place that is not this node."""
        return in_namespace(PLACE.namespace, *words)

    def _started(self) -> Node:
        assert self._node is not None, "the node has not been started"
        return self._node

    def _remove(self) -> None:
        if self._node is not None:
            self._node.remove()
        self._processes.stop_all()
        network.remove(PLACE.namespace)
        self._kubectl.run("delete", "node", PLACE.name, "--ignore-not-found")
        self._kubectl.run("delete", "namespace", "kubeedge", "--ignore-not-found")
        self._kubectl.run("delete", "-R", "-f", str(self._binaries / CRDS), "--ignore-not-found")
