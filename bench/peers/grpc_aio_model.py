"""gRPC with the same model behind it: grpc.aio on both sides, bytes as messages, the model run in the handler."""

from __future__ import annotations

import asyncio

import grpc

from bench.peers import peer, plain_model
from bench.peers.grpc_aio import OPTIONS

METHOD = ("bench.Model", "Infer")


def server() -> None:
    """Answer with the model."""
    asyncio.run(_server())


async def _server() -> None:
    model = plain_model.open_model()

    async def infer(body: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            return model.answer(body)
        except plain_model.WrongRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise  # abort does not return

    made = grpc.aio.server(options=OPTIONS)
    service, method = METHOD
    handlers = {method: grpc.unary_unary_rpc_method_handler(infer)}
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    await peer.serving(port)
    await made.stop(0)


def client(port: str) -> None:
    """Send and check."""
    asyncio.run(_client(port))


async def _client(port: str) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        call = channel.unary_unary("/" + "/".join(METHOD))

        async def ask(size: int, number: int) -> None:
            plain_model.check(size, number, await call(plain_model.request(size, number)))

        await peer.rounds(ask)
