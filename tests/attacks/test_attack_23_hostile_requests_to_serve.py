"""Requests that would take a server's memory or its event loop: each is refused clearly, and health goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from halimede.serving.grpc_handlers import InferRequest
from tests.attacks.test_attack_09_pictures_of_65k_pixels_a_side import peak
from tests.serving_world import Server, adds, port_of, server

MEGABYTE = 1024 * 1024
#: what the process may take at its height, with all libraries: some 100 MB of them when it idles, 1,000 to 1,350 MB
#: under the largest requests (the more, the busier the machine: what was freed is returned later)
MOST_MEMORY = 1500 * MEGABYTE
HEALTH_S = 1.0
DIGITS = "9" * 400
INFER = "/v2/models/m/infer"
HEADER = "Inference-Header-Content-Length"
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
LIMITS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


#: asks for health every 50 ms on new connections; a process of its own, which our large requests do not stop. An
#: answer takes its time, or the processor time of the server until it came if that is less: on a busy machine a server
#: waits for the processor, and holds nothing
PROBE = """
import http.client, os, sys, time
def used():
    fields = open(f"/proc/{sys.argv[2]}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
while True:
    for path in ("/healthz", "/v2/health/live"):
        began, before = time.monotonic(), used()
        connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
        connection.request("GET", path)
        assert connection.getresponse().status == 200
        connection.close()
        print(min(time.monotonic() - began, used() - before), flush=True)
        time.sleep(0.05)
"""


@contextlib.contextmanager
def healthy(made: Server, tmp_path: Path, within: float = 1.0) -> Iterator[None]:
    """Check that health is answered in time, in bounded memory and without a traceback, during the block.

    ``within``: the share of answers that have to be there in time; the largest requests keep the machine busy, too.
    """
    answers = tmp_path / "answers"
    with answers.open("w") as file:
        command = [sys.executable, "-c", PROBE, str(port_of(made.http)), str(made.process.pid)]
        probe = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield
    finally:
        ended = probe.poll()
        probe.kill()
        probe.wait()
    assert ended is None, answers.read_text()
    took = sorted(float(line) for line in answers.read_text().splitlines())
    assert took
    assert took[min(int(len(took) * within), len(took) - 1)] < HEALTH_S, took[-5:]
    assert peak(made) < MOST_MEMORY, f"{peak(made) / MEGABYTE:.0f} MB"
    log = made.log.read_text()
    assert "Traceback" not in log, log[-3000:]
    assert '"level": "error"' not in log


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Server]:
    """A server of y = x + 1."""
    async with server(tmp_path / "server", f"m={adds(tmp_path / 'm.onnx', 1)}") as running:
        await running.ready()
        yield running


def tensor(shape: str, data: str, datatype: str = "FP32", more: str = "") -> bytes:
    return f'{{"inputs":[{{"name":"x","shape":{shape},"datatype":"{datatype}","data":{data}{more}}}]}}'.encode()


def repeated(item: str, size: int) -> str:
    return "[" + (item + ",") * (size // (len(item) + 1)) + item + "]"


def timed(value: str) -> bytes:
    return b'{"parameters":{"timeout":%b},"inputs":[]}' % value.encode()


def bodies() -> dict[str, tuple[bytes, int, str]]:
    """Return, by name: body, the status that is right, what the error names."""
    size = b'"parameters":{"binary_data_size":%b}' % DIGITS.encode()
    return {
        "nested lists of 32 MB": (tensor("[1,2]", repeated("[0]", 32 * MEGABYTE)), 413, "more than"),
        "nested lists of 15 MB": (tensor("[1,2]", repeated("[0]", 15 * MEGABYTE)), 400, "has 2 elements"),
        "nested lists that fit": (tensor("[100000,2]", "[" + ",".join(["[0,0]"] * 100_000) + "]"), 200, ""),
        "an answer of too much JSON": (tensor("[3000000,2]", repeated("0", 12_000_000 - 2)), 413, "use its binary"),
        "empty lists": (tensor("[1,2]", repeated("[]", 15 * MEGABYTE)), 400, "has 2 elements"),
        "objects": (tensor("[1,2]", repeated("{}", 15 * MEGABYTE)), 413, "objects"),
        "few objects": (tensor("[1,2]", repeated('{"a":0}', 200_000)), 400, "elements"),
        "empty texts": (tensor("[1,2]", repeated('""', 15 * MEGABYTE), "BYTES"), 413, "send it as binary"),
        "numbers for text": (tensor("[9]", repeated("0", 15 * MEGABYTE), "BYTES"), 400, "is text"),
        "numbers of many digits": (tensor("[1,2]", repeated(f"0.{DIGITS[:20]}e-290", 15 * MEGABYTE)), 400, ""),
        "a huge number": (tensor("[1,2]", f"[{DIGITS},0.5]"), 400, "FP32"),
        "huge parameters": (
            b'{"inputs":[],"parameters":{"a":%b}}' % repeated("[0]", 8 * MEGABYTE).encode(), 413, "parameters",
        ),
        "a shape of a million axes": (tensor(repeated("1", 2 * MEGABYTE), "[0]"), 413, "shapes"),
        "a shape of some axes": (tensor(repeated("1", 20_000), "[0]"), 400, "16 sizes"),
        "depth of 10^5": (b"[" * 100_000, 400, "no inference request"),
        "data of depth 10^5": (tensor("[1,2]", "[" * 100_000 + "]" * 100_000), 400, "no inference request"),
        "data of depth 500": (tensor("[1,2]", "[" * 500 + "0,0" + "]" * 500), 400, "deep"),
        "0 by 10^30": (tensor(f"[0,{10**30}]", "[]"), 400, "shape"),
        "0 by 2^31 by 2^31": (tensor(f"[0,{2**31},{2**31}]", "[]"), 413, "shape"),
        "10^30": (tensor(f"[{10**30}]", "[]"), 400, "shape"),
        "a size of 400 digits": (tensor(f"[{DIGITS}]", "[]"), 400, "shape"),
        "a negative size": (tensor("[-1,2]", "[]"), 400, "shape"),
        "a size that is a bool": (tensor("[true,2]", "[1,2]"), 400, "shape"),
        "no values": (tensor("[0,2]", "[]"), 200, ""),
        "a timeout of 400 digits": (timed(DIGITS), 400, "timeout"),
        "a timeout as text of 400 digits": (timed(f'"{DIGITS}"'), 400, "timeout"),
        "a timeout of other digits": (timed('"\u00b2"'), 400, "timeout"),
        "a timeout of 5000 digits": (timed("9" * 5000), 400, ""),
        "a binary size of 400 digits": (tensor("[1,2]", "0").replace(b'"data":0', size), 400, "binary_data_size"),
        "a header of 400 digits": (b"{}", 400, HEADER),
        "nothing": (b"", 400, "no inference request"),
    }  # fmt: skip


async def test_attack_23_hostile_json_is_refused_clearly(made: Server, tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        with healthy(made, tmp_path):
            for name, (body, status, what) in bodies().items():
                headers = {HEADER: DIGITS} if what == HEADER else {}
                async with session.post(f"{made.http}{INFER}", data=body, headers=headers) as answer:
                    said = await answer.text()
                assert answer.status == status, (name, answer.status, said[:300])
                if answer.status != 200:
                    assert what in json.loads(said)["error"], (name, said[:300])
                    assert len(said) < 1000, name


def message(**more: Any) -> bytes:
    asked = InferRequest(model_name="m")
    asked.inputs.add(**{"name": "x", "datatype": "FP32", "shape": [1, 2], **more})
    return asked.SerializeToString()


def parameter(**value: Any) -> bytes:
    asked = InferRequest(model_name="m", raw_input_contents=[bytes(8)])
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    for name, content in value.items():
        setattr(asked.parameters["timeout"], name, content)
    return asked.SerializeToString()


def nested(depth: int) -> bytes:
    """Return groups within groups of an unknown field."""
    return b"\x4b" * depth + b"\x4c" * depth


INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED


def messages() -> dict[str, tuple[bytes, grpc.StatusCode, str]]:
    """Return, by name: message, the code that is right, what the error names."""
    return {
        "0 by 2^62": (message(shape=[0, 2**62]), INVALID, "shape"),
        "0 by 2^31 by 2^31": (message(shape=[0, 2**31, 2**31]), EXHAUSTED, "shape"),
        "a negative size": (message(shape=[-1, 2]), INVALID, "shape"),
        "a million axes": (message(shape=[1] * MEGABYTE), INVALID, "16 sizes"),
        "typed contents of 16 MB": (message(contents={"fp32_contents": [0.0] * (4 * MEGABYTE)}), EXHAUSTED, "raw"),
        "varints of 7 MB": (
            message(datatype="BOOL", contents={"bool_contents": [True] * (7 * MEGABYTE)}), EXHAUSTED, "raw",
        ),
        "empty texts": (message(datatype="BYTES", contents={"bytes_contents": [b""] * 3_000_000}), EXHAUSTED, "raw"),
        "millions of fields": (b"\x3a\x00" * 8_000_000, EXHAUSTED, "fields"),
        "texts of no bytes": (
            message(datatype="BYTES", shape=[10_000_000]) + b"\x3a\x80\xa4\xe8\x03" + bytes(8_000_000),
            EXHAUSTED, "BYTES",
        ),
        "depth of 10^4": (nested(10_000), INVALID, "no inference request"),
        "depth of 10^5": (nested(100_000), INVALID, "no inference request"),
        "random bytes": (bytes(range(256)) * 1000, INVALID, "no inference request"),
        "a timeout of 400 digits": (parameter(string_param=DIGITS), INVALID, "timeout"),
        "a timeout without end": (parameter(double_param=float("inf")), INVALID, "timeout"),
        "a timeout that is a bool": (parameter(bool_param=True), INVALID, "timeout"),
        "a negative timeout": (parameter(int64_param=-1), INVALID, "timeout"),
        "65 MB": (bytes(65 * MEGABYTE), EXHAUSTED, "larger than max"),
    }  # fmt: skip


async def test_attack_23_hostile_messages_are_refused_clearly(made: Server, tmp_path: Path) -> None:
    async with grpc.aio.insecure_channel(made.grpc, options=LIMITS) as channel:
        infer = channel.unary_unary(MODEL_INFER)
        with healthy(made, tmp_path):
            for name, (data, code, what) in messages().items():
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await infer(data, timeout=60)
                assert refused.value.code() == code, (name, refused.value)
                assert what in (refused.value.details() or ""), (name, refused.value.details())
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert await live(bytes(60 * MEGABYTE), timeout=60) == b"\x08\x01"  # which it does not even read


@pytest.mark.slow
async def test_attack_23_many_large_requests_share_the_memory_that_there_is(made: Server, tmp_path: Path) -> None:
    size = 63 * MEGABYTE
    asked = InferRequest(model_name="m", raw_input_contents=[bytes(size)])
    asked.inputs.add(name="x", datatype="FP32", shape=[size // 8, 2])
    data = asked.SerializeToString()
    lists = tensor("[1,2]", repeated("[0]", 15 * MEGABYTE))
    tensors = {"name": "x", "shape": [size // 8, 2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensors], "parameters": {"binary_data_output": True}}).encode()
    raw = head + bytes(size)
    async with aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:
        options = [*LIMITS, ("grpc.use_local_subchannel_pool", 1)]
        open_channel = stack.enter_async_context
        channels = [await open_channel(grpc.aio.insecure_channel(made.grpc, options=options)) for _ in range(16)]

        async def call(channel: grpc.aio.Channel) -> str:
            try:
                await channel.unary_unary(MODEL_INFER)(data, timeout=120)
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return "OK"

        async def post(body: bytes, headers: dict[str, str]) -> str:
            try:
                async with session.post(f"{made.http}{INFER}", data=body, headers=headers) as answer:
                    await answer.read()
                    if answer.status == 503:
                        assert answer.headers["Retry-After"] == "1"
                    return str(answer.status)
            except aiohttp.ClientConnectionError:
                return "closed"  # it was refused before it was sent

        with healthy(made, tmp_path, within=0.95):
            codes = await asyncio.gather(*map(call, channels))
            assert set(codes) <= {"OK", EXHAUSTED.name}
            assert "OK" in codes
            found = await asyncio.gather(*(post(raw, {HEADER: str(len(head))}) for _ in range(16)))
            assert set(found) <= {"200", "503", "closed"}
            assert "200" in found
            found = await asyncio.gather(*(post(lists, {}) for _ in range(8)))
            assert set(found) <= {"400", "503", "closed"}
            assert "400" in found
        async with session.post(f"{made.http}{INFER}", data=tensor("[1,2]", "[1,2]")) as answer:
            assert (await answer.json())["outputs"][0]["data"] == [2, 3]
