"""Which address of a broker is tried when: in simulated time, with names that resolve late or not at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from halimede.bus import addresses
from halimede.bus.addresses import SocketAddress, connect_to_any, share_s
from halimede.bus.settings import Endpoint, MqttSettings
from halimede.errors import DisconnectedError

pytestmark = pytest.mark.simulated

#: stated here again, so that a change in the product is noticed
LEAST_ADDRESS_S, ALL_ADDRESSES_S = 1.5, 30.0

TIMEOUT_S = 5.0
NEVER = float("inf")


class Network:
    """Names with their addresses, and an attempt at each address, which lasts as long as its client waits."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, tuple[float, Sequence[str]]] = {}
        self.answering: set[str] = set()
        #: address, seconds from the start, and seconds that the client waits
        self.attempts: list[tuple[str, float, float]] = []
        patch.setattr(addresses, "_resolve", self._resolve)

    async def connect(self) -> str:
        """Connect to the names in their order; return the address that answered."""
        first, *later = (Endpoint(name, 1883) for name in self.names)
        settings = MqttSettings(
            first.host, first.port, connect_timeout_s=TIMEOUT_S, alternatives=tuple(later), client="lean"
        )
        return await connect_to_any(settings, self._attempt)

    async def _resolve(self, endpoint: Endpoint, timeout_s: float) -> addresses.Resolved:
        duration_s, hosts = self.names[endpoint.host]
        await asyncio.sleep(min(duration_s, timeout_s))
        if duration_s > timeout_s:
            return endpoint, TimeoutError("not resolved")
        return endpoint, [(socket.AF_INET, (host, endpoint.port)) for host in hosts]

    async def _attempt(self, address: SocketAddress) -> str:
        self.attempts.append((address.host, asyncio.get_running_loop().time(), address.timeout_s))
        if address.host in self.answering:
            return address.host
        await asyncio.sleep(address.timeout_s)
        raise TimeoutError(f"{address.host} is silent")


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


@pytest.mark.parametrize(
    ("family", "target", "host"),
    [
        (socket.AF_INET, ("10.0.0.1", 1883), "10.0.0.1"),
        (socket.AF_INET, ("10.0.0.1", 1883, 0, 5), "10.0.0.1"),
        (socket.AF_INET6, ("::1", 1883, 0, 0), "::1"),
        (socket.AF_INET6, ("fe80::1", 1883, 7, 1), "fe80::1%1"),
        (socket.AF_INET6, ("fe80::1%eth0", 1883, 0, 2), "fe80::1%eth0"),
    ],
)
def test_an_address_for_a_library_has_the_scope_of_ipv6(family: int, target: tuple[Any, ...], host: str) -> None:
    address = SocketAddress(Endpoint("broker", 1), family, target, 5.0)
    assert (address.host, address.port) == (host, 1883)


@pytest.mark.parametrize(
    ("timeout_s", "count", "seconds"),
    [
        (5.0, 1, 5.0),
        (5.0, 2, 2.5),
        (5.0, 10, LEAST_ADDRESS_S),
        (5.0, 20, LEAST_ADDRESS_S),
        (5.0, 60, ALL_ADDRESSES_S / 60),
        (1.0, 10, 1.0),
    ],
)
def test_an_address_has_its_share_a_least_time_and_a_bound_for_all(
    timeout_s: float, count: int, seconds: float
) -> None:
    assert share_s(timeout_s, count) == seconds


async def test_each_of_many_addresses_has_time_for_a_repeated_syn_and_the_last_one_all(network: Network) -> None:
    network.names["pods"] = 0.0, [f"10.0.0.{number}" for number in range(10)]
    with pytest.raises(TimeoutError, match=r"10\.0\.0\.9 is silent"):
        await network.connect()
    assert [waited for _, _, waited in network.attempts] == [LEAST_ADDRESS_S] * 9 + [TIMEOUT_S]


async def test_a_name_that_does_not_resolve_costs_the_next_broker_one_share_and_a_later_name_nothing(
    network: Network,
) -> None:
    network.names = {"lost": (NEVER, ()), "10.0.0.1": (0.0, ["10.0.0.1"]), "lost-too": (NEVER, ())}
    network.answering = {"10.0.0.1"}
    assert await network.connect() == "10.0.0.1"
    assert network.attempts == [("10.0.0.1", share_s(TIMEOUT_S, 3), share_s(TIMEOUT_S, 3))]


async def test_names_that_resolve_late_are_tried_after_the_others_as_they_resolve(network: Network) -> None:
    network.names = {"later": (4.9, ["10.0.0.1"]), "late": (4.5, ["10.0.0.2"]), "10.0.0.3": (0.0, ["10.0.0.3"])}
    network.answering = {"10.0.0.1"}
    assert await network.connect() == "10.0.0.1"
    assert [host for host, _, _ in network.attempts] == ["10.0.0.3", "10.0.0.2", "10.0.0.1"]
    assert network.attempts[1][1] == 4.5
    assert network.attempts[-1][2] == TIMEOUT_S


async def test_names_that_resolve_in_time_are_tried_in_their_order(network: Network) -> None:
    network.names = {"slow": (1.0, ["10.0.0.1"]), "10.0.0.2": (0.0, ["10.0.0.2"])}
    network.answering = {"10.0.0.1", "10.0.0.2"}
    assert await network.connect() == "10.0.0.1"


async def test_without_any_broker_the_error_has_the_cause_at_each_name(network: Network) -> None:
    network.names = {"lost": (NEVER, ()), "10.0.0.1": (0.0, ["10.0.0.1"])}
    with pytest.raises(DisconnectedError, match=r"lost:1883: not resolved; 10\.0\.0\.1:1883: 10\.0\.0\.1 is silent"):
        await network.connect()
