"""A server's answer as mining reads it: predictions, one for each sample of the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from halimede.errors import HalimedeError
from halimede.inference import SampleError
from halimede.inference.postprocess import Activation, classify
from halimede.messages import Prediction
from halimede.serving.errors import ServeError
from halimede.serving.loaded_model import PREDICTION
from halimede.serving.rest_codec import BINARY_SIZE
from halimede.serving.router.backend_client import BackendResponse
from halimede.serving.tensors import BYTES, Tensor, from_bytes, from_values

FLOATS = {"FP16", "FP32", "FP64", "BF16"}


class UnreadableError(HalimedeError):
    """An answer that mining cannot judge."""


class Body(Struct):
    """An answer's JSON. What the router does not change stays as it is."""

    outputs: Raw
    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] = {}


class ResponseOutput(Struct):
    """An output of an answer."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class ResponseReader:
    """How predictions are found in an answer: the output's name (empty: the one that fits), its activation, labels."""

    output: str = ""
    activation: Activation = "none"
    labels: Sequence[str] = ()

    def read(self, answer: BackendResponse) -> tuple[Body, list[Prediction]]:
        """Return an answer's JSON and its predictions. Raises UnreadableError."""
        try:
            body = msgspec.json.decode(memoryview(answer.body)[: answer.head], type=Body)
            outputs = msgspec.json.decode(body.outputs, type=list[ResponseOutput])
            return body, self._predictions(outputs, answer)
        except (msgspec.DecodeError, ServeError, SampleError, UnicodeDecodeError, ValueError) as error:
            raise UnreadableError(f"the answer cannot be judged: {error}") from error

    def _predictions(self, outputs: Sequence[ResponseOutput], answer: BackendResponse) -> list[Prediction]:
        tensors, end = [], answer.head
        for output in outputs:
            size = output.parameters.get(BINARY_SIZE)
            at, end = end, end + (size if type(size) is int and size >= 0 else 0)
            if not self._fits(output):
                continue
            if size is None:
                tensors.append(from_values(output.name, output.datatype, output.shape, output.data))
            else:
                data = memoryview(answer.body)[at:end]
                tensors.append(from_bytes(output.name, output.datatype, output.shape, data))
        if len(tensors) != 1:
            listed = ", ".join(f"{output.name} ({output.datatype} {output.shape})" for output in outputs)
            raise UnreadableError(f"{len(tensors)} outputs could hold scores, of {listed}: name one with --output")
        return self._of(tensors[0])

    def _fits(self, output: ResponseOutput) -> bool:
        if self.output:
            return output.name == self.output
        if output.datatype == BYTES:
            return output.name.startswith(PREDICTION)
        return output.datatype in FLOATS and len(output.shape) == 2 and output.shape[1] > 1

    def _of(self, tensor: Tensor) -> list[Prediction]:
        if tensor.datatype == BYTES:
            return [msgspec.json.decode(item, type=Prediction) for item in tensor.array.ravel()]
        if tensor.array.ndim != 2:
            raise UnreadableError(
                f"output {tensor.name} has shape {list(tensor.array.shape)}, and is no list of scores"
            )
        return [classify(row, self.labels, self.activation) for row in tensor.array]
