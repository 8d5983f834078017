"""A site's credentials as Kubernetes Secrets, made from its folder, for `kubectl apply`.

There is one for GM, one for all nodes' LCs, one for the broker, one for each role of workers in every namespace with
services, and one for the broker of each place behind a bridge. All nodes' LCs share a Secret, because a DaemonSet
cannot mount a different one on each node. An LC sees only its own part, but a kubelet may read the whole. If that is
not acceptable, nodes store their credentials themselves (``deploy/components/host-credentials``).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from halimede.access import files
from halimede.access.emqx import node_cookie, users_csv
from halimede.access.site import POOLS, Principal, Site, role_name
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.names import check_label
from halimede.topic import Role

#: the API server's limit of one Secret
MAX_SECRET_BYTES = 1024 * 1024
#: names of the Secrets, that of a place's broker with ``-<bridge>`` behind it
GM, LC, BROKER, BRIDGE_BROKER = "halimede-gm", "halimede-lc", "halimede-broker", "halimede-place"
#: files of one user, by whether the site has passwords
FILES_BY_PASSWORDS = {True: files.LOGIN_FILES, False: files.TLS_FILES}
#: names of the Secrets of workers, by role; all pods of a role share one user (a pool), on any node
WORKERS = {role: f"halimede-{role_name(role)}" for role in POOLS}

#: a resource of Kubernetes as plain data
Manifest = dict[str, Any]


def secrets_of(
    site: Site, folder: Path, *, namespace: str, workers_in: Sequence[str], emqx: bool = False
) -> Iterator[Manifest]:
    """Yield the Secrets of a site, from the files in its folder, with the rules for Mosquitto, or for EMQX (``emqx``).

    ``namespace``: that of GM, LC and broker; ``workers_in``: namespaces with workers. Raises InvalidFieldError for
    these, and for workers of a site without ``pools``; HalimedeError for a missing file or too many bytes; OSError.
    """
    check_label("--namespace", namespace)
    if workers_in and not site.pools:
        raise InvalidFieldError(
            "site.pools", site.pools, "pods need users of any node: write `pools: true` into site.yaml, then `halimede "
            "certs init` with this folder"
        )  # fmt: skip
    yield _secret(GM, namespace, _login_files(site, folder / Principal(Role.GM).folder))
    yield _secret(LC, namespace, _node_files(site, folder))
    yield _secret(BROKER, namespace, _broker_files(site, folder, emqx=emqx))
    for bridge in site.bridges:
        bridge_files = _bridge_files(site, folder / "bridges" / bridge.name)
        yield _secret(f"{BRIDGE_BROKER}-{bridge.name}", namespace, bridge_files)
    for worker_namespace in dict.fromkeys(workers_in):
        check_label("--workers-in", worker_namespace)
        for role, name in WORKERS.items():
            yield _secret(name, worker_namespace, _login_files(site, folder / Principal(role).folder))


def _node_files(site: Site, folder: Path) -> dict[str, bytes]:
    """Return the files of all nodes' LCs as ``<node>.<file>``; ``ca.crt``, which is common, once."""
    contents = {}
    for node in site.nodes:
        for name, data in _login_files(site, folder / Principal(Role.LC, node).folder).items():
            contents["ca.crt" if name == "ca.crt" else f"{node}.{name}"] = data
    return contents


def _broker_files(site: Site, folder: Path, *, emqx: bool) -> dict[str, bytes]:
    """Return the files of the site's broker by name."""
    data = {} if site.passwords else {name: _read(folder / "broker" / name) for name in files.TLS_FILES}
    if emqx:
        data["acl.conf"] = _read(folder / "emqx" / "acl.conf")
        data["cookie"] = node_cookie(folder).encode()
        return {**data, "users.csv": users_csv(site, folder).encode()} if site.passwords else data
    names = ("acl", "passwords") if site.passwords else ("acl",)
    return {**data, **{name: _read(folder / "broker" / name) for name in names}}


def _bridge_files(site: Site, folder: Path) -> dict[str, bytes]:
    """Return the files of a place's broker as ``broker.<file>``, and of its bridge as ``link.<file>``."""
    names = ("mosquitto.conf", "acl", *(("passwords",) if site.passwords else files.TLS_FILES))
    # with passwords, mosquitto.conf already contains the bridge's user and password
    login_files = {} if site.passwords else _login_files(site, folder / "link")
    link = {f"link.{name}": data for name, data in login_files.items()}
    return {**link, **{f"broker.{name}": _read(folder / "broker" / name) for name in names}}


def _login_files(site: Site, folder: Path) -> dict[str, bytes]:
    """Return the files of the user whose folder this is, by name."""
    return {name: _read(folder / name) for name in FILES_BY_PASSWORDS[site.passwords]}


def _read(path: Path) -> bytes:
    """Return a file's content. Raises HalimedeError if it does not exist."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise HalimedeError(f"{path} is not there: `halimede certs init` with this folder makes it") from None


def _secret(name: str, namespace: str, data: dict[str, bytes]) -> Manifest:
    """Return a Secret with these files. Raises HalimedeError if they are too large."""
    size = sum(map(len, data.values()))
    if size > MAX_SECRET_BYTES:
        raise HalimedeError(
            f"Secret {name} would have {size} bytes, and Kubernetes takes {MAX_SECRET_BYTES}: let nodes keep their "
            "credentials themselves (deploy/components/host-credentials)"
        )
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "halimede"}},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }
