"""Federated training by processes over a real broker: rounds, the target, the model that comes out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import onnxruntime
import pytest

from halimede import topics
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus
from halimede.messages import TrainingRound
from halimede.topics import CONTRACT
from services.broker import MosquittoProcess
from tests.scraping import scrape, value
from tests.training_world import AGGREGATOR, TrainingWorld, begin, digits, run_job, shares, training, write
from tests.waiting import patience

pytestmark = pytest.mark.timeout(300)


async def test_a_job_trains_on_all_nodes_and_makes_a_model(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    data = {f"n{i}": write(tmp_path / f"n{i}.npz", *share) for i, share in enumerate(shares(3, 300))}
    async with training(mosquitto, unique, tmp_path, rounds=4, minClients=3) as world:
        done = await run_job(world, data)
        assert done.reason == "RoundsDone"
        assert done.evaluated == 5
        assert done.metrics["accuracy"] > 0.85
        assert done.dropped == {}
        assert done.model is not None
        model = world.folder / world.name(AGGREGATOR) / "training" / done.model.digest
        rows, classes = digits()
        session = onnxruntime.InferenceSession(str(model))
        (found,) = session.run(["probabilities"], {"samples": rows[900:]})
        assert (found.argmax(axis=1) == classes[900:]).mean() > 0.85
        await see_metrics(world, done)
        await world.until(lambda _: "accuracy" in world.infos[world.name(AGGREGATOR)].message)


@pytest.mark.parametrize("compression", [{}, {"dtype": "float16", "topK": 0.25}], ids=["whole", "compressed"])
async def test_no_message_of_a_job_contains_a_sample(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, compression: dict[str, Any]
) -> None:
    data = {f"n{i}": write(tmp_path / f"n{i}.npz", *share) for i, share in enumerate(shares(2, 200))}
    packets: list[Packet] = []

    async def captured(packet: Packet) -> None:
        packets.append(packet)
        packet.done()

    async with (
        MqttBus(f"capture-{unique}", mosquitto.url) as everything,
        training(mosquitto, unique, tmp_path, rounds=2, minClients=2, compression=compression) as world,
    ):
        await everything.wait_connected(patience(30))
        await everything.listen("#", 1, captured, 10_000)
        done = await run_job(world, data)
    assert (done.change is not None) == bool(compression)
    payloads = [bytes(packet.payload) for packet in packets if unique in packet.topic]
    kinds = {topic.id for packet in packets for topic in CONTRACT if topic.parse(packet.topic)}
    assert {"training-round", "trainer-state", "training-request", "training-chunk"} <= kinds
    assert sum(map(len, payloads)) > 50_000
    rows = np.concatenate([share[0] for share in shares(2, 200)])
    forms = [rows, rows.astype(np.float64), rows.astype(np.float16), np.rint(rows * 16).astype(np.uint8)]
    for form in forms:
        for row in form:
            # half a sample would be enough to recognise it
            assert not any(row[16:48].tobytes() in payload for payload in payloads)


async def see_metrics(world: TrainingWorld, done: TrainingRound) -> None:
    """Check what Prometheus reads from the aggregator and a trainer."""
    async with aiohttp.ClientSession() as session:
        found = await scrape(session, world.infos[world.name(AGGREGATOR)].http)
        assert value(found, "halimede_training_round_index") == done.number - 1  # then the model is only evaluated
        assert value(found, "halimede_training_round_seconds") > 0
        assert value(found, "halimede_training_updates_total", result="Received") == 3 * done.number
        assert value(found, "halimede_training_tensor_bytes_total", direction="sent") > 0
        assert value(found, "halimede_training_metric", metric="accuracy") == done.metrics["accuracy"]
        found = await scrape(session, world.infos[world.name("n0")].http)
        assert value(found, "halimede_training_tensor_bytes_total", direction="received") > 0
        assert value(found, "halimede_training_round_seconds") > 0


async def test_compressed_updates_and_changes_train_as_well(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    data = {f"n{i}": write(tmp_path / f"n{i}.npz", *share) for i, share in enumerate(shares(2, 300))}
    compression = {"dtype": "float16", "topK": 0.1}
    async with training(mosquitto, unique, tmp_path, rounds=8, minClients=2, compression=compression) as world:
        done = await run_job(world, data)
        assert done.metrics["accuracy"] > 0.8
        sizes = {state.update.size for state in world.states.values() if state.update}
        assert done.weights is not None
        assert not sizes or max(sizes) * 8 < done.weights.size
        assert done.change is not None
        assert done.change.size * 8 < done.weights.size
        # whole files would be two trainers' weights of nine rounds, and updates of eight
        chunks = [packet for packet in world.packets if topics.TRAINING_CHUNK.parse(packet.topic)]
        assert sum(len(packet.payload) for packet in chunks) * 4 < 2 * (9 + 8) * done.weights.size
        assert done.dropped == {}


async def test_a_worker_that_stops_in_order_clears_its_state(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    rows, classes = shares(1, 200)[0]
    path = write(tmp_path / "n0.npz", rows, np.asarray(classes))
    async with training(mosquitto, unique, tmp_path, rounds=1000, minClients=2) as world:
        world.plan("n0", "n1")
        world.start("trainer", "n0", path)
        world.start("aggregator", AGGREGATOR)
        await world.until(lambda body: body.reason == "TooFewTrainers" and "1 of 2" in body.message)
        for worker in ("n0", AGGREGATOR):
            world.processes[worker].terminate()
            assert await asyncio.to_thread(world.processes[worker].wait, patience(30)) == 0
        retained: list[str] = []

        async def left(packet: Packet) -> None:
            retained.append(packet.topic)
            packet.done()

        async with MqttBus(f"late-{unique}", mosquitto.url) as late:
            await late.wait_connected(patience(30))
            for topic in (topics.TRAINING_ROUND, topics.TRAINER_STATE):
                await late.listen(topic.filter(ns="default", job=unique).text, 1, left, 100)
            await asyncio.sleep(0.5)
        assert retained == []


async def test_a_job_continues_from_the_weights_of_an_earlier_one(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    data = {f"n{i}": write(tmp_path / f"n{i}.npz", *share) for i, share in enumerate(shares(2, 200))}
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    async with training(mosquitto, f"{unique}-1", first, rounds=3, minClients=2) as world:
        earlier = await run_job(world, data)
        assert earlier.weights is not None
        weights = str(first / world.name(AGGREGATOR) / "training" / earlier.weights.digest)
    async with training(mosquitto, f"{unique}-2", second, rounds=3, minClients=2, initialWeights=weights) as world:
        begin(world, data)
        await world.done()
    assert next(body for body in world.rounds if body.number == 1 and body.weights).weights == earlier.weights
    assert next(body for body in world.rounds if body.evaluated == 1).metrics == earlier.metrics
