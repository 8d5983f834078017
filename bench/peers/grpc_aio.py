"""gRPC with bytes as messages, neither packed nor unpacked: grpc.aio on both sides, one channel, an echo."""

from __future__ import annotations

import asyncio

import grpc

from bench.peers import peer

METHOD = ("bench.Echo", "Ask")
OPTIONS = (("grpc.max_receive_message_length", 1 << 25), ("grpc.max_send_message_length", 1 << 25))


def server() -> None:
    """Echo."""
    asyncio.run(_server())


async def _server() -> None:
    async def echo(data: bytes, _context: object) -> bytes:
        return peer.answer(data)

    made = grpc.aio.server(options=OPTIONS)
    service, method = METHOD
    handlers = {method: grpc.unary_unary_rpc_method_handler(echo)}
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
            peer.check_echo(size, number, await call(peer.packed(size, number)))

        await peer.rounds(ask)
