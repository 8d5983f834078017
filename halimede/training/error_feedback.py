"""Error feedback: what compression takes from an update is added to the next one.

Karimireddy et al. 2019, Error Feedback Fixes SignSGD and other Gradient Compression Schemes, arXiv 1901.09847. Without
it, values that are never among the largest would never be sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from halimede.messages import Compression
from halimede.training.tensor_file import decode, encode_update
from halimede.training.weights import Weights, specs_of


@dataclass(slots=True)
class ErrorFeedback:
    """A trainer's part of its updates that was not sent yet. ``residual``: empty before the first update."""

    compression: Compression
    residual: Weights = field(default_factory=dict)

    def compress(self, delta: Weights) -> tuple[bytes, Weights]:
        """Return the file of an update, and the residual after it. Raises WeightsError.

        The caller sets ``residual`` once the update counts: an update that is made again must be the same.
        """
        whole = {
            name: np.asarray(tensor + self.residual[name]) if self.residual and tensor.dtype.kind == "f" else tensor
            for name, tensor in delta.items()
        }
        content = encode_update(whole, self.compression)
        sent = decode(content, specs_of(whole))
        left = {
            name: np.asarray(tensor - sent[name]) if tensor.dtype.kind == "f" else np.zeros_like(tensor)
            for name, tensor in whole.items()
        }
        return content, left
