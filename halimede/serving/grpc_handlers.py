"""The Open Inference Protocol over gRPC: the same requests and answers as over REST.

``GrpcHandlers`` has the methods of the service. The other functions decode and encode its messages, within the server's
limits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from halimede import __version__
from halimede.serving import rest_handlers
from halimede.serving.descriptor import FILE
from halimede.serving.errors import OverloadedError, ServeError, TooMuchError, UnauthorizedError
from halimede.serving.model_repository import Repository
from halimede.serving.request_budget import SMALL, Charge, RequestBudget
from halimede.serving.rest_codec import Request, timeout_of
from halimede.serving.server_access import OPEN_ACCESS, UNAUTHORIZED, ServerAccess
from halimede.serving.tensors import (
    BYTES,
    MAX_TENSORS,
    Tensor,
    check_count,
    check_inputs,
    from_bytes,
    from_values,
    to_bytes,
)

#: full name of the service
SERVICE = "inference.GRPCInferenceService"
#: codes by the HTTP status of a ServeError
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
#: fields of the typed contents, by element type; other types travel only as bytes
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
#: most streams of one connection, and most requests of all connections
STREAMS, REQUESTS = 256, 1024
#: bytes of a message that arrive before a method reads it
LOOKAHEAD = 64 * 1024
#: most bytes of a message without its raw contents, and the most bytes of memory for each of them while it is parsed
MAX_TYPED, COPIES = 8 * 1024 * 1024, 32
#: most fields at the outermost level of a message
MAX_FIELDS = 4 * MAX_TENSORS
#: protobuf's tag of the field raw_input_contents, and the wire type of all fields of a request
RAW_TAG, LENGTH_DELIMITED = 7 << 3 | 2, 2
#: the tag of the field raw_output_contents
RAW_OUTPUT_TAG = bytes([6 << 3 | 2])

#: a protobuf message; their classes are made at run time
Message = Any


def _messages() -> Callable[[str], type[Message]]:
    """Return a function that returns the class of a message by its name.

    The classes are in a separate pool, so that the process may contain another client or server of the protocol.
    """
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(FILE)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}"))


#: returns the class of a protobuf message by its name in the protocol
message = _messages()
InferRequest, InferResponse = message("ModelInferRequest"), message("ModelInferResponse")


class GrpcHandlers:
    """The service's methods, which answer with the models of a repository.

    A method reads its request itself, when the budget allows it. A method that needs nothing of its request leaves it
    unread: so health is answered under any load. A ServeError ends a call with one of CODES. ``access``: the token that
    clients must send; health needs none.
    """

    def __init__(self, repository: Repository, budget: RequestBudget, access: ServerAccess = OPEN_ACCESS) -> None:
        self._repository = repository
        self._access = access
        self._budget = budget

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server of ``grpc.aio`` needs to answer calls of the service."""
        methods = {
            name: grpc.stream_unary_rpc_method_handler(
                method,
                response_serializer=None if name == "ModelInfer" else message(f"{name}Response").SerializeToString,
            )
            for name, method in (
                ("ServerLive", self._live),
                ("ServerReady", self._ready),
                ("ModelReady", self._model_ready),
                ("ServerMetadata", self._server),
                ("ModelMetadata", self._model),
                ("ModelInfer", self._infer),
            )
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _live(self, _: object, __: grpc.aio.ServicerContext) -> Message:
        """Answer ServerLive: a server that answers is live."""
        return message("ServerLiveResponse")(live=True)

    async def _ready(self, _: object, __: grpc.aio.ServicerContext) -> Message:
        """Answer ServerReady: true once every model has a version in use."""
        return message("ServerReadyResponse")(ready=not self._repository.not_ready())

    async def _server(self, _: object, context: grpc.aio.ServicerContext) -> Message:
        """Answer ServerMetadata. Ends the call with an error status if the caller is not let in."""
        try:
            self._admit(context)
        except ServeError as error:
            await _abort(context, error)
        return message("ServerMetadataResponse")(
            name=rest_handlers.NAME, version=__version__, extensions=rest_handlers.EXTENSIONS
        )

    async def _model_ready(self, _: object, context: grpc.aio.ServicerContext) -> Message:
        """Answer ModelReady: false while the model has no usable version. Ends the call if the model is unknown."""
        try:
            request = _parse_model_request(await self._receive(context))
            self._repository.get(request.name).choose(request.version)
        except ServeError as error:
            if error.status != 503 or isinstance(error, OverloadedError):
                await _abort(context, error)
            return message("ModelReadyResponse")(ready=False)
        return message("ModelReadyResponse")(ready=True)

    async def _model(self, _: object, context: grpc.aio.ServicerContext) -> Message:
        """Answer ModelMetadata with inputs and outputs. Ends the call with an error status if the model is unknown."""
        try:
            request = _parse_model_request(await self._receive(context))
            fields = rest_handlers.metadata(self._repository, request.name, request.version)
        except ServeError as error:
            await _abort(context, error)
            raise
        return message("ModelMetadataResponse")(**fields)

    async def _infer(self, _: object, context: grpc.aio.ServicerContext) -> bytes:
        """Answer ModelInfer with the encoded response. Ends the call with an error status if the request fails."""
        try:
            return await self._answer(context)
        except ServeError as error:
            refused = error.with_traceback(None)  # a call keeps its error, and its traceback the received message
        await _abort(context, refused)
        raise refused

    async def _answer(self, context: grpc.aio.ServicerContext) -> bytes:
        """Receive an inference request and return its encoded answer. Raises ServeError."""
        with Charge(self._budget) as charge:
            data = await self._receive(context)
            charge.take(len(data))
            if len(data) <= SMALL:
                request = parse(data, ())
            else:
                typed, raw = parts_of(data)
                request = await charge.convert(len(typed), COPIES * len(typed), lambda: parse(typed, raw))
            charge.take_tensors(request.tensors, len(data))
            remaining = context.time_remaining()
            timeout_s = request.timeout_s if remaining is None else min(request.timeout_s, remaining)
            used, answers = await self._repository.infer(
                request.model, request.version, request.tensors, request.outputs, time.monotonic() + timeout_s
            )
            size = charge.take_tensors(answers)
            if size <= SMALL:
                return write(request, used.version, answers)
            answer = await charge.convert(size, size, lambda: write(request, used.version, answers))
        if len(answer) > SMALL:  # the answer stays in memory until the client has read it
            sent = Charge(self._budget)
            sent.take(len(answer))
            context.add_done_callback(sent.release)
        return answer

    def _admit(self, context: grpc.aio.ServicerContext) -> None:
        """Raise UnauthorizedError for a client without the token."""
        if self._access.token:
            shown = dict(context.invocation_metadata() or ()).get("authorization", "")
            if not self._access.is_admitted(str(shown)):
                raise UnauthorizedError(UNAUTHORIZED)

    async def _receive(self, context: grpc.aio.ServicerContext) -> bytes:
        """Return the message of a call, from a client with the token. Raises ServeError."""
        self._admit(context)
        data: object = await self._budget.receive(context.read)
        if not isinstance(data, bytes):
            raise ServeError("there is no message, or one that is too large")
        return data


@dataclass(slots=True)
class InferenceRequest(Request):
    """A ``Request`` with the names of its model and of the version (empty: any)."""

    model: str = ""
    version: str = ""


def parts_of(data: bytes) -> tuple[bytes, list[memoryview]]:
    """Return an inference request without its raw contents, and views of the raw contents. Raises ServeError."""
    view, typed, raw = memoryview(data), [], []
    at = size = 0
    while at < len(data):
        tag, begin = _varint(data, at)
        length, begin = _varint(data, begin)
        end = begin + length
        if tag & 7 != LENGTH_DELIMITED or end > len(data):
            raise ServeError("the message is no inference request")
        if tag == RAW_TAG:
            raw.append(view[begin:end])
        else:
            typed.append(view[at:end])
            size += end - at
        at = end
        if len(typed) + len(raw) > MAX_FIELDS:
            raise TooMuchError(f"the message has more than {MAX_FIELDS} fields")
    if size > MAX_TYPED:
        raise TooMuchError(f"{size} bytes besides raw_input_contents are more than {MAX_TYPED}: send tensors raw")
    return b"".join(typed), raw


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint of up to five bytes at the offset ``at``, and the offset after it. Raises ServeError."""
    value = 0
    for shift, byte in enumerate(data[at : at + 5]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    raise ServeError("the message is no inference request")


def parse(data: bytes, raw: Sequence[memoryview]) -> InferenceRequest:
    """Decode an inference request. ``raw``: its raw contents, if they are not in ``data``. Raises ServeError."""
    try:
        request = InferRequest.FromString(data)
    except DecodeError as error:
        raise ServeError(f"the message is no inference request: {error}") from error
    if len(request.outputs) > MAX_TENSORS:
        raise TooMuchError(f"more than {MAX_TENSORS} outputs")
    contents = raw or request.raw_input_contents
    return InferenceRequest(
        id=request.id,
        tensors=tensors_of(request, contents),
        outputs=[output.name for output in request.outputs],
        binary=bool(contents) or not request.inputs,  # without inputs the form of the answer is raw
        binary_of={},
        timeout_s=timeout_of(_parameters(request.parameters)) if request.parameters else math.inf,
        model=request.model_name,
        version=request.model_version,
    )


def _parse_model_request(data: bytes) -> Message:
    """Decode a request for a model's readiness or metadata, which have the same fields. Raises ServeError."""
    if len(data) > SMALL:
        raise TooMuchError(f"a message of {len(data)} bytes is more than {SMALL}")
    try:
        return message("ModelReadyRequest").FromString(data)
    except DecodeError as error:
        raise ServeError(f"the message names no model: {error}") from error


def tensors_of(request: Message, raw: Sequence[bytes | memoryview]) -> list[Tensor]:
    """Return the inputs of a request, from ``raw`` contents if there are any, else from typed ones.

    Raises ServeError.
    """
    inputs = request.inputs
    check_inputs(inputs)
    if raw and len(raw) != len(inputs):
        raise ServeError(f"there are {len(inputs)} inputs and {len(raw)} raw_input_contents: give one each, or none")
    if raw:
        return [from_bytes(i.name, i.datatype, list(i.shape), data) for i, data in zip(inputs, raw, strict=True)]
    return [_typed_tensor(header) for header in inputs]


def _typed_tensor(header: Message) -> Tensor:
    """Return an input with its typed contents. Raises ServeError."""
    name = CONTENTS.get(header.datatype)
    if name is None:
        raise ServeError(f"tensor {header.name[:80]}: {header.datatype[:32]!r} has no typed contents: send it raw")
    values = getattr(header.contents, name)
    check_count(header.name, len(values))
    return from_values(header.name, header.datatype, list(header.shape), list(values))


def write(request: InferenceRequest, version: str, answers: Sequence[Tensor]) -> bytes:
    """Return the encoded answer of a model's version, in the form of its request. Raises ServeError.

    The form is typed contents if the request had them and every output has a type for it, otherwise raw contents.
    """
    typed = not request.binary and all(answer.datatype in CONTENTS for answer in answers)
    response = InferResponse(model_name=request.model, model_version=version, id=request.id)
    raw: list[bytes | memoryview] = []
    for answer in answers:
        output = response.outputs.add(name=answer.name, datatype=answer.datatype, shape=answer.array.shape)
        if not typed:
            data = to_bytes(answer)
            raw.append(data)
            continue
        check_count(answer.name, answer.array.size)
        values = answer.array.ravel().tolist()
        if answer.datatype == BYTES:
            values = [value if isinstance(value, bytes) else value.encode() for value in values]
        getattr(output.contents, CONTENTS[answer.datatype]).extend(values)
    if all(isinstance(data, bytes) for data in raw):
        response.raw_output_contents.extend(raw)
        return bytes(response.SerializeToString())
    parts = [part for data in raw for part in (RAW_OUTPUT_TAG, _length(len(data)), data)]
    return b"".join((response.SerializeToString(), *parts))  # the order of fields in a message is free


def _length(size: int) -> bytes:
    """Return a number as protobuf's varint."""
    written = bytearray()
    while size > 0x7F:
        written.append(size & 0x7F | 0x80)
        size >>= 7
    written.append(size)
    return bytes(written)


def options(max_request: int) -> list[tuple[str, int]]:
    """Return the options of a gRPC server. ``max_request``: most bytes of a message."""
    return [
        ("grpc.max_receive_message_length", max_request),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.so_reuseport", 0),
        # unread data waits at its client; otherwise the window grows to the network's capacity
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", LOOKAHEAD),
    ]


def _parameters(parameters: Mapping[str, Message]) -> dict[str, Any]:
    """Return parameters as values of Python; empty text for one without a value."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param")
        for name, value in parameters.items()
    }


async def _abort(context: grpc.aio.ServicerContext, error: ServeError) -> None:
    """End a call with an error. Raises what ``grpc`` raises for that, always."""
    code = CODES.get(error.status, grpc.StatusCode.UNKNOWN)
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED if isinstance(error, OverloadedError) else code, str(error))
