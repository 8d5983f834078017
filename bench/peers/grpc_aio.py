"""gRPC with bytes as messages, neither packed nor unpacked: grpc.aio on both sides, one channel, an echo."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from bench.peers import peer

SERVICE, METHOD = "bench.Peer", "Request"
OPTIONS = (("grpc.max_receive_message_length", 1 << 25), ("grpc.max_send_message_length", 1 << 25))


async def serve(handler: Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]) -> None:
    """Serve one handler of the method until standard input ends."""
    made = grpc.aio.server(options=OPTIONS)
    handlers = {METHOD: grpc.unary_unary_rpc_method_handler(handler)}
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    await peer.serving(port)
    await made.stop(0)


async def send(port: str, request: Callable[[int, int], bytes], check: Callable[[int, int, bytes], None]) -> None:
    """Send requests of the size and number asked for, and check their replies, until standard input ends."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{METHOD}")

        async def ask(size: int, number: int) -> None:
            check(size, number, await call(request(size, number)))

        await peer.rounds(ask)


def server() -> None:
    """Echo."""

    async def echo(body: bytes, _context: grpc.aio.ServicerContext) -> bytes:
        return peer.answer(body)

    asyncio.run(serve(echo))


def client(port: str) -> None:
    """Send and check."""
    asyncio.run(send(port, peer.packed, peer.check_echo))
