"""Logs: read in parts over the bus, kept small while their writers go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBus
from halimede.bus.rpc import RpcClient
from halimede.messages import LogsReply, LogsRequest
from halimede.system.child_process import rotate
from services.lc import worker_files
from services.lc.paths import NodePaths
from services.lc.worker_files import Logs, read_part
from tests.integration.lc_world import EDGE, World, world
from tests.simulated import eventually, simulated

WHOLE = 1_048_576


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "worker.log"
    path.write_text("one\nzwei: ä€😀\nthree\n")
    return path


def test_parts_join_to_the_whole_whatever_their_size(log: Path) -> None:
    for limit in (4, 5, 7, 100):
        text, offset = "", 0
        while part := read_part(log, offset, limit).text:
            text, offset = text + part, read_part(log, offset, limit).offset
        assert text == log.read_text()


def test_a_negative_offset_counts_from_the_end(log: Path) -> None:
    assert read_part(log, -6, WHOLE).text == "three\n"
    assert read_part(log, -(10**30), WHOLE).text == log.read_text()


def test_an_offset_behind_the_end_starts_again(log: Path) -> None:
    assert read_part(log, 10**30, WHOLE) == LogsReply(text=log.read_text(), offset=log.stat().st_size)


def test_at_the_end_there_is_nothing_until_there_is_more(log: Path) -> None:
    end = read_part(log, 0, WHOLE).offset
    assert read_part(log, end, WHOLE) == LogsReply(offset=end)
    with log.open("a") as file:
        file.write("four\n")
    assert read_part(log, end, WHOLE).text == "four\n"


def test_bytes_that_are_no_text_do_no_harm(log: Path) -> None:
    log.write_bytes(b"\xff\xfe\0ok\n")
    assert read_part(log, 0, WHOLE).text == "��\0ok\n"


def test_a_writer_goes_on_in_an_emptied_log(log: Path) -> None:
    with log.open("ab", buffering=0) as writer:
        writer.write(b"before\n")
        rotate(log)
        writer.write(b"after\n")
    assert log.read_text() == "after\n"
    assert log.with_name("worker.log.1").read_text().endswith("before\n")


def test_a_reader_that_was_behind_at_a_rotation_misses_nothing(log: Path) -> None:
    with log.open("ab", buffering=0) as writer:
        end = read_part(log, 0, WHOLE).offset
        writer.write(b"unread\n")
        rotate(log)
        writer.write(b"after\n")
    text, offset = "", end
    while (part := read_part(log, offset, 4)).text:
        text, offset = text + part.text, part.offset
    assert text == "unread\nafter\n"
    assert offset == log.stat().st_size


@simulated
async def test_a_log_that_has_grown_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_files, "MAX_LOG", 100)
    path = tmp_path / "nodes/edge0/workers/default/w/worker.log"
    path.parent.mkdir(parents=True)
    path.write_text("x" * 101)
    async with world(tmp_path):
        await eventually(lambda: path.stat().st_size == 0)
        path.write_text("y" * 200)
        await eventually(lambda: path.with_name("worker.log.1").read_text() == "y" * 200)


async def ask(node: World, request: LogsRequest) -> LogsReply:
    async with MemoryBus("operator", node.broker) as operator:
        asking: RpcClient[LogsReply] = RpcClient(operator, topics.LOGS_REPLY.at(client="operator"))
        await asking.start()
        await operator.wait_connected(10)
        return (await asking.ask(topics.LOGS_REQUEST.at(node="edge0", client="operator"), request, timeout_s=10)).body


@simulated
async def test_the_worst_log_fits_into_a_reply(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        path = node.config.folders.log(EDGE)
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(2_000_000))
        reply = await ask(node, LogsRequest(namespace="default", worker=EDGE.name, offset=0, limit=WHOLE))
        assert reply.offset == len(reply.text) == 512 * 1024


@simulated
async def test_a_reply_stays_below_what_the_broker_takes(tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        node.broker.max_packet = 20_000
        node.bus.cut()
        node.bus.heal()
        await asyncio.sleep(10)
        path = node.config.folders.log(EDGE)
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(2_000_000))
        reply = await ask(node, LogsRequest(namespace="default", worker=EDGE.name, offset=0))
        assert 1000 < len(reply.text) < 20_000 / 6


@pytest.mark.parametrize(("namespace", "worker"), [("default", "../../etc"), ("default", "Upper"), ("a/b", "w")])
@simulated
async def test_whoever_asks_for_a_name_that_is_none_is_told_so(namespace: str, worker: str, tmp_path: Path) -> None:
    async with world(tmp_path) as node, MemoryBus("operator", node.broker) as operator:
        await operator.wait_connected(10)
        replies: list[LogsReply] = []

        async def receive(delivery: Delivery[LogsReply]) -> None:
            replies.append(delivery.body)

        await operator.subscribe(topics.LOGS_REPLY.filter(client="operator"), receive)
        to = topics.LOGS_REQUEST.at(node="edge0", client="operator")
        packet = Packet(to.text, b"", response_topic=topics.LOGS_REPLY.at(client="operator").text)
        names = {"node": "edge0", "client": "operator"}
        request = Delivery(to, names, LogsRequest(namespace=namespace, worker=worker), packet)
        await Logs(NodePaths(tmp_path, "edge0"), node.bus)._requested(request)
        await eventually(lambda: replies)
        assert "is not accepted" in replies[0].error
