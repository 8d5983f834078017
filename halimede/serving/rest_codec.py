"""The protocol over REST, without a server: bodies to requests, answers to bodies.

A body is JSON, and may be followed by tensors as bytes (the binary tensor extension): the header
``Inference-Header-Content-Length`` says where they begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from halimede.serving.errors import ServeError, TooMuchError
from halimede.serving.tensors import Tensor, from_bytes, from_values, to_bytes, to_values

BINARY_SIZE = "binary_data_size"
#: bytes of the JSON part: as lists of numbers it takes ten times its size, and large tensors have a better form
MAX_JSON = 32 * 1024 * 1024
MAX_TENSORS = 256
JSON = "application/json"
BINARY = "application/octet-stream"
HEADER_LENGTH = "Inference-Header-Content-Length"

Parameters = dict[str, Any]


class TensorHeader(Struct):
    """An input, or an output of an answer, as JSON has it."""

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = {}
    data: Any = UNSET


class OutputHeader(Struct):
    """An output that is asked for."""

    name: str
    parameters: Parameters = {}


class RequestHeader(Struct):
    """A request's JSON."""

    inputs: list[TensorHeader]
    id: str = ""
    parameters: Parameters = {}
    outputs: list[OutputHeader] = []


class OutputBody(Struct, omit_defaults=True):
    """An output of an answer."""

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters = {}
    data: list[Any] | UnsetType = UNSET


class AnswerBody(Struct, omit_defaults=True):
    """An answer's JSON."""

    model_name: str
    model_version: str
    outputs: list[OutputBody]
    id: str = ""


@dataclass(slots=True)
class Request:
    """One request: tensors in, names of the outputs wanted (none: all), and which of them as bytes."""

    id: str
    tensors: list[Tensor]
    wanted: list[str]
    binary: bool
    binary_of: dict[str, bool]
    timeout_s: float


_requests = msgspec.json.Decoder(RequestHeader)
_json = msgspec.json.Encoder()


def parse(body: bytes, header_length: str | None) -> Request:
    """Read a request's body. Raises ServeError."""
    end = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and len(header_length) <= 12):
            raise ServeError(f"{HEADER_LENGTH} is {header_length[:32]!r}: give the JSON part's bytes")
        end = int(header_length)
        if end > len(body):
            raise ServeError(f"{HEADER_LENGTH} is {end}, and the body has {len(body)} bytes")
    if end > MAX_JSON:
        raise TooMuchError(f"{end} bytes of JSON are more than {MAX_JSON}: send large tensors as binary data")
    view = memoryview(body)
    try:
        header = _requests.decode(view[:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServeError(f"the body is no inference request: {error}") from error
    if len(header.inputs) > MAX_TENSORS or len(header.outputs) > MAX_TENSORS:
        raise TooMuchError(f"more than {MAX_TENSORS} tensors")
    tensors, at = [], end
    for given in header.inputs:
        size = given.parameters.get(BINARY_SIZE) if given.parameters else None
        if size is None:
            if given.data is UNSET:
                raise ServeError(f"tensor {given.name[:80]}: it has neither data nor a {BINARY_SIZE}")
            tensors.append(from_values(given.name, given.datatype, given.shape, given.data))
            continue
        if given.data is not UNSET:
            raise ServeError(f"tensor {given.name[:80]}: it has both data and a {BINARY_SIZE}")
        if type(size) is not int or size < 0 or at + size > len(body):
            raise ServeError(f"tensor {given.name[:80]}: {BINARY_SIZE} {size!r:.40} goes beyond the body's end")
        tensors.append(from_bytes(given.name, given.datatype, given.shape, view[at : at + size]))
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


def timeout_of(parameters: Mapping[str, Any]) -> float:
    """Return the seconds that a client's ``timeout`` (microseconds) gives; infinity without one."""
    given = parameters.get("timeout", 0)
    if type(given) is str and given.isdigit() and len(given) < 20:
        given = int(given)
    if type(given) is not int or given < 0:
        raise ServeError(f"timeout {given!r:.40} is none: give microseconds")
    return given / 1e6 if given else float("inf")


def write(request: Request, model: str, version: str, answers: Sequence[Tensor]) -> tuple[list[bytes], int]:
    """Return an answer's body in parts; and the length of its JSON, 0 where there is nothing but JSON."""
    outputs, tails = [], []
    for answer in answers:
        shape = list(answer.array.shape)
        if request.binary_of.get(answer.name, request.binary):
            tail = to_bytes(answer)
            tails.append(tail)
            outputs.append(OutputBody(answer.name, shape, answer.datatype, {BINARY_SIZE: len(tail)}))
        else:
            outputs.append(OutputBody(answer.name, shape, answer.datatype, {}, to_values(answer)))
    head = _json.encode(AnswerBody(model, version, outputs, request.id))
    return [head, *tails], len(head) if tails else 0


def error(text: str) -> bytes:
    """Return the body of a refusal."""
    return _json.encode({"error": text})
