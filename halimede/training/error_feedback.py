"""Error feedback: what compression leaves out of an update or a change of weights (the residual) is added to the next.

Karimireddy et al. 2019, Error Feedback Fixes SignSGD and other Gradient Compression Schemes, arXiv 1901.09847. Without
error feedback, values that are never among the largest would never be sent. Trainers compress their updates, and the
aggregator the change of the weights, each with its own residual: Tang et al. 2019, DoubleSqueeze, arXiv 1905.05957.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from halimede.messages import Compression, TensorSpec
from halimede.training.tensor_file import decode, decode_finite, encode, encode_update
from halimede.training.weights import Weights, WeightsError, add, check_finite, difference, digest_of, specs_of


@dataclass(slots=True)
class ErrorFeedback:
    """Compresses the changes of one trainer or aggregator. ``residual``: what was left out so far; empty at first."""

    compression: Compression
    residual: Weights = field(default_factory=dict)

    def compress(self, delta: Weights) -> tuple[bytes, Weights]:
        """Return the file of a compressed change, and the residual after it. Raises WeightsError.

        ``residual`` itself stays, so that a repeated call has the same result: the caller sets it once the change
        counts.
        """
        whole = {
            name: np.asarray(tensor + self.residual[name]) if self.residual and tensor.dtype.kind == "f" else tensor
            for name, tensor in delta.items()
        }
        content = encode_update(whole, self.compression)
        sent = decode(content, specs_of(whole))
        residual = {
            name: np.asarray(tensor - sent[name]) if tensor.dtype.kind == "f" else np.zeros_like(tensor)
            for name, tensor in whole.items()
        }
        return content, residual

    def advance(self, weights: Weights, aggregated: Weights) -> tuple[Weights, bytes]:
        """Return the weights after a compressed change towards ``aggregated``, and the file of that change.

        ``residual`` is that after the change. Raises WeightsError.
        """
        change, self.residual = self.compress(difference(aggregated, weights))
        changed = add(weights, decode(change, specs_of(weights)))
        check_finite(changed)
        return changed, change


def apply_change(weights: bytes, change: bytes, specs: Sequence[TensorSpec], digest: str) -> bytes:
    """Return the file of weights after a change. All are files of tensors with these specs.

    Raises WeightsError if a file is not valid, or if the result does not have this digest.
    """
    content = encode(add(decode(weights, specs), decode_finite(change, specs)))
    if digest_of(content) != digest:
        raise WeightsError("Unreadable", "it does not make the weights of the round")
    return content
