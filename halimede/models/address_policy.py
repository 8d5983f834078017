"""Addresses that a download may connect to: public ones, and those that this machine's operator allows.

The author of a Model chooses a URL, and this machine requests it from inside its own network. Without a rule, authors
could read responses of a cloud's metadata service, of a router nearby, or of a port of this machine. The address is
checked at each connection, because the owner of a host name may give it another address at any time.
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
#: a host name in small letters
HOST = re.compile(r"(?!.*-(\.|$))([a-z0-9_][a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")
#: texts that C libraries read as an address although they do not look like one: 127.1, 2130706433, 0x7f.1, 0177.0.0.1
NUMERIC = re.compile(r"(.*\.)?(\d+|0x[0-9a-f]*)")
#: the advice in the error about a text that ``parse`` cannot read
FORM = "write loopback, private, link-local, addresses such as 10.0.0.0/8, or names of hosts, separated by commas"

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
#: IPv6 addresses that stand for IPv4 ones
NAT64 = ip_network("64:ff9b::/96")
#: networks of private addresses, with those that providers share among customers, and the deprecated site-local ones
PRIVATE = tuple(
    map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fec0::/10"))
)


class AddressKind(StrEnum):
    """The kind of an address. Operators allow the kinds in KIND_NAMES by their value."""

    LOOPBACK = "loopback"
    PRIVATE = "private"
    LINK_LOCAL = "link-local"
    METADATA = "metadata"
    SPECIAL = "special"
    PUBLIC = "public"


#: kinds that an operator can allow as a whole
KIND_NAMES = frozenset({AddressKind.LOOPBACK, AddressKind.PRIVATE, AddressKind.LINK_LOCAL})


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """The addresses that are allowed in addition to public ones.

    A metadata service (which gives out a machine's credentials) is allowed only by its exact address in ``networks``.

    Attributes:
        kinds: all addresses of these kinds.
        networks: all addresses in these networks.
        hosts: names in small letters, each of which may have a private or a loopback address.

    """

    kinds: frozenset[AddressKind] = frozenset()
    networks: frozenset[Network] = frozenset()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, field: str = VARIABLE) -> AddressPolicy:
        """Read a text such as ``private,10.0.0.0/8,models.lan``. Raises InvalidFieldError, which names ``field``."""
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
                raise InvalidFieldError(field, entry, FORM)
        return cls(frozenset(kinds), frozenset(networks), frozenset(hosts))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> AddressPolicy:
        """Read HALIMEDE_FETCH_ALLOW from ``environ``; None: from this process's. Raises InvalidFieldError."""
        return cls.parse((os.environ if environ is None else environ).get(VARIABLE, ""))

    def __str__(self) -> str:
        """Return the text that ``parse`` reads."""
        return ",".join(sorted([*self.kinds, *map(str, self.networks), *self.hosts]))

    def check_host(self, host: str, shown: str) -> None:
        """Raise FetchError if ``host`` is neither a host name nor a complete address. ``shown``: the URL, for it."""
        if not host:
            raise FetchError(FetchReason.INVALID_URL, f"{shown} has no host")
        if NUMERIC.fullmatch(host.lower().rstrip(".")) and _address(host) is None:
            text = f"{shown}: {host} is neither a host name nor a complete IPv4 address: write it in full"
            raise FetchError(FetchReason.FORBIDDEN_ADDRESS, text)

    def refusal(self, host: str, address: str) -> str:
        """Return why a connection to ``address``, which the name ``host`` has, is refused; empty: it is allowed."""
        written = _address(address)
        if written is None:
            return f"{address} is not an address"
        target = _plain_address(written)
        return "" if self._is_allowed(host.lower().rstrip("."), target) else _reason(target)

    def _is_allowed(self, host: str, address: Address) -> bool:
        """Whether a host in lower case, which has this address, may be connected to."""
        kind = kind_of(address)
        if kind is AddressKind.PUBLIC:
            return True
        matching = [network for network in self.networks if address in network]
        if kind is AddressKind.METADATA:
            return any(network.num_addresses == 1 for network in matching)
        is_named = host in self.hosts and kind in {AddressKind.LOOPBACK, AddressKind.PRIVATE}
        return bool(matching) or kind in self.kinds or is_named


def kind_of(address: Address) -> AddressKind:
    """Return the kind of an address: SPECIAL if it is of no other kind and not globally reachable."""
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


def _reason(address: Address) -> str:
    """Return why an address is refused, and what an operator can do."""
    kind = kind_of(address)
    if kind is AddressKind.METADATA:
        return f"{address} is a metadata service, which serves a machine's credentials"
    setting = kind if kind in KIND_NAMES else f"{address}"
    kind_text = "not a public address" if kind is AddressKind.SPECIAL else f"a {kind} address"
    return f"{address} is {kind_text}: to allow it, set {VARIABLE}={setting} on that machine"


def _plain_address(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for (mapped, NAT64, 6to4), or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _address(text: str) -> Address | None:
    """Return the address in a text, without its zone; None if it is not one."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _network(text: str) -> Network | None:
    """Return the network (or the address, as a network of one) in a text; None if it is not one."""
    try:
        return ip_network(text)
    except ValueError:
        return None
