"""A real `kube-apiserver` with its `etcd`, as child processes, from a folder of binaries.

No controllers, no scheduler, no kubelet: ``player`` does what tests need of them.
"""

from __future__ import annotations

import secrets
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.cluster.processes import Processes
from tests.kubernetes.apiserver import tls_of
from tests.kubernetes.kubeconfig import Config, write
from tests.kubernetes.pki import Authority, key_pair
from tests.ports import free_port
from tests.waiting import patience

PATIENCE = 90.0


class Binaries:
    """Starts both, and ends them by their process ids."""

    def __init__(self, assets: Path, folder: Path) -> None:
        self._assets = assets
        self._folder = folder
        self._processes = Processes(folder)

    def start(self) -> Path:
        """Start them; return the administrator's kubeconfig once the server is ready."""
        authority = Authority.new()
        certificate, key = authority.server(self._folder, "127.0.0.1")
        key_pair(self._folder / "accounts.key", self._folder / "accounts.pub")
        token = secrets.token_hex(16)
        (self._folder / "tokens.csv").write_text(f'{token},test-admin,test-admin,"system:masters"\n')
        etcd, peer, port = free_port(), free_port(), free_port()
        self._run(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
        )
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            f"--service-account-key-file={self._folder / 'accounts.pub'}",
            f"--service-account-signing-key-file={self._folder / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            "--api-audiences=https://kubernetes.default.svc",
            f"--cert-dir={self._folder}",
            "--shutdown-delay-duration=0s",
        )
        config = Config(url=f"https://127.0.0.1:{port}", token=token, ca=authority.pem)
        write(self._folder / "admin.yaml", config)
        self._processes.wait("the API server", lambda: ready(config), patience(PATIENCE))
        return self._folder / "admin.yaml"

    def _run(self, name: str, *arguments: str) -> None:
        self._processes.start(name, [self._assets / name, *arguments], cwd=self._folder, env={"GOMAXPROCS": "2"})

    def stop(self) -> None:
        """End them, the server first."""
        self._processes.stop_all()


def ready(config: Config) -> bool:
    request = urllib.request.Request(f"{config.url}/readyz", headers={"Authorization": f"Bearer {config.token}"})
    with suppress(OSError), urllib.request.urlopen(request, timeout=5.0, context=tls_of(config)) as answer:
        return bool(answer.status == 200)
    return False
