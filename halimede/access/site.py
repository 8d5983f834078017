"""A site: the nodes, cameras, operators and consumers that a broker lets in, and the one name that each has there.

There is one user for each part that speaks: a node has three, since its local controller may do what its workers may
not. The name stands in the certificate (common name) or beside the password, and in the broker's access rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated

from msgspec import Meta, Struct

from halimede.api.base import convert
from halimede.errors import InvalidFieldError
from halimede.names import check_label, check_name
from halimede.topic import Role

MOST = 10_000
Names = Annotated[list[str], Meta(max_length=MOST)]
NODE_ROLES = (Role.LC, Role.EDGE, Role.CLOUD)
#: folders of a site that are not those of a node
FOLDERS = {Role.CAMERA: "cameras", Role.OPERATOR: "operators", Role.CONSUMER: "consumers"}


@dataclass(frozen=True, slots=True)
class Principal:
    """One user of the broker. ``name`` is the node's, the camera's, or the person's; empty for GM."""

    role: Role
    name: str = ""

    @property
    def username(self) -> str:
        """The name that the broker knows: ``gm``, ``lc.edge0``, ``edge-worker.edge0``, ``camera.cam0``, ..."""
        word = word_of(self.role)
        return f"{word}.{self.name}" if self.name else word

    @property
    def folder(self) -> PurePosixPath:
        """Where its credentials are, below the site's folder."""
        if self.role is Role.GM:
            return PurePosixPath("gm")
        if self.role in NODE_ROLES:
            return PurePosixPath("nodes", self.name, word_of(self.role))
        return PurePosixPath(FOLDERS[self.role], self.name)


class Site(Struct, kw_only=True, forbid_unknown_fields=True):
    """Who there is. ``broker``: host names and addresses by which clients reach it."""

    broker: Annotated[list[str], Meta(min_length=1, max_length=64)] = ["localhost", "127.0.0.1"]
    nodes: Names = []
    cameras: Names = []
    operators: Names = ["admin"]
    consumers: Names = []

    def principals(self) -> Iterator[Principal]:
        """Yield every user of the broker, GM first."""
        yield Principal(Role.GM)
        for node in self.nodes:
            yield from (Principal(role, node) for role in NODE_ROLES)
        for role, names in (
            (Role.CAMERA, self.cameras),
            (Role.OPERATOR, self.operators),
            (Role.CONSUMER, self.consumers),
        ):
            yield from (Principal(role, name) for name in names)


def word_of(role: Role) -> str:
    """Return a role's word in user names and folders."""
    return role.value.replace(" ", "-")


def read_site(value: object) -> Site:
    """Check a site as YAML or JSON gave it. Raises InvalidFieldError that names the field."""
    site = convert(value, Site, "site")
    for field, check in (("nodes", check_name), ("cameras", check_label), ("operators", check_name)):
        _check(field, getattr(site, field), check)
    _check("consumers", site.consumers, check_name)
    for index, host in enumerate(site.broker):
        if not host or any(c.isspace() or c in "/@" for c in host):
            raise InvalidFieldError(f"site.broker[{index}]", host, "write a host name or an address")
    return site


def _check(field: str, names: list[str], check: Callable[[str, str], str]) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        check(f"site.{field}[{index}]", name)
        if name in seen:
            raise InvalidFieldError(f"site.{field}[{index}]", name, "it is there twice: name each once")
        seen.add(name)
