"""A real `kube-apiserver` with its `etcd`, as child processes, from a folder of binaries.

No controllers, no scheduler, no kubelet: ``player`` does what tests need of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import signal
import subprocess
import time
from pathlib import Path

import aiohttp

from tests.kubernetes.apiserver import tls_of
from tests.kubernetes.kubeconfig import Config, write
from tests.kubernetes.pki import Authority, key_pair
from tests.ports import free_port
from tests.waiting import patience

PATIENCE = 90.0
_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)


class Binaries:
    """Starts both, and ends them by their process ids."""

    def __init__(self, assets: Path, folder: Path) -> None:
        self._assets = assets
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    async def start(self) -> Path:
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
        await self._ready(config)
        return self._folder / "admin.yaml"

    def _run(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(self._assets / name), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={**os.environ, "GOMAXPROCS": "2"},
                preexec_fn=_die_with_parent,  # noqa: PLW1509 (one call in a process that has no threads yet)
            )
        self._processes.append(process)

    async def _ready(self, config: Config) -> None:
        deadline = time.monotonic() + patience(PATIENCE)
        headers = {"Authorization": f"Bearer {config.token}"}
        connector = aiohttp.TCPConnector(ssl=tls_of(config) or True)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
            while True:
                try:
                    async with asyncio.timeout(5.0), session.get(f"{config.url}/readyz") as answer:
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError, OSError):
                    pass
                ended = next((process for process in self._processes if process.poll() is not None), None)
                if ended is not None or time.monotonic() > deadline:
                    self.stop()
                    raise RuntimeError(f"the API server is not ready: {self._last_words()}")
                await asyncio.sleep(0.2)

    def _last_words(self) -> str:
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in logs)

    def stop(self) -> None:
        """End them, the server first."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(patience(10.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
