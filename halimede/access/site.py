"""A site: the nodes, cameras, operators and consumers that may connect to a broker, and their user names.

``read_site`` checks ``site.yaml``; ``certs.py`` and ``passwords.py`` make the credentials, and report ``SiteReport``.
Each process that connects has its own user: a node has three, because its local controller may do what its workers may
not. The name is in the certificate (common name) or with the password, and in the broker's access rules.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Annotated

from msgspec import Meta, Struct, field

from halimede.api.base import convert
from halimede.errors import InvalidFieldError
from halimede.names import check_label, check_name
from halimede.topic import Role

#: most names in one list of a site
MAX_NAMES = 10_000
#: types of fields: names of clients, host names and addresses, a port
Names = Annotated[list[str], Meta(max_length=MAX_NAMES)]
Hosts = Annotated[list[str], Meta(min_length=1, max_length=64)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
#: the roles of a node's three users
NODE_ROLES = (Role.LC, Role.EDGE, Role.CLOUD)
#: folders of a site for other users than those of nodes
FOLDERS = {Role.CAMERA: "cameras", Role.OPERATOR: "operators", Role.CONSUMER: "consumers", Role.BRIDGE: "bridges"}
#: roles with a user for all their workers: pods of one Deployment share one Secret, on any node
POOLS = (Role.EDGE, Role.CLOUD)
#: names that distributions write into /etc/hosts for the machine itself
OWN_NAMES = frozenset(
    {"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}
)
_host = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Principal:
    """One user of the broker: its role there, and its name.

    ``name``: of the node, camera, operator, consumer or bridge; empty for GM and for pools.
    """

    role: Role
    name: str = ""

    @property
    def username(self) -> str:
        """The user name on the broker: ``gm``, ``lc.edge0``, ``edge-worker.edge0``, ``camera.cam0``, ..."""
        role = role_name(self.role)
        return f"{role}.{self.name}" if self.name else role

    @property
    def folder(self) -> PurePosixPath:
        """The folder of its credentials, below the site's folder."""
        if self.role is Role.GM:
            return PurePosixPath("gm")
        if self.role in POOLS and not self.name:
            return PurePosixPath("pools", role_name(self.role))
        if self.role in NODE_ROLES:
            return PurePosixPath("nodes", self.name, role_name(self.role))
        path = PurePosixPath(FOLDERS[self.role], self.name)
        # next to it are the files of the place's own broker
        return path / "link" if self.role is Role.BRIDGE else path


class Bridge(Struct, kw_only=True, forbid_unknown_fields=True):
    """A place with its own broker, which passes on the messages of the place (``halimede.access.bridge``).

    Attributes:
        name: its name, a label, from which its user name is made.
        nodes, cameras, consumers: the clients of that broker. They are named in the site as well.
        broker: host names and addresses of that broker for them.
        namespaces: those whose messages it passes on; empty: all. Topics with a node's name depend on ``nodes`` only.
        port: the port of that broker, if another program of its machine has the site's; 0: the site's.
        install: the absolute path of the folder ``bridges/<name>`` on that broker's machine; empty: its path here.
        data: the absolute path of the folder for messages that wait for the link; empty: ``data`` in that folder.

    """

    name: Annotated[str, Meta(max_length=253)]
    nodes: Annotated[list[str], Meta(min_length=1, max_length=MAX_NAMES)]
    cameras: Names = []
    consumers: Names = []
    broker: Hosts = field(default_factory=lambda: ["localhost", "127.0.0.1"])
    namespaces: Annotated[list[str], Meta(max_length=64)] = []
    port: Port = 0
    install: Annotated[str, Meta(max_length=1024)] = ""
    data: Annotated[str, Meta(max_length=1024)] = ""


class Site(Struct, kw_only=True, forbid_unknown_fields=True):
    """All users of a broker: the content of ``site.yaml``.

    Attributes:
        broker: host names and addresses for clients. Bridges of places use the first.
        nodes, cameras, operators, consumers: their names; each is one user, and a node three.
        port: the broker's port for clients and bridges, such as a NodePort; 0: 8883, or 1883 with passwords.
        pools: whether there are users for workers of any node (``edge-worker``, ``cloud-worker``), as pods need them.
        passwords: whether users have passwords instead of certificates.
        bridges: brokers of places that must work without a connection to this one.
        prefix: levels before every topic (``a/b``), if several systems share the broker; empty: none.
        install: the absolute path of the folder ``broker`` on the broker's machine; empty: its path here.

    """

    broker: Hosts = field(default_factory=lambda: ["localhost", "127.0.0.1"])
    port: Port = 0
    nodes: Names = []
    cameras: Names = []
    operators: Names = field(default_factory=lambda: ["admin"])
    consumers: Names = []
    pools: bool = False
    passwords: bool = False
    bridges: Annotated[list[Bridge], Meta(max_length=1000)] = []
    prefix: Annotated[str, Meta(max_length=1024)] = ""
    install: Annotated[str, Meta(max_length=1024)] = ""

    @property
    def levels(self) -> list[str]:
        """The prefix, level by level."""
        return [level for level in self.prefix.strip("/").split("/") if level]

    @property
    def topic_prefix(self) -> str:
        """The prefix as it stands before a topic: ``a/b/``; empty without one."""
        return "".join(f"{level}/" for level in self.levels)

    def principals(self) -> Iterator[Principal]:
        """Yield every user of the broker, GM first."""
        yield Principal(Role.GM)
        for node in self.nodes:
            yield from (Principal(role, node) for role in NODE_ROLES)
        if self.pools:
            yield from (Principal(role) for role in POOLS)
        for role, names in (
            (Role.CAMERA, self.cameras),
            (Role.OPERATOR, self.operators),
            (Role.CONSUMER, self.consumers),
            (Role.BRIDGE, [bridge.name for bridge in self.bridges]),
        ):
            yield from (Principal(role, name) for name in names)


def role_name(role: Role) -> str:
    """Return a role's name in user names and folders, such as ``edge-worker``."""
    return role.value.replace(" ", "-")


def read_site(value: object) -> Site:
    """Return the site in plain data that was read from YAML or JSON. Raises InvalidFieldError."""
    site = convert(value, Site, "site")
    for list_name, check in (("nodes", check_name), ("cameras", check_label), ("operators", check_name)):
        _check(list_name, getattr(site, list_name), check)
    _check("consumers", site.consumers, check_name)
    _check_hosts("site.broker", site.broker)
    _check_bridges(site)
    for level in site.levels:
        check_name("site.prefix", level)
    _check_path("site.install", site.install)
    return site


def _check_hosts(field: str, hosts: list[str]) -> None:
    """Check a list of host names and addresses at the path ``field``. Raises InvalidFieldError."""
    for index, host in enumerate(hosts):
        if not _is_host(host):
            raise InvalidFieldError(f"{field}[{index}]", host, "write a host name or an address, without a port")


def _check_path(field: str, path: str) -> None:
    """Check a path on another machine, unless it is empty. Raises InvalidFieldError."""
    if path and (not path.startswith("/") or any(not c.isprintable() for c in path)):
        raise InvalidFieldError(field, path, "write an absolute path on the broker's machine")


def _check_bridges(site: Site) -> None:
    """Check the fields of bridges: their clients are in the site, and no node is behind two bridges.

    With bridges, the first of the names of the site's broker must not be of the loopback. Raises InvalidFieldError.
    """
    if site.bridges and _is_loopback(site.broker[0]):
        raise InvalidFieldError(
            "site.broker[0]",
            site.broker[0],
            "the brokers of places connect to it, and a loopback address is their own machine: "
            "write first a name or an address that reaches this broker from every place",
        )
    _check("bridges", [bridge.name for bridge in site.bridges], check_label)
    owners: dict[str, str] = {}
    for index, bridge in enumerate(site.bridges):
        field = f"site.bridges[{index}]"
        _check_hosts(f"{field}.broker", bridge.broker)
        _check_path(f"{field}.install", bridge.install)
        _check_path(f"{field}.data", bridge.data)
        for namespace in bridge.namespaces:
            check_label(f"{field}.namespaces", namespace)
        for list_name in ("nodes", "cameras", "consumers"):
            for name in getattr(bridge, list_name):
                if name not in getattr(site, list_name):
                    raise InvalidFieldError(f"{field}.{list_name}", name, f"name it in site.{list_name} as well")
        for node in bridge.nodes:
            if owners.setdefault(node, bridge.name) != bridge.name:
                raise InvalidFieldError(f"{field}.nodes", node, f"it is behind the bridge {owners[node]} already")


def _is_host(text: str) -> bool:
    """Whether a text is an IP address, or has the form of a host name."""
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(text))
    return len(text) <= 253 and _host.fullmatch(text) is not None


def _is_loopback(host: str) -> bool:
    """Whether a host is the local machine, judged only by its name or address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.lower()
        return name in OWN_NAMES or name.endswith(".localhost")
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_unspecified


def _check(field: str, names: list[str], check: Callable[[str, str], str]) -> None:
    """Check the names in a list of the site: each by ``check``, called with its path and the name, and none twice.

    Raises InvalidFieldError.
    """
    listed: set[str] = set()
    for index, name in enumerate(names):
        check(f"site.{field}[{index}]", name)
        if name in listed:
            raise InvalidFieldError(f"site.{field}[{index}]", name, "it is listed twice: name each once")
        listed.add(name)


@dataclass(frozen=True, slots=True)
class SiteUser:
    """One user of a site, or one certificate, with its ``folder`` below the site's.

    The ``username`` of the authority is ``ca``, and that of a broker ``broker`` or ``broker.<bridge>``. ``hosts``:
    names and addresses in a broker's certificate; empty: a client's.
    """

    username: str
    folder: Path
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SiteUserState:
    """The state of the credentials of one ``entry``. ``problem``: why they are not usable, empty if they are.

    ``path``: the certificate or password file. ``expires``: None with passwords, or without a usable certificate.
    """

    entry: SiteUser
    path: Path
    expires: datetime | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SiteReport:
    """What a command did with credentials: names of users, and ``ca`` and ``broker``.

    ``created``, ``unchanged``, ``removed``: whose credentials it made, kept and removed; ``ca`` is also created if only
    its trust has changed. ``expires``: the first expiry of the certificates in question; None with passwords.
    """

    created: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    expires: datetime | None = None

    @property
    def changed(self) -> bool:
        """Whether any credentials were made or removed."""
        return bool(self.created or self.removed)
