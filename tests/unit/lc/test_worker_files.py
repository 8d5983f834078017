"""Logs: read in parts over the bus, kept small while their writers go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import codec, topics
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBus
from halimede.bus.rpc import RpcClient
from halimede.messages import LogsReply, LogsRequest
from halimede.system.child_process import rotate
from services.lc import worker_files
from services.lc.paths import NodePaths
from services.lc.worker_files import MAX_PART, Logs, read_part
from tests.integration.lc_world import EDGE, World, world
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

WHOLE = 1_048_576


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "worker.log"
    path.write_text("one\nzwei: ä€😀\nthree\n")
    return path


def join(log: Path, offset: int, limit: int) -> tuple[str, int]:
    """Read to the end in parts; return the text, and where it ends."""
    text = ""
    while (part := read_part(log, offset, limit)).text:
        assert part.offset > offset or offset > log.stat().st_size, "only a rotation begins anew"
        text, offset = text + part.text, part.offset
    return text, offset


def test_a_negative_offset_counts_from_the_end_and_one_behind_it_starts_again(log: Path) -> None:
    assert read_part(log, -6, WHOLE).text == "three\n"
    assert read_part(log, -(10**30), WHOLE).text == log.read_text()
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
    assert join(log, end, 4) == ("unread\nafter\n", log.stat().st_size)


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


async def test_the_worst_log_fits_into_a_reply(node: World) -> None:
    path = node.config.folders.log(EDGE)
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(2_000_000))
    reply = await ask(node, LogsRequest(namespace="default", worker=EDGE.name, offset=0, limit=WHOLE))
    assert reply.offset == len(reply.text) == 512 * 1024


async def test_a_reply_stays_below_what_the_broker_takes(node: World) -> None:
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
async def test_whoever_asks_for_a_name_that_is_none_is_told_so(
    node: World, namespace: str, worker: str, tmp_path: Path
) -> None:
    async with MemoryBus("operator", node.broker) as operator:
        await operator.wait_connected(10)
        replies: list[LogsReply] = []

        async def receive(delivery: Delivery[LogsReply]) -> None:
            replies.append(delivery.body)

        await operator.subscribe(topics.LOGS_REPLY.filter(client="operator"), receive)
        to = topics.LOGS_REQUEST.at(node="edge0", client="operator")
        packet = Packet(to.text, b"", response_topic=topics.LOGS_REPLY.at(client="operator").text)
        names = {"node": "edge0", "client": "operator"}
        request = Delivery(to, names, LogsRequest(namespace=namespace, worker=worker), packet)
        await Logs(NodePaths(tmp_path, "edge0"), node.bus)._answer_request(request)
        await eventually(lambda: replies)
        assert "is not accepted" in replies[0].error


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "worker.log"
    path.write_text("".join(f"line {number}: ä€😀\n" for number in range(200)))
    return path


@given(offset=st.integers() | st.integers(-9000, 9000), limit=st.integers(1, 1_048_576) | st.integers(1, 50))
def test_any_part_of_a_log_is_a_part_of_it(long_log: Path, offset: int, limit: int) -> None:
    request = LogsRequest(namespace="default", worker="w", offset=offset, limit=limit)
    read = codec.decode(topics.LOGS_REQUEST, codec.encode(topics.LOGS_REQUEST, request))
    reply = read_part(long_log, read.offset, min(read.limit, MAX_PART))
    whole = long_log.read_bytes()
    assert 0 <= reply.offset <= len(whole)
    # a part may begin within a character, which is then shown as one that cannot be read
    assert reply.text.lstrip("\N{REPLACEMENT CHARACTER}") in whole.decode()
    assert len(reply.text.encode(errors="replace")) <= 3 * limit


@given(start=st.integers(0, 3000), limit=st.integers(4, 3000))
def test_parts_join_without_a_gap(long_log: Path, start: int, limit: int) -> None:
    whole = long_log.read_bytes()
    start = whole.index(b"\n", start) + 1  # where a line begins
    assert join(long_log, start, limit) == (whole[start:].decode(), len(whole))
