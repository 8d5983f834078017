"""gRPC with the same model behind it: grpc.aio on both sides, bytes as messages, the model run in the handler."""

from __future__ import annotations

import asyncio

import grpc

from bench.peers import grpc_aio, plain_model


def server() -> None:
    """Answer with the model."""
    model = plain_model.open_model()

    async def infer(body: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            return model.answer(body)
        except plain_model.WrongRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise  # abort does not return

    asyncio.run(grpc_aio.serve(infer))


def client(port: str) -> None:
    """Send and check."""
    asyncio.run(grpc_aio.send(port, plain_model.request, plain_model.check))
