"""What a broker lacks is found by a try, in seconds, and named with what follows from it: Mosquitto behind a double."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halimede.bus.message import Grants
from halimede.bus.mqtt import MqttBus
from halimede.bus.settings import MqttSettings
from halimede.cli.doctor import broker_features
from halimede.cli.doctor.broker_features import (
    QUEUED,
    QUEUED_BYTES,
    RECEIVE_MAXIMUM,
    Feature,
    Software,
    Trials,
    judge,
    limits,
    recognize,
    try_features,
)
from halimede.health_checks.check import Check
from services.broker import ANONYMOUS, MosquittoProcess
from tests import refusing_broker as double
from tests.ports import free_port
from tests.refusing_broker import RefusingBroker
from tests.waiting import patience

PATIENCE = 20.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections and small messages come as late as on a busy machine."""
    for name in ("CONNECT_S", "IDLE_S"):
        monkeypatch.setattr(broker_features, name, patience(getattr(broker_features, name)))
    monkeypatch.setattr(broker_features._arrival, "__defaults__", (patience(broker_features.ARRIVAL_S),))


@pytest.fixture
async def front(mosquitto: MosquittoProcess) -> AsyncIterator[RefusingBroker]:
    async with RefusingBroker(mosquitto.port) as front:
        yield front


async def tried(port: int, software: Software = Software.UNKNOWN) -> tuple[Trials, Check]:
    """Try the features of a broker; return what was found, and the one check that it gives."""
    settings = MqttSettings("127.0.0.1", port)
    async with MqttBus(f"grants-{port}", settings) as bus:
        await bus.wait_connected(patience(PATIENCE))
        grants = bus.grants
    trials = await try_features(settings, grants)
    (check,) = judge(trials, grants, software)
    return trials, check


async def test_mosquitto_has_everything(mosquitto: MosquittoProcess) -> None:
    trials, check = await tried(mosquitto.port, Software.MOSQUITTO)
    assert (trials.missing, trials.in_flight, trials.queued, trials.lost) == (frozenset(), RECEIVE_MAXIMUM, QUEUED, 0)
    assert check.level == "ok"


@pytest.mark.parametrize(
    ("lacks", "feature", "level", "follows"),
    [
        (double.SHARED, Feature.SHARED, "problem", "cannot share"),
        (double.RETAINED_BY_WILDCARD, Feature.RETAINED_BY_WILDCARD, "problem", "do not learn"),
        (double.EMPTY_WILL, Feature.EMPTY_WILL, "problem", "cannot connect"),
        (double.ABSENCE, Feature.ABSENCE, "warning", "count as received"),
    ],
)
async def test_a_missing_feature_is_found_alone(
    front: RefusingBroker, lacks: str, feature: Feature, level: str, follows: str
) -> None:
    front.lacks = frozenset({lacks})
    began = time.monotonic()
    trials, check = await tried(front.port)
    assert time.monotonic() - began < patience(PATIENCE)
    assert trials.missing == {feature}
    assert check.level == level
    assert follows in check.found
    assert "enable" not in check.do


async def test_a_message_that_is_acknowledged_and_dropped_is_found(front: RefusingBroker) -> None:
    front.largest = 2_000_000
    trials, check = await tried(front.port, Software.MOSQUITTO)
    assert (trials.largest, trials.lost) == (1024 * 1024, 4 * 1024 * 1024)
    assert check.level == "warning"
    assert "max_packet_size" in check.do


async def test_a_broker_that_sends_few_messages_before_the_first_acknowledgement_is_found(
    front: RefusingBroker,
) -> None:
    front.in_flight = 1
    trials, check = await tried(front.port)
    assert trials.in_flight == 1
    assert "sends 1 messages" in check.found


@pytest.mark.parametrize(("software", "do"), [(Software.MOSQUITTO, "max_queued"), (Software.FLASHMQ, "no option")])
async def test_a_broker_that_acknowledges_and_drops_messages_for_a_client_that_is_away_is_found(
    tmp_path: Path, software: Software, do: str
) -> None:
    # FlashMQ drops what is above 64 KiB, or above what may be in flight: a Mosquitto with a short queue does the same
    access = [*ANONYMOUS, f"max_queued_bytes {QUEUED // 4 * QUEUED_BYTES}"]
    async with MosquittoProcess(tmp_path, port=free_port(), access=access) as broker:
        trials, check = await tried(broker.port, software)
    assert 0 < trials.queued < QUEUED
    assert check.level == "problem"
    assert f"drops {QUEUED - trials.queued}" in check.found
    assert do in check.do


@pytest.mark.parametrize(
    ("version", "software", "option"),
    [
        (
            "mosquitto version 2.0.21",
            Software.MOSQUITTO,
            "`max_packet_size 16842752` in the configuration of Mosquitto",
        ),
        ("EMQX 5.8.6", Software.EMQX, '`mqtt.max_packet_size = "16447KB"` in the configuration of EMQX'),
        ("RabbitMQ 4.0.5", Software.RABBITMQ, "`mqtt.max_packet_size_authenticated = 16842752`"),
        ("FlashMQ 1.26.2", Software.FLASHMQ, "`max_packet_size 16842752` and `client_max_write_buffer_size 33554432`"),
        ("", Software.UNKNOWN, 'Mosquitto `max_packet_size 16842752`, EMQX `mqtt.max_packet_size = "16447KB"`'),
    ],
)
def test_the_brokers_own_option_is_named(version: str, software: Software, option: str) -> None:
    assert recognize(version) is software
    (check,) = limits(Grants(max_packet=65536), software)
    assert option in check.do


def test_what_a_broker_cannot_have_is_not_to_be_set() -> None:
    (check,) = limits(Grants(shared=False), Software.RABBITMQ)
    assert check.do == "RabbitMQ has no option for it: use another broker, such as Mosquitto 2 or EMQX 5"
    (check,) = limits(Grants(shared=False), Software.EMQX)
    assert "mqtt.shared_subscription = true" in check.do
