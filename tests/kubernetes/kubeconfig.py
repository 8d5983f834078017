"""Kubeconfig files: written for what tests start, read for the cluster that somebody lends us."""

from __future__ import annotations

import base64
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML


@dataclass(frozen=True, kw_only=True)
class Config:
    """How to reach a server: a token, or a certificate and its key (files)."""

    url: str
    token: str | None = None
    #: PEM
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


def write(path: Path, config: Config) -> None:
    cluster: dict[str, Any] = {"server": config.url}
    if config.ca:
        cluster["certificate-authority-data"] = base64.b64encode(config.ca.encode()).decode()
    user: dict[str, Any] = {}
    if config.token:
        user["token"] = config.token
    if config.certificate and config.key:
        user |= {"client-certificate": config.certificate, "client-key": config.key}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
    }
    with path.open("w") as file:
        YAML(typ="safe").dump(body, file)
    path.chmod(0o600)


def read(path: Path) -> Config:
    """Read the current context: a token, or a client's certificate.

    Raises:
        ValueError: it uses another form of credentials (a command, for instance).
    """
    body = YAML(typ="safe").load(path)
    context = _named(body["contexts"], body["current-context"])["context"]
    cluster = _named(body["clusters"], context["cluster"])["cluster"]
    user = _named(body["users"], context["user"])["user"]
    ca = _text(cluster, "certificate-authority", path)
    token = user.get("token")
    certificate, key = _file(user, "client-certificate", path), _file(user, "client-key", path)
    if not token and not (certificate and key):
        raise ValueError(f"{path}: user {context['user']}: needs a token, or client-certificate and client-key")
    return Config(url=cluster["server"].rstrip("/"), token=token, ca=ca, certificate=certificate, key=key)


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _text(entry: dict[str, Any], name: str, path: Path) -> str | None:
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data).decode()
    return (path.parent / entry[name]).read_text() if name in entry else None


def _file(entry: dict[str, Any], name: str, path: Path) -> str | None:
    if name in entry:
        return str(path.parent / entry[name])
    text = _text(entry, name, path)
    if text is None:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(text)
    return file.name
