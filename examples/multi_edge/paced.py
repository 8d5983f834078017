"""A user's own estimator: an ONNX model on a node that is slower than this machine, which ``WAIT_MS`` stands for."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray


class Paced:
    """Reads a digit, and takes at least ``WAIT_MS`` milliseconds for each."""

    def __init__(self) -> None:
        self._wait_s = float(os.environ.get("WAIT_MS", "0")) / 1000
        self._session: Any = None

    def load(self, model_url: str) -> None:
        """Open the model that the node has prepared."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model_url, options, providers=["CPUExecutionProvider"])

    def predict(self, data: NDArray[np.float32]) -> list[float]:
        """Return the probabilities of the ten digits."""
        began = time.monotonic()
        row = np.ascontiguousarray(data, dtype=np.float32).reshape(1, -1)
        (found,) = self._session.run(["probabilities"], {self._session.get_inputs()[0].name: row})
        time.sleep(max(0.0, self._wait_s - (time.monotonic() - began)))
        return [float(value) for value in found[0]]
