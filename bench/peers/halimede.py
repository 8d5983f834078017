"""Ours, the real path: an edge worker's OffloadClient asks the cloud worker's process, over the broker.

The server is the whole cloud worker (``halimede.worker``) with an ONNX model and its defaults: checks, queue, batches,
metrics. The client makes, checks and sends a frame for each request, and matches the reply to it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from bench.peers import peer
from bench.peers.model import mean_model
from bench.peers.profiled import Profiles
from halimede import log
from halimede.bus.mqtt import MqttSettings
from halimede.frames import new_frame
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.system.runtime import rare_collections
from halimede.worker.main import connect_to, main

SERVICE = "bench"
#: seconds: for one sample; until the cloud worker advertises
DEADLINE, START = 20.0, 30.0


def server(broker: str, name: str = "halimede") -> None:
    """Be the cloud worker."""
    peer.end_with_input()
    with tempfile.TemporaryDirectory(prefix="halimede-bench-") as folder:
        environ = {
            "SERVICE_NAME": f"{SERVICE}-{name.replace('_', '-')}",
            "WORKER_NAME": f"{name.replace('_', '-')}-cloud",
            "NODE_NAME": "cloud",
            "MODEL_URL": str(mean_model(Path(folder) / "mean.onnx")),
            "HALIMEDE_BROKER": broker,
            "HALIMEDE_STATE": folder,
            "GRACE_S": "1",
        }
        profiles = Profiles() if os.environ.get("BENCH_PROFILE") == "server" else None
        if profiles:
            profiles.begin()
        peer.listening()
        code = main("cloud", environ={**os.environ, **environ})
        if profiles:
            profiles.end()
            profiles.show(sys.stderr)
    if code:
        raise SystemExit(code)


def client(broker: str, name: str = "halimede") -> None:
    """Be the edge worker, as far as it asks the cloud."""
    log.configure("WARNING")
    with rare_collections():  # as a worker's process has it
        asyncio.run(_client(broker, name.replace("_", "-")))


async def _client(broker: str, name: str) -> None:
    connect = connect_to(MqttSettings.from_url(broker))
    async with connect(f"{name}-edge") as bus:
        offload = OffloadClient(bus, inference("default", f"{SERVICE}-{name}", "edge"))
        await offload.start()
        async with asyncio.timeout(START):
            while not offload.credits_left():
                await asyncio.sleep(0.05)

        async def ask(size: int, number: int) -> None:
            reply = await offload.ask(new_frame(peer.sample(size, number)), DEADLINE)
            peer.check_mean(size, number, reply.prediction.probabilities[1])  # type: ignore[union-attr,index]

        await peer.rounds(ask)
