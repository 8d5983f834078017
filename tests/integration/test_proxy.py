"""Our own fault proxy, each fault seen on a real TCP echo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.proxy import MOST_UNDER_WAY, Proxy
from tests.waiting import patience

PATIENCE = 30.0
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
    except OSError:
        writer.transport.abort()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        async with Proxy(server.sockets[0].getsockname()[1], seed=4) as proxy:
            yield proxy
        server.close()


async def connect(proxy: Proxy) -> Connection:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def ask(connection: Connection, data: bytes = b"hello", within_s: float = patience(PATIENCE)) -> float:
    """Send, wait for the whole echo, and return the seconds that it took."""
    reader, writer = connection
    began = asyncio.get_running_loop().time()
    writer.write(data)
    async with asyncio.timeout(within_s):
        assert await reader.readexactly(len(data)) == data
    return asyncio.get_running_loop().time() - began


async def fastest(connection: Connection, data: bytes) -> float:
    """Return the seconds of the fastest of some echoes: a busy machine delays one now and then."""
    return min([await ask(connection, data) for _ in range(4)])


async def test_each_direction_has_its_delay_and_healing_hurries_up_what_waits(proxy: Proxy) -> None:
    connection = await connect(proxy)
    proxy.delay(0.2, 0.1)
    assert await ask(connection) >= 0.3
    proxy.delay(0.1)
    assert await ask(connection) >= 0.2
    proxy.delay(3600)
    waiting = asyncio.create_task(ask(connection))
    await asyncio.sleep(0.1)
    proxy.heal()
    await waiting


async def test_delayed_bytes_are_under_way_together(proxy: Proxy) -> None:
    connection = await connect(proxy)
    proxy.delay(0.3)
    began = asyncio.get_running_loop().time()
    for _ in range(20):
        connection[1].write(b"x")
        await asyncio.sleep(0.01)
    async with asyncio.timeout(patience(PATIENCE)):
        await connection[0].readexactly(20)
    assert 0.6 <= asyncio.get_running_loop().time() - began < 12  # one after the other it would be twelve


async def test_loss_stalls_and_loses_nothing(proxy: Proxy) -> None:
    connection = await connect(proxy)
    proxy.lose(0.2, rto_s=0.05)
    data = bytes(range(256)) * 600
    # about a hundred segments each way
    assert await ask(connection, data) >= 10 * 0.05


async def test_a_shared_line_is_as_fast_for_all_together_and_full_windows_hold_nobody_up_for_long(proxy: Proxy) -> None:
    first, second, small = [await connect(proxy) for _ in range(3)]
    proxy.share(50_000, window=5_000)
    for each in (first, second, small):
        await ask(each)
    bulk = [asyncio.create_task(ask(each, bytes(20_000))) for each in (first, second)]
    await asyncio.sleep(0.1)
    await ask(small)
    # it waits behind two windows, not behind all that the others have
    assert not any(task.done() for task in bulk)
    assert max(await asyncio.gather(*bulk)) >= 0.8
    proxy.share(50_000, window=5_000)
    assert await fastest(first, bytes(20_000)) < 0.8


async def test_what_is_under_way_is_bounded_and_holds_the_sender_back(proxy: Proxy) -> None:
    _, writer = connection = await connect(proxy)
    proxy.share(1, window=MOST_UNDER_WAY)
    total = 64 * 1024 * 1024
    writer.write(bytes(total))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await writer.drain()
    assert MOST_UNDER_WAY <= proxy.under_way <= MOST_UNDER_WAY + 65536
    proxy.heal()
    async with asyncio.timeout(patience(PATIENCE)):
        assert len(await connection[0].readexactly(total)) == total
