"""Users with rights of their own, on the double and on real servers."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any

from tests.kubernetes.client import Client, RefusedError
from tests.kubernetes.double import Double

Rules = list[dict[str, Any]]
_HOME = "default"


class DoubleAccess:
    """Users of the double."""

    def __init__(self, double: Double) -> None:
        self._double = double

    async def add(self, stem: str, rules: Rules) -> tuple[str, str]:
        """Return the user's full name and a token."""
        name = f"system:serviceaccount:{_HOME}:{stem}-{secrets.token_hex(3)}"
        return name, self._double.user(name, rules)

    async def clean(self) -> None:
        """Nothing: the double goes away."""


class ServiceAccounts:
    """Users of a real server: service accounts, bound to roles made for them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made: list[tuple[str, str | None, str]] = []

    async def add(self, stem: str, rules: Rules) -> tuple[str, str]:
        """Return the user's full name and a token."""
        name = f"{stem}-{secrets.token_hex(4)}"
        await self._make("ServiceAccount", _HOME, {"metadata": {"name": name}})
        subject = {"kind": "ServiceAccount", "name": name, "namespace": _HOME}
        everywhere = [rule for rule in rules if "namespaces" not in rule]
        await self._bind("ClusterRole", None, name, everywhere, subject)
        for namespace in sorted({each for rule in rules for each in rule.get("namespaces", ())}):
            here = [rule for rule in rules if namespace in rule.get("namespaces", ())]
            await self._bind("Role", namespace, name, here, subject)
        path = f"/api/v1/namespaces/{_HOME}/serviceaccounts/{name}/token"
        answer = await self._client.request("POST", path, {"spec": {"expirationSeconds": 7200}})
        return f"system:serviceaccount:{_HOME}:{name}", answer["status"]["token"]

    async def _bind(self, kind: str, namespace: str | None, name: str, rules: Rules, subject: dict[str, str]) -> None:
        plain = [{key: value for key, value in rule.items() if key != "namespaces"} for rule in rules]
        await self._make(kind, namespace, {"metadata": {"name": name}, "rules": plain})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        await self._make(f"{kind}Binding", namespace, binding)

    async def _make(self, kind: str, namespace: str | None, body: dict[str, Any]) -> None:
        await self._client.create(kind, namespace, body)
        self._made.append((kind, namespace, body["metadata"]["name"]))

    async def clean(self) -> None:
        for kind, namespace, name in reversed(self._made):
            with suppress(RefusedError):
                await self._client.delete(kind, namespace, name)
