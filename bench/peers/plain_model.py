"""The model of the comparison as a user would serve it without this project: check a header, run a session, answer.

Requests and answers are msgpack maps. The header of a request says ``dtype`` and ``shape`` of the pixels in ``data``.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import msgpack
import numpy as np
import onnxruntime as ort

from bench.peers import peer
from bench.peers.model import mean_model

LABELS = ("dark", "bright")
DTYPE, DIMENSIONS = "uint8", 3


class WrongRequestError(Exception):
    """The header of a request does not fit its data."""


class PlainModel:
    """An ONNX session with the settings that ours has: one thread, which does not spin."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session

    def answer(self, body: bytes) -> bytes:
        """Return the answer to a request. Raises WrongRequestError."""
        request = msgpack.unpackb(body)
        dtype, shape, data = request["dtype"], request["shape"], request["data"]
        if dtype != DTYPE or len(shape) != DIMENSIONS:
            raise WrongRequestError(f"{dtype} of {len(shape)} dimensions, not {DTYPE} of {DIMENSIONS}")
        if math.prod(shape) != len(data):
            raise WrongRequestError(f"{len(data)} bytes of data, and the shape is {shape}")
        pixels = np.frombuffer(data, np.uint8).reshape(1, *shape)
        bright = float(self._session.run(None, {"x": pixels})[0][0, 0])
        probabilities = [1 - bright, bright]
        best = max(range(len(LABELS)), key=probabilities.__getitem__)
        reply = {"label": LABELS[best], "score": probabilities[best], "probabilities": probabilities}
        return bytes(msgpack.packb(reply))


def open_model() -> PlainModel:
    """Write the model and open it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with tempfile.TemporaryDirectory(prefix="halimede-bench-") as folder:
        path = mean_model(Path(folder) / "mean.onnx")
        return PlainModel(ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))


def request(size: int, number: int) -> bytes:
    """Return the request of a sample: packed anew each time, as a camera's frames are."""
    pixels = peer.sample(size, number)
    return bytes(msgpack.packb({"dtype": pixels.dtype.name, "shape": pixels.shape, "data": pixels.data.cast("B")}))


def check(size: int, number: int, answer: bytes) -> None:
    """End when an answer is wrong."""
    peer.check_mean(size, number, msgpack.unpackb(answer)["probabilities"][1])
