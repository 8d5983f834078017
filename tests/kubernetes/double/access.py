"""Who may do what: bearer tokens, each bound to rules as in a ClusterRole or a Role. Refusals are remembered."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.double.errors import ApiError, details_of
from tests.kubernetes.double.kinds import Kind


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of a role; ``namespaces`` says where a Role (not a ClusterRole) holds."""

    verbs: frozenset[str]
    groups: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()
    namespaces: frozenset[str] | None = None

    @classmethod
    def read(cls, rule: dict[str, Any]) -> Rule:
        """Read a rule as manifests write it; a key `namespaces` in it limits it to those."""
        limited = rule.get("namespaces")
        return cls(
            verbs=frozenset(rule.get("verbs", ())),
            groups=frozenset(rule.get("apiGroups", ())),
            resources=frozenset(rule.get("resources", ())),
            names=frozenset(rule.get("resourceNames", ())),
            paths=frozenset(rule.get("nonResourceURLs", ())),
            namespaces=None if limited is None else frozenset(limited),
        )

    def allows(self, act: Act) -> bool:
        if not {act.verb, "*"} & self.verbs:
            return False
        if act.path is not None:
            return any(act.path == p or (p.endswith("*") and act.path.startswith(p[:-1])) for p in self.paths)
        if self.namespaces is not None and act.namespace not in self.namespaces:
            return False
        wanted = {act.resource, "*"} | ({f"*/{act.resource.partition('/')[2]}"} if "/" in act.resource else set())
        if not {act.group, "*"} & self.groups or not wanted & self.resources:
            return False
        return not self.names or act.name in self.names


@dataclass(frozen=True, kw_only=True)
class Act:
    """What somebody wants to do."""

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    path: str | None = None

    @classmethod
    def on(cls, kind: Kind, verb: str, namespace: str, name: str, subresource: str = "") -> Act:
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        return cls(verb=verb, group=kind.group, resource=resource, namespace=namespace, name=name)


@dataclass(frozen=True)
class Refusal:
    """An act that nobody had allowed."""

    user: str
    act: Act
    message: str


ALL = Rule(verbs=frozenset("*"), groups=frozenset("*"), resources=frozenset("*"), paths=frozenset("*"))
#: what every user may read
_PUBLIC = ("/api", "/apis", "/version", "/openapi")


class Access:
    """The users that the server knows."""

    def __init__(self) -> None:
        self._users: dict[str, tuple[str, list[Rule]]] = {}
        self.forbidden: list[Refusal] = []

    def add(self, name: str, rules: Iterable[Rule]) -> str:
        """Let a user in, and return the token."""
        token = secrets.token_urlsafe(24)
        self._users[token] = (name, list(rules))
        return token

    def grant(self, token: str, rule: Rule) -> None:
        self._users[token][1].append(rule)

    def user(self, authorization: str | None) -> str:
        """Return whom a request's header stands for (its name). Raises ApiError."""
        if not authorization:
            return "system:anonymous"
        found = self._users.get(authorization.removeprefix("Bearer ").strip())
        if found is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return found[0]

    def check(self, user: str, act: Act) -> None:
        """Let it pass, or refuse with 403."""
        if act.path is not None and user != "system:anonymous" and act.path.startswith(_PUBLIC):
            return
        if any(rule.allows(act) for name, rules in self._users.values() if name == user for rule in rules):
            return
        message, details = _words(user, act)
        self.forbidden.append(Refusal(user, act, message))
        raise ApiError(403, "Forbidden", message, details=details)


def _words(user: str, act: Act) -> tuple[str, dict[str, Any]]:
    if act.path is not None:
        return f'forbidden: User "{user}" cannot {act.verb} path "{act.path}"', {}
    plural = act.resource.partition("/")[0]
    full = f"{plural}.{act.group}" if act.group else plural
    named = f' "{act.name}"' if act.name else ""
    where = f'in the namespace "{act.namespace}"' if act.namespace else "at the cluster scope"
    cannot = f'User "{user}" cannot {act.verb} resource "{act.resource}" in API group "{act.group}" {where}'
    return f"{full}{named} is forbidden: {cannot}", details_of(act.name, act.group, plural)
