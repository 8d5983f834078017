"""The API server that a test talks to: the double, a real `kube-apiserver`, or a cluster that somebody lends us.

- by default the strict double, one for each test;
- with ``KUBEBUILDER_ASSETS`` the `etcd` and `kube-apiserver` of that folder, started once for each test process;
- with ``KUBECONFIG`` and ``HALIMEDE_TEST_CLUSTER=1`` that cluster.

Every test has a namespace of its own. What needs the double's control (faults, logs) skips itself elsewhere.
"""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.access import DoubleAccess, ServiceAccounts
from tests.kubernetes.client import Body, Client, RefusedError, contains
from tests.kubernetes.double import Control, Double
from tests.kubernetes.garbage import empty
from tests.kubernetes.kubeconfig import Config, read, write
from tests.kubernetes.pki import server_context
from tests.kubernetes.player import Player
from tests.waiting import eventually

ASSETS, CLUSTER = "KUBEBUILDER_ASSETS", "HALIMEDE_TEST_CLUSTER"


def kind_of_server() -> str:
    """`double`, `binaries` or `cluster`."""
    if os.environ.get(CLUSTER) == "1" and os.environ.get("KUBECONFIG"):
        return "cluster"
    return "binaries" if os.environ.get(ASSETS) else "double"


@dataclass(frozen=True)
class User:
    """Somebody with rights of their own."""

    name: str
    token: str
    kubeconfig: Path


@dataclass
class Api:
    """An API server, and the test's own place on it."""

    config: Config
    kubeconfig: Path
    folder: Path
    client: Client
    access: DoubleAccess | ServiceAccounts
    #: only on the double
    double: Double | None = None
    namespace: str = ""
    #: whether somebody collects the garbage and empties namespaces
    managed: bool = True
    _made: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.config.url

    @property
    def token(self) -> str:
        """The administrator's token (a cluster may have none: use ``client``)."""
        return self.config.token or ""

    @property
    def control(self) -> Control:
        """The double's other side; on a real server the test is skipped."""
        if self.double is None:
            pytest.skip("needs the double's control: faults cannot be injected into a real API server")
        return self.double.control

    def unique(self, stem: str) -> str:
        """Return a name for something that has no namespace."""
        return f"{stem}-{secrets.token_hex(4)}"

    def player(self) -> Player:
        """Return somebody who plays what this server lacks, in the test's namespace."""
        deploys = kind_of_server() != "cluster"
        return Player(self.client, self.namespace, deploys=deploys, collects=not self.managed)

    async def node(self, name: str, labels: dict[str, str] | None = None) -> Body:
        """Make a Node object; it goes away with the test."""
        body = await self.client.create("Node", None, {"metadata": {"name": name, "labels": labels or {}}})
        self._made.append(("Node", name))
        return body

    async def new_namespace(self, stem: str = "t") -> str:
        """Make another namespace; it goes away with the test."""
        name = self.unique(stem)
        await self.client.create("Namespace", None, {"metadata": {"name": name}})
        self._made.append(("Namespace", name))
        if kind_of_server() == "cluster":  # pods are refused before its controllers have made this
            await eventually(lambda: self.client.find("ServiceAccount", name, "default"), 30.0, 0.1)
        return name

    async def until_gone(self, kind: str, name: str, namespace: str | None = "") -> None:
        """Wait until an object is gone; it is one of the test's namespace unless another is given."""

        async def is_gone() -> bool:
            where = self.namespace if namespace == "" else namespace
            return await self.client.find(kind, where, name) is None

        await eventually(is_gone, 60.0, 0.05)

    async def install(self, definition: Body) -> None:
        """Install a CustomResourceDefinition (or bring the installed one to this), and wait until it is served."""
        name = definition["metadata"]["name"]
        found = await self.client.find("CustomResourceDefinition", None, name)
        if found is None:
            try:
                await self.client.create("CustomResourceDefinition", None, definition)
            except RefusedError as refused:
                if refused.code != 409:  # another test has just installed it
                    raise
        elif not contains(found["spec"], definition["spec"]):
            meta = {**definition["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}
            await self.client.replace("CustomResourceDefinition", None, {**definition, "metadata": meta})
        spec = definition["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        await eventually(lambda: self._served(path), 30.0)

    async def _served(self, path: str) -> bool:
        try:
            await self.client.request("GET", path, limit=1)
        except RefusedError:
            return False
        return True

    async def user(self, stem: str, rules: Iterable[dict[str, Any]]) -> User:
        """Let somebody in with rules as manifests write them; a key `namespaces` limits one to those."""
        name, token = await self.access.add(stem, list(rules))
        path = self.folder / f"{stem}-{secrets.token_hex(3)}.yaml"
        write(path, Config(url=self.config.url, token=token, ca=self.config.ca))
        return User(name, token, path)

    def as_somebody(self, token: str | None) -> Client:
        """Return a client for somebody else's token, or for nobody's."""
        return Client(self.url, token, trust_of(self.config))

    async def clean(self) -> None:
        """Remove what the test made outside its namespace, and its namespaces."""
        await self.access.clean()
        for kind, name in reversed(self._made):
            if kind == "Namespace" and not self.managed:
                await empty(self.client, name)
                continue
            try:
                await self.client.delete(kind, None, name)
            except RefusedError as refused:
                if refused.code not in {404, 409}:
                    raise


@asynccontextmanager
async def on_double(folder: Path, *, tls: bool = False) -> AsyncIterator[Api]:
    """A double of one test's own (with ``tls``: for clients such as kubectl that send no token in plain text)."""
    context, authority = server_context(folder) if tls else (None, None)
    async with Double(tls=context) as double:
        config = Config(url=double.url, token=double.admin, ca=authority)
        client = Client(config.url, config.token, tls_of(config))
        write(folder / "admin.yaml", config)
        access = DoubleAccess(double)
        api = Api(config, folder / "admin.yaml", folder, client, access, double)
        async with client:
            api.namespace = await api.new_namespace()
            yield api


@asynccontextmanager
async def on_server(kubeconfig: Path, folder: Path, *, managed: bool) -> AsyncIterator[Api]:
    """A real server, shared with other tests."""
    config = read(kubeconfig)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(config.url, config.token, tls_of(config)))
        api = Api(config, kubeconfig, folder, client, ServiceAccounts(client), managed=managed)
        api.namespace = await api.new_namespace()
        stack.push_async_callback(api.clean)
        yield api


def trust_of(config: Config) -> ssl.SSLContext | None:
    return ssl.create_default_context(cadata=config.ca) if config.url.startswith("https") else None


def tls_of(config: Config) -> ssl.SSLContext | None:
    """Return what the administrator's client trusts and shows."""
    context = trust_of(config)
    if context is not None and config.certificate and config.key:
        context.load_cert_chain(config.certificate, config.key)
    return context
