"""A server's process takes new versions while it is asked: nobody is refused, and who is wrong changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from halimede.models import desired_state
from halimede.models.desired_state import Desired, DesiredModel
from tests.scraping import scrape, value
from tests.serving_world import Server, adds, port_of, server, wish
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.slow

BODY = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0, 0]}]}
RATE = 200


class Load:
    """Requests at a steady rate, and what became of them."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, float]] = Counter()
        self.failed: list[str] = []

    @contextlib.asynccontextmanager
    async def on(self, url: str) -> AsyncIterator[aiohttp.ClientSession]:
        """Ask for as long as the block takes."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            asking = group.create_task(self._ask(session, url, group))
            try:
                yield session
            finally:
                asking.cancel()

    async def _ask(self, session: aiohttp.ClientSession, url: str, group: asyncio.TaskGroup) -> None:
        clock = asyncio.get_running_loop()
        due = clock.time()
        while True:
            group.create_task(self._one(session, url))
            due += 1 / RATE
            await asyncio.sleep(max(0, due - clock.time()))

    async def _one(self, session: aiohttp.ClientSession, url: str) -> None:
        try:
            async with session.post(f"{url}/v2/models/m/infer", json=BODY) as answer:
                said = await answer.json()
                if answer.status != 200:
                    self.failed.append(str(said))
                    return
                self.answers[said["model_version"], said["outputs"][0]["data"][0]] += 1
        except aiohttp.ClientError as error:
            self.failed.append(repr(error))


@contextlib.asynccontextmanager
async def serving(folder: Path, first: DesiredModel, **told: str) -> AsyncIterator[tuple[Server, Path]]:
    file = folder / "models.json"
    desired_state.write(file, Desired(models=[first]))
    async with server(folder / "server", "--file", str(file), **told) as made:
        await made.ready()
        yield made, file


async def test_versions_replace_one_another_under_load_and_nobody_is_refused(tmp_path: Path) -> None:
    models = [adds(tmp_path / f"{n}.onnx", n) for n in range(1, 5)]
    load = Load()
    async with serving(tmp_path, wish(models[0], version="1")) as (made, file), load.on(made.http):
        for n in (2, 3, 4):
            desired_state.write(file, Desired(models=[wish(models[n - 1], version=str(n))]))
            await eventually(lambda n=n: load.answers[str(n), n] > 50, 60)
    assert load.failed == []
    assert set(load.answers) == {("1", 1), ("2", 2), ("3", 3), ("4", 4)}, "a version's answer under another's name"


async def test_a_corrupt_version_changes_nothing_but_what_is_told(tmp_path: Path) -> None:
    bad = tmp_path / "2.onnx"
    bad.write_bytes(b"\x08\x08" * 5000)
    load = Load()
    first = wish(adds(tmp_path / "1.onnx", 1), version="1")
    async with serving(tmp_path, first) as (made, file), load.on(made.http) as session:
        desired_state.write(file, Desired(models=[wish(bad, version="2")]))
        await eventually(lambda: made.said("model refused"), 60)
        before = load.answers["1", 1]
        await eventually(lambda: load.answers["1", 1] > before + 50, 60)
        async with session.post(f"{made.http}/v2/repository/index") as reply:
            rows = [(row["version"], row["state"]) for row in await reply.json()]
        assert rows == [("1", "READY"), ("2", "UNAVAILABLE")]
        found = await scrape(session, made.http)
        assert value(found, "halimede_serve_refused_versions_total", model="m") == 1
        assert value(found, "halimede_serve_version_info", model="m", version="1", **{"as": "current"}) == 1
        file.write_text("{")  # nor does a wish that nobody can read
        await eventually(lambda: made.said("desired model not loaded"), 60)
        desired_state.write(file, Desired(models=[wish(adds(tmp_path / "3.onnx", 3), version="3")]))
        await eventually(lambda: load.answers["3", 3] > 10, 60)
    assert load.failed == []


async def test_who_is_told_to_leave_answers_what_it_has_taken(tmp_path: Path) -> None:
    async with serving(tmp_path, wish(adds(tmp_path / "1.onnx", 1), version="1")) as (made, _):
        port = port_of(made.http)

        async def is_closed() -> bool:
            try:
                _, late = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:
                return True
            late.close()
            return False

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = aiohttp.payload.JsonPayload(BODY)._value
        request = "POST /v2/models/m/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n"
        writer.write(f"{request}Content-Length: {len(body)}\r\n\r\n".encode())
        async with asyncio.timeout(patience(30)):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body[:10])
        leaving = asyncio.ensure_future(made.terminate())
        await eventually(is_closed, every_s=0.05)
        writer.write(body[10:])
        async with asyncio.timeout(patience(30)):
            assert b" 200 " in await reader.readline()
        writer.close()
        assert await leaving == 0
