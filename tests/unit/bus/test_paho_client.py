"""paho as this project drives it: when it pings, and what it reads of the broker's limits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from halimede.bus.message import Grants
from halimede.bus.paho import connection
from halimede.bus.paho.connection import PahoTransport, ReadingClient, grants, no_properties
from halimede.bus.transport import Ended

KEEPALIVE_S, PATIENCE_S = 15, 20.0


class Clock:
    """A client whose last bytes in both directions were at 100 s, and the times of its pings."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.pings: list[float] = []
        self.client: Any = ReadingClient(CallbackAPIVersion.VERSION2, "me", protocol=MQTTProtocolVersion.MQTTv5)
        self.client._keepalive, self.client.patience_s = KEEPALIVE_S, PATIENCE_S
        self.client._last_msg_out = self.client._last_bytes_received = 100.0
        patch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(self.client, "_send_pingreq", self.ping)

    def ping(self) -> None:
        self.pings.append(self.now)
        self.client._last_msg_out = self.now

    def check(self, *times: float) -> None:
        for self.now in times:
            self.client._check_keepalive()

    @property
    def is_dead(self) -> bool:
        """Whether paho ends the connection now: it does a keepalive after the time of a ping."""
        ping_at = self.client._ping_t
        return bool(ping_at) and self.now - ping_at >= KEEPALIVE_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize("direction", ["_last_msg_out", "_last_bytes_received"])
def test_a_client_pings_after_a_third_of_the_keepalive_without_a_byte_in_either_direction(
    clock: Clock, direction: str
) -> None:
    setattr(clock.client, direction, 99.0)
    clock.check(103.9, 104.0)
    assert clock.pings == [104.0]


def test_a_client_pings_on_while_there_is_no_answer_and_gives_up_in_time(clock: Clock) -> None:
    clock.check(105.0, 106.0, 109.9, 110.0, 116.0, 121.0, 124.9)
    assert (clock.pings, clock.is_dead) == ([105.0, 110.0, 116.0, 121.0], False)
    clock.check(125.0)
    assert clock.is_dead


def test_any_byte_after_a_ping_is_an_answer(clock: Clock) -> None:
    clock.check(105.0)
    clock.client._last_bytes_received = 106.0
    clock.check(109.9, 110.0, 129.9)
    assert (clock.pings, clock.is_dead) == ([105.0, 110.0, 129.9], False)
    clock.check(130.0)
    assert clock.is_dead


def test_a_client_that_reads_nothing_pings_and_does_not_wait_for_an_answer(clock: Clock) -> None:
    clock.client.paused = True
    clock.check(*range(101, 200))
    assert (clock.pings, clock.is_dead) == ([*map(float, range(105, 200, 5))], False)


@pytest.mark.parametrize("limits", [Grants(65_535, 0, 2, True, True, True), Grants(5, 256, 1, False, False, False)])
def test_the_limits_of_a_broker_are_read_and_are_those_of_the_protocol_without_any(limits: Grants) -> None:
    properties = no_properties(PacketTypes.CONNACK)
    if limits.max_packet:
        for name, value in {"ReceiveMaximum": 5, "MaximumPacketSize": 256, "MaximumQoS": 1}.items():
            setattr(properties, name, value)
        for name in ("RetainAvailable", "WildcardSubscriptionAvailable", "SharedSubscriptionAvailable"):
            setattr(properties, name, 0)
    assert grants(properties) == limits


@pytest.mark.parametrize(
    ("tls", "paused", "ended", "reads"),
    [(True, False, False, 2), (True, True, False, 0), (True, False, True, 0), (False, False, False, 0)],
)
def test_bytes_that_tls_has_decrypted_are_read_to_the_last(tls: bool, paused: bool, ended: bool, reads: int) -> None:
    pending, driven = [5, 3, 0], list[object]()
    link: Any = SimpleNamespace(
        _tls=SimpleNamespace(pending=lambda: pending.pop(0)) if tls else None,
        paused=paused,
        ended=SimpleNamespace(done=lambda: ended),
        _client=SimpleNamespace(loop_read="loop_read"),
        _drive=driven.append,
    )
    PahoTransport._read_decrypted(link)
    assert driven == ["loop_read"] * reads


@pytest.mark.parametrize(
    ("by_broker", "code", "before", "ended"),
    [
        (True, 0x8E, None, Ended("the broker said: Session taken over", taken_over=True, explained=True)),
        (True, 0x8B, None, Ended("the broker said: Server shutting down", explained=True)),
        (False, 0x8E, None, Ended("the connection broke")),
        (True, 0x8E, Ended("before"), Ended("before")),
    ],
)
def test_the_end_of_a_connection_has_the_reason_that_came_first(
    by_broker: bool, code: int, before: Ended | None, ended: Ended
) -> None:
    link, flags = SimpleNamespace(_why=before), SimpleNamespace(is_disconnect_packet_from_server=by_broker)
    reason: Any = ReasonCode(PacketTypes.DISCONNECT, identifier=code)
    PahoTransport._on_disconnect(link, link, None, flags, reason, None)  # type: ignore[arg-type]
    assert link._why == ended


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (0x87, Ended("the broker refused the connection: Not authorized", barred=True, explained=True)),
        (0x80, Ended("the broker refused the connection: Unspecified error", explained=True)),
    ],
)
def test_a_refused_connection_has_its_reason_and_is_barred_if_a_retry_needs_a_change(code: int, ended: Ended) -> None:
    link, flags = SimpleNamespace(_why=None), SimpleNamespace(session_present=False)
    reason: Any = ReasonCode(PacketTypes.CONNACK, identifier=code)
    PahoTransport._on_connect(link, link, None, flags, reason, None)  # type: ignore[arg-type]
    assert link._why == ended


@pytest.mark.parametrize(
    ("limits", "slots", "most"), [({}, 50, 268_435_455), ({"ReceiveMaximum": 9, "MaximumPacketSize": 256}, 9, 256)]
)
async def test_an_accepted_connection_has_the_brokers_limits(limits: dict[str, int], slots: int, most: int) -> None:
    properties = no_properties(PacketTypes.CONNACK)
    for name, value in limits.items():
        setattr(properties, name, value)
    link: Any = SimpleNamespace(_window=50, accepted=asyncio.get_running_loop().create_future())
    flags: Any = SimpleNamespace(session_present=True)
    for _ in range(2):
        PahoTransport._on_connect(link, link, None, flags, ReasonCode(PacketTypes.CONNACK), properties)
    assert (link.slots.free, link.max_packet, link.resumed, link.accepted.done()) == (slots, most, True, True)
