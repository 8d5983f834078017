"""Small ONNX models, and servers of them: in this process, or as processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import onnx
from onnx import TensorProto, helper

from halimede.messages.file_facts import Trial
from halimede.models.desired_state import DesiredModel
from halimede.serving.model_repository import Repository, RepositorySettings
from halimede.serving.tensors import Tensor
from tests.graphs import FLOAT, write_graph
from tests.programs import started
from tests.simulated import eventually
from tests.waiting import patience

ROOT = Path(__file__).parents[1]
START_S = 60.0


def adds(path: Path, number: float, columns: int = 2) -> Path:
    """Write a model that adds a number: y = x + number, rows of two."""
    shape = ["N", columns]
    constant = {"c": np.full(columns, number, np.float32)}
    return write_graph(path, [("Add", ["x", "c"], ["y"], {})], {"x": (FLOAT, shape)}, {"y": (FLOAT, shape)}, constant)


def echo(path: Path, kind: int, shape: Sequence[Any] = ("N", 2)) -> Path:
    """Write a model that answers with its input, of any element type."""
    return write_graph(path, [("Identity", ["x"], ["y"], {})], {"x": (kind, shape)}, {"y": (kind, shape)})


def counts(path: Path) -> Path:
    """Write a model that counts to n, however long that takes."""
    value, flag = helper.make_tensor_value_info, TensorProto.BOOL
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["y", "one"], ["z"])],
        "body",
        [value("i", TensorProto.INT64, []), value("go", flag, []), value("y", FLOAT, [])],
        [value("on", flag, []), value("z", FLOAT, [])],
        [onnx.numpy_helper.from_array(np.array(1, np.float32), "one")],
    )
    loop = ("Loop", ["n", "", "zero"], ["y_"], {"body": body})
    zero = {"zero": np.array(0, np.float32)}
    return write_graph(path, [loop], {"n": (TensorProto.INT64, [])}, {"y_": (FLOAT, [])}, zero)


def wish(path: Path, name: str = "m", version: str = "", percent: int = 100, **more: Any) -> DesiredModel:
    return DesiredModel(name=name, path=str(path), version=version, canary_percent=percent, **more)


def floats(rows: Sequence[Sequence[float]], name: str = "x") -> Tensor:
    """Return a tensor of single precision."""
    return Tensor(name, "FP32", np.array(rows, np.float32))


async def untried(_: Path, __: str) -> Trial:
    """Take every model without a trial: quicker, where the trial is not the point."""
    return Trial(skipped=True)


@contextlib.asynccontextmanager
async def repository(*, tried: bool = False, **settings: Any) -> AsyncIterator[Repository]:
    attempt = {} if tried else {"attempt": untried}
    async with Repository(RepositorySettings(**settings), **attempt) as running:
        yield running


class Server:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log
        self.http = self.grpc = ""

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == event]

    def listens(self, event: str) -> bool:
        """Whether it says where it is."""
        assert self.process.poll() is None, self.log.read_text()
        if said := self.said(event):
            self.http, self.grpc = said[0]["http"], said[0].get("grpc", "")
        return bool(said)

    async def ready(self, path: str = "/readyz") -> None:
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                assert self.process.poll() is None, self.log.read_text()
                async with session.get(f"{self.http}{path}") as answer:
                    return answer.status == 200

            await eventually(is_ready, START_S, 0.1)

    async def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, patience(START_S))


@contextlib.asynccontextmanager
async def server(
    folder: Path, *arguments: str, program: str = "serve", event: str = "serving", **told: str
) -> AsyncIterator[Server]:
    """Run a server (or router) on free ports until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{event}-{len(list(folder.iterdir()))}.log"
    # the authorities of the internet, where no test goes, are not read
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "SSL_CERT_FILE": os.devnull}
    environment = {**own, "HALIMEDE_LOG": "json", "GRACE_S": "10", **told}
    ports = ["--http", "127.0.0.1:0", *([] if event == "routing" else ["--grpc", "127.0.0.1:0"])]
    command = (sys.executable, "-m", "halimede", program, *arguments, *ports)
    with started(*command, log=log, cwd=ROOT, env=environment) as process:
        made = Server(process, log)
        await eventually(lambda: made.listens(event), START_S)
        yield made


def port_of(url: str) -> int:
    found = re.search(r":(\d+)$", url)
    assert found, url
    return int(found[1])
