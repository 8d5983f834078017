"""What a sample costs a cloud worker beside the network: CPU time from a packet that has arrived to its reply handed over.

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
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper

from halimede import codec, topics
from halimede.api.model import ModelSpec
from halimede.api.processing import Postprocess
from halimede.bus.link import Deliver, Ended, Link
from halimede.bus.linked import LinkedBus
from halimede.bus.port import Packet
from halimede.frames import new_frame
from halimede.frames.channel import inference
from halimede.frames.compute import ModelThread
from halimede.frames.server import CloudServer
from halimede.frames.slot import Loaded, Slot
from halimede.inference.onnx import open_onnx
from halimede.messages import Frame

NS, SERVICE, WORKER, ASKER = "default", "bench", "c0", "e0"
MAX_PACKET = 16 * 1024 * 1024
#: packets that are used in turn, as a client's buffers are: each request is stamped with an id of its own
RING = 48


class Wire(Link):
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

    def publish(self, packet: Packet) -> asyncio.Future[int]:
        """Take a reply; the broker's answer and the next request come in the next turn of the loop."""
        self._key = self._key % 65_535 + 1
        answer = self._expect(self._key)
        asyncio.get_running_loop().call_soon(self._arrived, self._key, packet.topic.endswith(ASKER))
        return answer

    def _arrived(self, key: int, reply: bool) -> None:
        self._answer(key, 0)
        if reply:
            self._out -= 1
            self._next()
            if not self._out:
                self.finished.set()

    def subscribe(self, filter_: str, qos: int) -> asyncio.Future[int]:
        """Grant it."""
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(qos)
        return answer

    unsubscribe = subscribe

    async def close(self, *, keep: bool = False) -> None:
        self.abort("closed")

    def abort(self, reason: str) -> None:
        self.end(Ended(reason))


class WireBus(LinkedBus):
    def __init__(self, payload: bytes, flight: int) -> None:
        super().__init__(WORKER, None, where="nowhere", chance=random.Random(0))
        self._payload, self._flight = payload, flight

    async def _open(self, will: Packet | None, deliver: Deliver) -> Link:
        self.wire = Wire(deliver, self._payload, self._flight)
        return self.wire


def mean_model(path: Path) -> Path:
    """Write a model that gives the mean of a uint8 tensor, scaled to 0..1."""
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["f"], ["m"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Div", ["m", "max"], ["s"]),
            helper.make_node("Unsqueeze", ["s", "one"], ["y"]),
        ],
        "mean",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", "h", "w", "c"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [
            helper.make_tensor("max", TensorProto.FLOAT, [], [255.0]),
            helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="224,224,3")
    parser.add_argument("--flight", type=int, default=16)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    shape = tuple(int(n) for n in args.shape.split(","))
    pixels = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    payload = codec.encode(topics.REQUEST_TO, new_frame(pixels))
    with tempfile.TemporaryDirectory() as folder:
        model = open_onnx(
            mean_model(Path(folder) / "m.onnx"), ModelSpec(url="/m", format="onnx", postprocess=Postprocess())
        )
    async with WireBus(payload, args.flight) as bus, ModelThread() as thread, asyncio.TaskGroup() as group:
        slot = Slot(Loaded(model, thread))
        server = CloudServer(bus, slot, inference(NS, SERVICE, WORKER))
        running = group.create_task(server.run())
        watching = group.create_task(slot.watch(60.0))
        await bus.wait_connected(1)
        await asyncio.sleep(0.1)

        async def turn() -> tuple[float, float]:
            bus.wire.begin(args.samples)
            began, cpu = time.perf_counter(), time.process_time()
            await bus.wire.finished.wait()
            return (time.process_time() - cpu) / args.samples * 1e6, (time.perf_counter() - began) / args.samples * 1e6

        await turn()
        if args.profile:
            profile = cProfile.Profile()
            profile.enable()
            await turn()
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        batches, served = server.stats.batches, server.stats.served
        turns, bare = [], []
        for _ in range(args.rounds):
            turns.append(await turn())
            x = pixels[None]
            began = time.process_time()
            for _ in range(500):
                model.session.run(None, {"x": x})
            bare.append((time.process_time() - began) / 500 * 1e6)
        print(
            f"cpu us/sample min {min(t[0] for t in turns):.1f} median {statistics.median(t[0] for t in turns):.1f}; "
            f"wall us min {min(t[1] for t in turns):.1f}; bare model {min(bare):.1f}; "
            f"batch {(server.stats.served - served) / max(1, server.stats.batches - batches):.1f}"
        )
        running.cancel()
        watching.cancel()


if __name__ == "__main__":
    asyncio.run(main())
