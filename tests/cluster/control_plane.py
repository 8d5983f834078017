"""The control plane: etcd, API server, controller-manager and scheduler, with node authorisation and an audit log."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from tests.cluster.processes import ClusterError, Processes, in_namespace, run
from tests.cluster.settings import (
    API_PORT,
    API_SERVICE,
    API_URL,
    CONTROL,
    CONTROL_NAMESPACE,
    CONTROL_PLANE,
    NODES,
    SERVICE_NETWORK,
)
from tests.kubernetes.kubeconfig import Config, write
from tests.kubernetes.pki import Authority, key_pair

START_S = 180.0
#: user names and groups of the API server's clients, by the name of their kubeconfig
USERS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    **{node.name: (f"system:node:{node.name}", "system:nodes") for node in NODES},
}
#: who did what, without bodies: the requests of GM's user can be counted
AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users: ["system:serviceaccount:halimede:halimede-gm"]
  - level: None
"""


class ControlPlane:
    """Starts the four processes. ``toleration_s``: how long pods stay on a node that is cut off.

    Kubernetes' own default for that is 300. It is the cluster's setting (``--default-unreachable-toleration-seconds``).
    """

    def __init__(self, binaries: Path, processes: Processes, *, toleration_s: int) -> None:
        self._binaries = binaries
        self._folder = CONTROL
        self._processes = processes
        self._toleration = toleration_s

    def kubeconfig(self, user: str) -> Path:
        """Return the kubeconfig of a user: ``admin``, a node, ..."""
        return self._folder / f"{user}.yaml"

    def start(self) -> None:
        """Write keys and kubeconfigs, and start all. Raises ClusterError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._write_credentials()
        (self._folder / "audit.yaml").write_text(AUDIT)
        self._run(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
        )
        self._run("kube-apiserver", *self._api_options())
        self._processes.wait("the API server", self._ready, START_S)
        for name in ("controller-manager", "scheduler"):
            config = self.kubeconfig(name)
            own = [
                f"--kubeconfig={config}",
                f"--authentication-kubeconfig={config}",
                f"--authorization-kubeconfig={config}",
            ]
            if name == "controller-manager":
                own += [
                    f"--root-ca-file={self._folder / 'ca.pem'}",
                    f"--service-account-private-key-file={self._folder / 'accounts.key'}",
                    "--use-service-account-credentials",
                ]
            self._run(f"kube-{name}", *own, "--leader-elect=false")

    def _api_options(self) -> list[str]:
        folder = self._folder
        return [
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={CONTROL_PLANE}",
            f"--advertise-address={CONTROL_PLANE}",
            f"--secure-port={API_PORT}",
            f"--cert-dir={folder}",
            f"--tls-cert-file={folder / 'server.pem'}",
            f"--tls-private-key-file={folder / 'server.key'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            f"--service-account-key-file={folder / 'accounts.pub'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            f"--default-not-ready-toleration-seconds={self._toleration}",
            f"--default-unreachable-toleration-seconds={self._toleration}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={folder / 'audit.yaml'}",
            f"--audit-log-path={folder / 'audit.log'}",
            "--audit-log-maxsize=50",
            "--audit-log-maxbackup=1",
        ]

    def _write_credentials(self) -> None:
        authority = Authority.new()
        names = [CONTROL_PLANE, API_SERVICE, "127.0.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        authority.server(self._folder, *names)
        (self._folder / "ca.pem").write_text(authority.pem)
        key_pair(self._folder / "accounts.key", self._folder / "accounts.pub")
        lines = []
        for name, (user, group) in USERS.items():
            token = secrets.token_hex(16)
            lines.append(f'{token},{user},{user},"{group}"' if group else f"{token},{user},{user}")
            write(self.kubeconfig(name), Config(url=API_URL, token=token, ca=authority.pem))
        tokens = self._folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text("\n".join(lines) + "\n")

    def _run(self, name: str, *options: str) -> None:
        command = in_namespace(CONTROL_NAMESPACE, self._binaries / name, *options)
        self._processes.start(name, command, cwd=self._folder, env={"GOMAXPROCS": "2"})

    def _ready(self) -> bool:
        with contextlib.suppress(ClusterError):
            return self.kubectl("get", "--raw", "/readyz") == "ok"
        return False

    def kubectl(self, *words: str) -> str:
        """Run kubectl as the administrator and return its output. Raises ClusterError."""
        return run(*in_namespace(CONTROL_NAMESPACE, "kubectl", f"--kubeconfig={self.kubeconfig('admin')}", *words))
