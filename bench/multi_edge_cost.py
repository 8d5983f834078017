"""What one packet costs Mosquitto and one of our clients, and how long it is on its way.

One process asks as a worker asks its peers (``OffloadClient``), another answers as they do (``RequestWorker``) with a
model that takes no time. Their processor seconds and the broker's, divided by packets, are what the simulation charges;
the way is what is left of a round trip on an idle line.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil

from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.frames import new_frame
from halimede.frames.payloads import new_id
from halimede.messages import Frame, Load
from halimede.offload import OffloadClient
from halimede.offload.channel import hop
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.workers import RequestWorker
from services.broker import MosquittoProcess
from tests.balance_world import Costs
from tests.unit.frames.clouds import NS, SERVICE, Brightness

#: packets of one ask: request and reply, each in, acknowledged, out, acknowledged; half of them at each client
BROKERS, CLIENTS = 8, 4
#: a frame as a camera of 640 x 480 gives it in JPEG takes about as much
SHAPE = (128, 160)
#: asks under way at a time when it is processor seconds that count
WINDOW = 48
CONNECT_S, DEADLINE_S = 10.0, 30.0


class _Quiet:
    """Advertises nothing: there is one asker, and it knows."""

    def touch(self) -> None: ...
    async def run(self) -> None: ...
    async def withdraw(self) -> None: ...


async def answer(port: int) -> None:
    """Answer until the process is ended."""
    async with MqttBus("answers", MqttSettings("127.0.0.1", port)) as bus, ModelThread() as thread:
        await bus.wait_connected(CONNECT_S)
        slot = ModelSlot(LoadedModel(Brightness(), thread))
        await RequestWorker(bus, slot, hop(NS, SERVICE, "share", "answers"), advertiser=_Quiet()).run()


async def measure(asks: int) -> tuple[Costs, dict[str, float]]:
    """Return the costs, and the figures that they come from."""
    with tempfile.TemporaryDirectory() as folder:
        async with MosquittoProcess(Path(folder)) as broker:
            command = [sys.executable, "-m", "bench.multi_edge_cost", "--answer", str(broker.port)]
            answering = subprocess.Popen(command)  # noqa: ASYNC220  # once, before anything is timed
            try:
                async with MqttBus("asks", MqttSettings("127.0.0.1", broker.port)) as bus:
                    await bus.wait_connected(CONNECT_S)
                    client = OffloadClient(bus, hop(NS, SERVICE, "share", "asks"), window=WINDOW)
                    await client.start()
                    return await _measure(client, asks, [broker.pid or 0, answering.pid])
            finally:
                answering.terminate()
                answering.wait()


async def _measure(client: OffloadClient, asks: int, others: list[int]) -> tuple[Costs, dict[str, float]]:
    frame = new_frame(np.zeros(SHAPE, np.uint8))
    await _until_there(client, frame)
    trips = [await _ask(client, frame) for _ in range(max(50, asks // 10))]
    processes = [psutil.Process(), *(psutil.Process(pid) for pid in others)]
    before = [_seconds(process) for process in processes]
    began = time.perf_counter()
    turns = iter(range(asks))

    async def asker() -> None:
        for _ in turns:
            await _ask(client, frame)

    await asyncio.gather(*(asker() for _ in range(WINDOW)))
    wall_s = time.perf_counter() - began
    asking, broker, answering = (
        (_seconds(process) - was) / asks for process, was in zip(processes, before, strict=True)
    )
    trip_s = statistics.quantiles(trips, n=4)[0]  # whatever else runs here makes one longer, never shorter
    broker_s, client_s = broker / BROKERS, (asking + answering) / 2 / CLIENTS
    way_s = max(0.0, trip_s - 4 * client_s - 2 * broker_s) / 4
    found = {
        "asks": asks,
        "asks_per_s": asks / wall_s,
        "round_trip_ms": trip_s * 1000,
        "broker_us_per_ask": broker * 1e6,
        "asker_us_per_ask": asking * 1e6,
        "answerer_us_per_ask": answering * 1e6,
        "broker_us_per_packet": broker_s * 1e6,
        "client_us_per_packet": client_s * 1e6,
        "way_us": way_s * 1e6,
    }
    return Costs(broker_s, client_s, way_s), {name: round(value, 2) for name, value in found.items()}


async def _until_there(client: OffloadClient, frame: Frame) -> None:
    """Wait until the other process answers."""
    until = time.monotonic() + DEADLINE_S
    while True:
        try:
            await _ask(client, frame, 1.0)
        except Exception:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
        else:
            return


async def _ask(client: OffloadClient, frame: Frame, deadline_s: float = DEADLINE_S) -> float:
    client.advertised("answers", Load(credits=WINDOW * 2, service_ms=0.1))
    began = time.perf_counter()
    await client.ask(msgspec.structs.replace(frame, id=new_id()), deadline_s)
    return time.perf_counter() - began


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--answer", type=int, required=True, metavar="PORT")
    asyncio.run(answer(parser.parse_args().answer))
