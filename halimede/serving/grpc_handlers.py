"""The protocol over gRPC: the same requests and answers as over REST, in other clothes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory

from halimede import __version__
from halimede.serving import rest_handlers
from halimede.serving.descriptor import FILE
from halimede.serving.errors import ServeError
from halimede.serving.model_repository import Repository
from halimede.serving.rest_codec import MAX_TENSORS, timeout_of
from halimede.serving.tensors import BYTES, Tensor, from_bytes, from_values, to_bytes

SERVICE = "inference.GRPCInferenceService"
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
#: where typed contents hold an element type; the others have none, and travel as bytes
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
#: streams of one connection at a time
STREAMS = 256

Message = Any


def _messages() -> Callable[[str], type[Message]]:
    """Return what finds a message's class by name: in a pool of our own, see ``stubs``."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(FILE)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}"))


message = _messages()
InferRequest, InferResponse = message("ModelInferRequest"), message("ModelInferResponse")


class GrpcHandlers:
    """The service's methods, on a repository."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server is given."""
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=message(f"{name}Request").FromString,
                response_serializer=message(f"{name}Response").SerializeToString,
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

    async def _live(self, _: Message, __: grpc.aio.ServicerContext) -> Message:
        return message("ServerLiveResponse")(live=True)

    async def _ready(self, _: Message, __: grpc.aio.ServicerContext) -> Message:
        return message("ServerReadyResponse")(ready=not self._repository.not_ready())

    async def _server(self, _: Message, __: grpc.aio.ServicerContext) -> Message:
        return message("ServerMetadataResponse")(
            name=rest_handlers.NAME, version=__version__, extensions=rest_handlers.EXTENSIONS
        )

    async def _model_ready(self, request: Message, context: grpc.aio.ServicerContext) -> Message:
        try:
            self._repository.get(request.name).choose(request.version)
        except ServeError as error:
            if error.status != 503:
                await _abort(context, error)
            return message("ModelReadyResponse")(ready=False)
        return message("ModelReadyResponse")(ready=True)

    async def _model(self, request: Message, context: grpc.aio.ServicerContext) -> Message:
        try:
            found = rest_handlers.metadata(self._repository, request.name, request.version)
        except ServeError as error:
            await _abort(context, error)
            raise
        return message("ModelMetadataResponse")(**found)

    async def _infer(self, request: Message, context: grpc.aio.ServicerContext) -> Message:
        try:
            left = min(timeout_of(_parameters(request.parameters)), context.time_remaining() or float("inf"))
            version, answers = await self._repository.infer(
                request.model_name,
                request.model_version,
                tensors_of(request),
                [output.name for output in request.outputs],
                time.monotonic() + left,
            )
        except ServeError as error:
            await _abort(context, error)
            raise
        typed = bool(request.inputs) and not request.raw_input_contents
        return response_of(request, version.version, answers, typed=typed)


def tensors_of(request: Message) -> list[Tensor]:
    """Read a request's inputs: all as bytes, or all typed. Raises ServeError."""
    inputs, raw = request.inputs, request.raw_input_contents
    if len(inputs) > MAX_TENSORS:
        raise ServeError(f"more than {MAX_TENSORS} inputs")
    if raw and len(raw) != len(inputs):
        raise ServeError(f"there are {len(inputs)} inputs and {len(raw)} raw_input_contents: give one each, or none")
    if raw:
        return [from_bytes(i.name, i.datatype, i.shape, data) for i, data in zip(inputs, raw, strict=True)]
    return [_typed(given) for given in inputs]


def _typed(given: Message) -> Tensor:
    name = CONTENTS.get(given.datatype)
    if name is None:
        raise ServeError(f"tensor {given.name[:80]}: {given.datatype[:32]!r} has no typed contents: send it raw")
    return from_values(given.name, given.datatype, given.shape, list(getattr(given.contents, name)))


def response_of(request: Message, version: str, answers: Iterable[Tensor], *, typed: bool) -> Message:
    """Write an answer, in the form that the request has: raw, or typed where every output can be."""
    found = list(answers)
    typed = typed and all(answer.datatype in CONTENTS for answer in found)
    response = InferResponse(model_name=request.model_name, model_version=version, id=request.id)
    for answer in found:
        output = response.outputs.add(name=answer.name, datatype=answer.datatype, shape=answer.array.shape)
        if not typed:
            response.raw_output_contents.append(to_bytes(answer))
            continue
        values = answer.array.ravel().tolist()
        if answer.datatype == BYTES:
            values = [value if isinstance(value, bytes) else value.encode() for value in values]
        getattr(output.contents, CONTENTS[answer.datatype]).extend(values)
    return response


def options(max_request: int) -> list[tuple[str, int]]:
    """Return what a server is made with."""
    return [
        ("grpc.max_receive_message_length", max_request),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.so_reuseport", 0),
    ]


def _parameters(given: Mapping[str, Message]) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for name, value in given.items()
    }


async def _abort(context: grpc.aio.ServicerContext, error: ServeError) -> None:
    await context.abort(CODES.get(error.status, grpc.StatusCode.UNKNOWN), str(error))
