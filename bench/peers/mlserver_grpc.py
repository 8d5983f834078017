"""MLServer over the open inference protocol's gRPC, with the same model: raw tensors, no worker processes, no metrics.

It gets its own environment below build/peers on first use, as ``bench.serve`` does.
"""

from __future__ import annotations

import asyncio
import os

import grpc
import numpy as np

from bench import serve
from bench.peers import peer
from bench.peers.model import mean_model
from halimede.serving.grpc_handlers import InferRequest, InferResponse

METHOD = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = (("grpc.max_receive_message_length", 1 << 25), ("grpc.max_send_message_length", 1 << 25))


def server() -> None:
    """Run MLServer as a child, until standard input ends."""
    model = mean_model(serve.PEERS / "mean.onnx")
    with serve.mlserver(model, os.sched_getaffinity(0), serve.peer()) as (_, port):
        asyncio.run(peer.serving(port))


def client(port: str) -> None:
    """Send and check."""
    asyncio.run(_client(port))


def request(size: int, number: int) -> bytes:
    """Return a request with the sample as a raw tensor."""
    pixels = peer.sample(size, number)
    asked = InferRequest(model_name="bench", raw_input_contents=[pixels.tobytes()])
    asked.inputs.add(name="x", datatype="UINT8", shape=[1, *pixels.shape])
    return bytes(asked.SerializeToString())


def mean_in(answer: bytes) -> float:
    """Return the mean that an answer holds, raw or typed."""
    answered = InferResponse.FromString(answer)
    if answered.raw_output_contents:
        return float(np.frombuffer(answered.raw_output_contents[0], np.float32)[0])
    return float(answered.outputs[0].contents.fp32_contents[0])


async def _client(port: str) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        call = channel.unary_unary(METHOD)

        async def ask(size: int, number: int) -> None:
            peer.check_mean(size, number, mean_in(await call(request(size, number))))

        await peer.rounds(ask)
