"""Limits of what the parties of a training take: parameters of the built-in trainer, files of others, and states."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import TensorFile
from halimede.training.roles import trainer
from halimede.training.tensor_exchange import TensorExchange
from halimede.training.trainers.perceptron import Perceptron
from halimede.training.weights import WeightsError
from tests.simulated import eventually
from tests.unit.training.parties import offer, party_settings

pytestmark = pytest.mark.simulated


#: values in the range of a parameter, and outside of it
RANGES = {
    "epochs": (["1", "10000"], ["0", "10001"]),
    "batch": (["1"], ["0"]),
    "hidden": (["", "65536", ",".join(["1"] * 8)], ["0", "4,0", "65537", ",".join(["1"] * 9)]),
    "rate": (["1"], ["0", "1.01", "nan"]),
    "momentum": (["0"], ["1", "-0.1"]),
    "decay": (["0"], ["1", "-0.1"]),
}


@pytest.mark.parametrize("name", RANGES)
def test_each_parameter_of_the_built_in_trainer_has_its_range(name: str) -> None:
    inside, outside = RANGES[name]
    for value in inside:
        Perceptron(**{name: value})
    for value in outside:
        with pytest.raises(ValueError, match=r"must be|at most"):
            Perceptron(**{name: value})


async def test_a_file_of_another_size_or_content_than_was_published_is_refused(tmp_path: Path) -> None:
    broker, content = MemoryBroker(), b"weights"
    async with MemoryBus("a", broker) as first, MemoryBus("b", broker) as second:
        parties = [TensorExchange(bus, "default", "job", name) for name, bus in (("a", first), ("b", second))]
        for party in parties:
            await party.start()
        serving = asyncio.create_task(parties[0].serve())
        file = offer(parties[0], tmp_path, content)
        assert await parties[1].fetch("a", file, 7) == content
        assert (parties[1].received_bytes, parties[1].sent_bytes, parties[1].moved_bytes) == (7, 0, 7)
        await eventually(lambda: parties[0].moved_bytes >= 7, 10.0)
        for size, most, reason in ((7, 6, "TooLarge"), (8, 9, "Unreadable"), (6, 9, "Unreadable")):
            with pytest.raises(WeightsError) as caught:
                await parties[1].fetch("a", TensorFile(digest=file.digest, size=size), most)
            assert caught.value.reason == reason
        serving.cancel()


def test_the_will_of_a_trainer_clears_its_retained_state(tmp_path: Path) -> None:
    job = trainer(party_settings("trainer", "t0", tmp_path, tmp_path, {"trainers": {"t0": "edge0"}}))
    will = job.announce().will
    assert (will.payload, will.qos, will.retain) == (b"", 1, True)
