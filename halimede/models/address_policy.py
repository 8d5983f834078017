"""Addresses that a download may connect to: public ones, and those that this machine's operator allows.

The author of a Model chooses a URL, and this machine requests it from inside its own network. Without a rule, a
manifest could read responses of a cloud's metadata service, of a router nearby, or of a port of this machine. Host
names do not decide, because their owners may give them any address at any time: each address is checked at each
connection.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from halimede.errors import InvalidFieldError
from halimede.models.errors import FetchError, FetchReason

#: the environment variable with the operator's rules
VARIABLE = "HALIMEDE_FETCH_ALLOW"
HOST = re.compile(r"(?!.*-(\.|$))([a-z0-9_][a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")
#: forms that C libraries read as an address although they do not look like one: 127.1, 2130706433, 0x7f.1, 0177.0.0.1
NUMERIC = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")
HOW = "write loopback, private, link-local, addresses such as 10.0.0.0/8, or names of hosts, separated by commas"

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: services that give a machine's credentials to any process on it: allowed only by their exact address
METADATA = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # AWS, Google, Azure, OpenStack and others
            "169.254.170.2",  # AWS ECS
            "169.254.170.23",  # AWS EKS
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure's host
            "192.0.0.192",  # Oracle
            "fd00:ec2::254",  # AWS
            "fd00:ec2::23",  # AWS EKS
            "fd20:ce::254",  # Google
        ),
    )
)
NAT64 = ip_network("64:ff9b::/96")
#: including addresses that providers share among customers, and the deprecated site-local ones
PRIVATE = tuple(
    map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10"))
)


class AddressKind(StrEnum):
    """The kind of an address, by the name that allows it."""

    LOOPBACK = "loopback"
    PRIVATE = "private"
    LINK_LOCAL = "link-local"
    METADATA = "metadata"
    SPECIAL = "special"
    PUBLIC = "public"


#: kinds that their name alone allows
KIND_NAMES = frozenset({AddressKind.LOOPBACK, AddressKind.PRIVATE, AddressKind.LINK_LOCAL})


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Allowed addresses in addition to public ones: kinds of addresses, networks, and host names.

    A named host may have a private or a loopback address. A metadata service is allowed only by its exact address.
    """

    kinds: frozenset[AddressKind] = frozenset()
    networks: frozenset[Network] = frozenset()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, field: str = VARIABLE) -> AddressPolicy:
        """Read ``private,10.0.0.0/8,models.lan``. Raises InvalidFieldError."""
        kinds: set[AddressKind] = set()
        networks: set[Network] = set()
        hosts: set[str] = set()
        for entry in re.split(r"[\s,]+", text.strip().lower()):
            if not entry:
                continue
            if entry in KIND_NAMES:
                kinds.add(AddressKind(entry))
            elif (network := _network(entry)) is not None:
                networks.add(network)
            elif HOST.fullmatch(entry) and not NUMERIC.fullmatch(entry):
                hosts.add(entry)
            else:
                raise InvalidFieldError(field, entry, HOW)
        return cls(frozenset(kinds), frozenset(networks), frozenset(hosts))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> AddressPolicy:
        """Read HALIMEDE_FETCH_ALLOW. Raises InvalidFieldError."""
        return cls.parse((os.environ if environ is None else environ).get(VARIABLE, ""))

    def __str__(self) -> str:
        """Return the text that ``parse`` reads."""
        return ",".join(sorted([*self.kinds, *map(str, self.networks), *self.hosts]))

    def check_host(self, host: str, shown: str) -> None:
        """Refuse text that is neither a host name nor a complete address. Raises FetchError."""
        if not host:
            raise FetchError(FetchReason.INVALID_URL, f"{shown} has no host")
        if NUMERIC.fullmatch(host.lower().rstrip(".")) and _address(host) is None:
            text = f"{shown}: {host} is neither a host name nor a complete IPv4 address: write it in full"
            raise FetchError(FetchReason.FORBIDDEN_ADDRESS, text)

    def refusal(self, host: str, address: str) -> str:
        """Return why a connection to an address is refused for ``host``, empty if it is allowed."""
        target = _address(address)
        if target is None:
            return f"{address} is not an address"
        reached = _embedded(target)
        return "" if self._allows(host.lower().rstrip("."), reached) else _why(reached)

    def _allows(self, host: str, address: Address) -> bool:
        kind = kind_of(address)
        if kind is AddressKind.PUBLIC:
            return True
        holding = [network for network in self.networks if address in network]
        if kind is AddressKind.METADATA:
            return any(network.num_addresses == 1 for network in holding)
        named = host in self.hosts and kind in {AddressKind.LOOPBACK, AddressKind.PRIVATE}
        return bool(holding) or kind in self.kinds or named


def kind_of(address: Address) -> AddressKind:
    """Return the kind of an address. An address of no other kind that is not globally reachable is special."""
    if address in METADATA:
        return AddressKind.METADATA
    if address.is_loopback:
        return AddressKind.LOOPBACK
    if address.is_link_local:
        return AddressKind.LINK_LOCAL
    if any(address in network for network in PRIVATE):
        return AddressKind.PRIVATE
    if address.is_multicast or address.is_unspecified or address.is_reserved:
        return AddressKind.SPECIAL
    return AddressKind.PUBLIC if address.is_global else AddressKind.SPECIAL


def _why(address: Address) -> str:
    kind = kind_of(address)
    if kind is AddressKind.METADATA:
        return f"{address} is a metadata service, which serves a machine's credentials"
    allow = kind if kind in KIND_NAMES else f"{address}"
    what = "not a public address" if kind is AddressKind.SPECIAL else f"a {kind} address"
    return f"{address} is {what}: to allow it, set {VARIABLE}={allow} on that machine"


def _embedded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for (mapped, NAT64, 6to4), or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _address(text: str) -> Address | None:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _network(text: str) -> Network | None:
    try:
        return ip_network(text)
    except ValueError:
        return None
