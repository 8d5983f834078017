"""The bodies of the Open Inference Protocol over REST: ``parse`` decodes requests, ``write`` encodes answers.

A body is JSON, optionally followed by tensors as bytes (the protocol's binary tensor extension). The header
``Inference-Header-Content-Length`` then has the length of the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from halimede.serving.errors import ServeError, TooMuchError
from halimede.serving.tensors import (
    MAX_TENSORS,
    Tensor,
    check_count,
    check_inputs,
    from_bytes,
    from_json,
    from_values,
    to_bytes,
    to_values,
)

#: parameter of a tensor: its bytes after the JSON
BINARY_SIZE = "binary_data_size"
#: most bytes of the JSON part: numbers take 0.05 to 0.2 s a megabyte, and large tensors have a better form
MAX_JSON = 16 * 1024 * 1024
#: most objects in the JSON part
MAX_OBJECTS = 65_536
#: temporary memory while the JSON part is parsed, as a multiple of its size
COPIES = 6
#: most bytes of JSON that are decoded as a whole; of a longer JSON, the data of tensors is decoded in parts
WHOLE = 64 * 1024
#: media types of bodies: only JSON, with tensors as bytes
JSON, BINARY = "application/json", "application/octet-stream"
#: header with the bytes of JSON in a body
HEADER_LENGTH = "Inference-Header-Content-Length"

#: most microseconds of a timeout: some 30,000 years
MAX_TIMEOUT = 10**18
#: parameters of a request, a tensor or an output, by name
Parameters = dict[str, Any]


class TensorHeader(Struct):
    """An input of a request, or an output of an answer, in JSON: the fields of the protocol.

    ``data``: its values, flat or nested; UNSET: they are sent as bytes, and ``parameters`` has BINARY_SIZE.
    """

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = {}
    data: Any = UNSET


class OutputHeader(Struct):
    """A requested output in JSON. The parameter ``binary_data``: whether to send it as bytes."""

    name: str
    parameters: Parameters = {}


class RequestHeader(Struct):
    """The JSON of a request. ``outputs``: the requested ones; empty: all."""

    inputs: list[TensorHeader]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[OutputHeader] = []


class LargeTensorHeader(Struct):
    """An input of a large request in JSON, as ``TensorHeader``; ``Raw`` fields are not decoded yet."""

    name: str
    shape: Raw
    datatype: str
    parameters: Raw = Raw(b"{}")
    data: Raw | UnsetType = UNSET


class LargeRequestHeader(Struct):
    """The JSON of a large request, as ``RequestHeader``; ``Raw`` fields are not decoded yet."""

    inputs: list[LargeTensorHeader]
    id: str = ""
    parameters: Raw = Raw(b"{}")
    outputs: Raw = Raw(b"[]")


class OutputBody(Struct, omit_defaults=True):
    """An output of an answer in JSON. ``data``: its values in C order, if they are not sent as bytes."""

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = {}
    data: list[Any] | UnsetType = UNSET


class AnswerBody(Struct, omit_defaults=True):
    """The JSON of an answer. ``id``: that of its request."""

    model_name: str
    model_version: str
    outputs: list[OutputBody]
    id: str = ""


@dataclass(slots=True)
class Request:
    """One request for a model, decoded.

    Attributes:
        id: the client's name for it; empty if it has none.
        tensors: its inputs.
        outputs: names of the requested outputs; empty: all.
        binary: outputs are sent as bytes, except where ``binary_of`` says otherwise.
        binary_of: whether an output is sent as bytes, by its name.
        timeout_s: the client's timeout in seconds; infinity without one.

    """

    id: str
    tensors: list[Tensor]
    outputs: list[str]
    binary: bool
    binary_of: dict[str, bool]
    timeout_s: float


_requests = msgspec.json.Decoder(RequestHeader)
_large_requests = msgspec.json.Decoder(LargeRequestHeader)
_json = msgspec.json.Encoder()


def json_length(body: bytes, header_length: str | None) -> int:
    """Return how many of a body's bytes are JSON. Raises ServeError.

    ``header_length``: the value of HEADER_LENGTH; None: all bytes are JSON.
    """
    end = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and len(header_length) <= 12):
            raise ServeError(f"{HEADER_LENGTH} is {header_length[:32]!r}: give the JSON part's bytes")
        end = int(header_length)
        if end > len(body):
            raise ServeError(f"{HEADER_LENGTH} is {end}, and the body has {len(body)} bytes")
    if end > MAX_JSON:
        raise TooMuchError(f"{end} bytes of JSON are more than {MAX_JSON}: send large tensors as binary data")
    return end


def parse(body: bytes, end: int) -> Request:
    """Decode a request's body, whose first ``end`` bytes are JSON. Raises ServeError if it is not valid."""
    view = memoryview(body)
    try:
        header = _requests.decode(view[:end]) if end <= WHOLE else _large_header(body, end)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServeError(f"the body is no inference request: {error}") from error
    check_inputs(header.inputs)
    if len(header.outputs) > MAX_TENSORS:
        raise TooMuchError(f"more than {MAX_TENSORS} outputs")
    tensors, at = [], end
    for tensor in header.inputs:
        size = tensor.parameters.get(BINARY_SIZE) if tensor.parameters else None
        if size is None:
            if tensor.data is UNSET:
                raise ServeError(f"tensor {tensor.name[:80]}: it has neither data nor a {BINARY_SIZE}")
            read = from_json if isinstance(tensor.data, Raw) else from_values
            tensors.append(read(tensor.name, tensor.datatype, tensor.shape, tensor.data))
            continue
        if tensor.data is not UNSET:
            raise ServeError(f"tensor {tensor.name[:80]}: it has both data and a {BINARY_SIZE}")
        if type(size) is not int or size < 0 or at + size > len(body):
            raise ServeError(f"tensor {tensor.name[:80]}: {BINARY_SIZE} {_short_text(size)} goes beyond the body's end")
        tensors.append(from_bytes(tensor.name, tensor.datatype, tensor.shape, view[at : at + size]))
        at += size
    if at != len(body):
        raise ServeError(f"the body has {len(body) - at} bytes that belong to no tensor")
    return Request(
        header.id,
        tensors,
        [one.name for one in header.outputs],
        header.parameters.get("binary_data_output") is True,
        {one.name: one.parameters["binary_data"] is True for one in header.outputs if "binary_data" in one.parameters},
        timeout_of(header.parameters),
    )


def _large_header(body: bytes, end: int) -> RequestHeader:
    """Decode the JSON of a large request; the data of its inputs stays ``Raw``.

    Raises ServeError and msgspec.DecodeError.
    """
    if body.count(b"{", 0, end) > MAX_OBJECTS:
        raise TooMuchError(f"more than {MAX_OBJECTS} objects in its JSON: send large tensors as binary data")
    large = _large_requests.decode(memoryview(body)[:end])
    around = [part for tensor in large.inputs for part in (tensor.shape, tensor.parameters)]
    if sum(len(bytes(part)) for part in (large.parameters, large.outputs, *around)) > WHOLE:
        raise TooMuchError(f"its shapes, parameters and outputs have more than {WHOLE} bytes")
    inputs = [
        TensorHeader(
            tensor.name,
            msgspec.json.decode(tensor.shape, type=list[int]),
            tensor.datatype,
            msgspec.json.decode(tensor.parameters, type=Parameters),
            tensor.data,
        )
        for tensor in large.inputs
    ]
    parameters = msgspec.json.decode(large.parameters, type=Parameters)
    return RequestHeader(inputs, large.id, parameters, msgspec.json.decode(large.outputs, type=list[OutputHeader]))


def timeout_of(parameters: Mapping[str, Any]) -> float:
    """Return the seconds of a client's parameter ``timeout`` (microseconds); infinity without it, or if it is 0.

    Raises ServeError.
    """
    timeout = parameters.get("timeout", 0)
    if type(timeout) is str and timeout.isascii() and timeout.isdigit() and len(timeout) < 20:
        timeout = int(timeout)
    if type(timeout) is not int or not 0 <= timeout < MAX_TIMEOUT:
        raise ServeError(f"timeout {_short_text(timeout)} is invalid: give microseconds, fewer than {MAX_TIMEOUT}")
    return timeout / 1e6 if timeout else float("inf")


def _short_text(value: object) -> str:
    """Return the start of a value as text for a message; of a very long number only its size."""
    return f"of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 99 else f"{value!r:.40}"


def write(request: Request, model: str, version: str, answers: Sequence[Tensor]) -> tuple[bytes, int]:
    """Return the body of a model version's answer, and the length of its JSON; 0 if it is only JSON.

    Raises TooMuchError for an output that is too large for JSON.
    """
    outputs, tails = [], []
    for answer in answers:
        shape = list(answer.array.shape)
        if request.binary_of.get(answer.name, request.binary):
            tail = to_bytes(answer)
            tails.append(tail)
            outputs.append(OutputBody(answer.name, shape, answer.datatype, {BINARY_SIZE: len(tail)}))
        else:
            check_count(answer.name, answer.array.size)
            outputs.append(OutputBody(answer.name, shape, answer.datatype, {}, to_values(answer)))
    head = _json.encode(AnswerBody(model, version, outputs, request.id))
    return (b"".join((head, *tails)), len(head)) if tails else (head, 0)


def error(text: str) -> bytes:
    """Return the body of a response that refuses a request."""
    return _json.encode({"error": text})
