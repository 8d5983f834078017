"""What a sample costs a cloud worker beside the network: CPU time from its packet to the reply handed over.

``python -m bench.cloud`` runs the real bus, server, queue, batches and ONNX model over a link without a socket that
keeps so many requests in flight, and prints the microseconds of CPU of a sample and those of the bare model call.
``--profile`` says where they go.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import random
import secrets
import tempfile
import time
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.peers.model import mean_model
from halimede import codec, topics
from halimede.api.model import ModelSpec
from halimede.bus.connection import ReconnectingBus
from halimede.bus.message import Packet
from halimede.bus.transport import Deliver, Ended, PendingAck, Transport
from halimede.frames import new_frame
from halimede.inference.file_model import FileModel, open_file
from halimede.offload.channel import inference
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.workers import RequestWorker

NS, SERVICE, WORKER, ASKER = "default", "bench", "c0", "e0"
MAX_PACKET = 16 * 1024 * 1024
#: packets that are used in turn, as a client's buffers are: each request is stamped with an id of its own
RING = 48
#: calls of the bare model in a round
BARE = 500


class Wire(Transport):
    """A link whose other end has ``flight`` requests under way: each reply brings the next one."""

    def __init__(self, deliver: Deliver, payload: bytes, flight: int) -> None:
        super().__init__(MAX_PACKET, 1000)
        self._deliver = deliver
        self._frame = codec.decode(topics.REQUEST_TO, payload)
        self._flight = flight
        self._left = 0
        self._key = 0
        self._id = payload.index(self._frame.id)
        self.finished = asyncio.Event()

    def begin(self, requests: int) -> None:
        """Send so many requests."""
        self.finished.clear()
        self._left, self._out = requests, 0
        self._packets = [self._packet() for _ in range(RING)]
        for _ in range(self._flight):
            self._next()

    def _packet(self) -> Packet:
        body = msgspec.structs.replace(self._frame, id=secrets.token_bytes(16), deadline_ms=10_000.0)
        return Packet(
            topics.REQUEST_TO.at(ns=NS, service=SERVICE, worker=WORKER).text,
            bytearray(codec.encode(topics.REQUEST_TO, body)),  # type: ignore[arg-type]
            response_topic=topics.REPLY.at(ns=NS, service=SERVICE, worker=ASKER).text,
            correlation=secrets.token_bytes(16),
        )

    def _next(self) -> None:
        if self._left:
            self._key = self._key % 65_535 + 1
            self._out += 1
            self._left -= 1
            packet = self._packets[self._left % RING]
            packet.payload[self._id : self._id + 16] = secrets.token_bytes(16)  # type: ignore[index]
            self._deliver(packet, lambda: True, self._key)

    def publish(self, packet: Packet) -> PendingAck:
        """Take a reply; the broker's answer and the next request come in the next turn of the loop."""
        self._key = self._key % 65_535 + 1
        answer = self._expect(self._key)
        asyncio.get_running_loop().call_soon(partial(self._arrived, self._key, reply=packet.topic.endswith(ASKER)))
        return answer

    def _arrived(self, key: int, *, reply: bool) -> None:
        self._answer(key, 0)
        if reply:
            self._out -= 1
            self._next()
            if not self._out:
                self.finished.set()

    def subscribe(self, filter_: str, qos: int) -> PendingAck:  # noqa: ARG002
        """Grant it."""
        answer = PendingAck()
        answer.set_result(qos)
        return answer

    def unsubscribe(self, filter_: str) -> PendingAck:
        """Grant it."""
        return self.subscribe(filter_, 0)

    async def close(self, *, keep: bool = False) -> None:  # noqa: ARG002
        """End."""
        self.abort("closed")

    def abort(self, reason: str) -> None:
        """End."""
        self.end(Ended(reason))


class WireBus(ReconnectingBus):
    """A bus over that link."""

    def __init__(self, payload: bytes, flight: int) -> None:
        super().__init__(WORKER, None, where="nowhere", chance=random.Random(0))
        self._payload, self._flight = payload, flight

    async def _open(self, will: Packet | None, deliver: Deliver) -> Transport:  # noqa: ARG002
        self.wire = Wire(deliver, self._payload, self._flight)
        return self.wire


def bare(model: FileModel, pixels: NDArray[np.uint8]) -> float:
    """Return the microseconds of CPU of a call of the model and nothing else."""
    session = model.session
    assert session is not None, "open"
    began = time.process_time()
    for _ in range(BARE):
        session.run(None, {"x": pixels[np.newaxis]})
    return (time.process_time() - began) / BARE * 1e6


async def turn(wire: Wire, samples: int) -> tuple[float, float]:
    """Return the microseconds of CPU and of wall clock of a sample."""
    wire.begin(samples)
    began, cpu = time.perf_counter(), time.process_time()
    await wire.finished.wait()
    return (time.process_time() - cpu) / samples * 1e6, (time.perf_counter() - began) / samples * 1e6


async def main(shape: tuple[int, ...], flight: int, samples: int, rounds: int, *, profiled: bool) -> None:
    """Print what a sample costs."""
    pixels = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        model = open_file(mean_model(Path(folder) / "mean.onnx"), ModelSpec(url="/m", format="onnx"))
    bus = WireBus(codec.encode(topics.REQUEST_TO, new_frame(pixels)), flight)
    async with bus, ModelThread() as thread, asyncio.TaskGroup() as group:
        slot = ModelSlot(LoadedModel(model, thread))
        server = RequestWorker(bus, slot, inference(NS, SERVICE, WORKER))
        beside = [group.create_task(server.run()), group.create_task(slot.watch(60.0))]
        await bus.wait_connected(1)
        await asyncio.sleep(0.1)
        await turn(bus.wire, samples)
        if profiled:
            with cProfile.Profile() as profile:
                await turn(bus.wire, samples)
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        batches, served = server.intake.times.batch.count, server.intake.stats.served
        found = [(*await turn(bus.wire, samples), bare(model, pixels)) for _ in range(rounds)]
        cpu, wall, alone = (sorted(each) for each in zip(*found, strict=True))
        size = (server.intake.stats.served - served) / max(1, server.intake.times.batch.count - batches)
        print(
            f"a sample: {cpu[0]:.1f} us of CPU (median {cpu[rounds // 2]:.1f}), {wall[0]:.1f} us of wall clock; "
            f"the bare model: {alone[0]:.1f} us; samples of a batch: {size:.1f}"
        )
        for task in beside:
            task.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="224,224,3", help="of a sample of bytes: height,width,channels")
    parser.add_argument("--flight", type=int, default=16, help="requests under way")
    parser.add_argument("--samples", type=int, default=2000, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    given = parser.parse_args()
    wanted = tuple(int(size) for size in given.shape.split(","))
    asyncio.run(main(wanted, given.flight, given.samples, given.rounds, profiled=given.profile))
