"""Fault 15: a local controller killed while it downloads. The next one goes on, verifies, and never has half a model.

The server kills it, in the middle of sending: nothing is asked of the process before, and nothing waits for it.
`make faults` kills it 20 times in 200 MB, the usual tests 6 times in 60 MB.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.lc.paths import NodePaths
from services.lc.store import NodeResource, NodeStore
from tests.faults.control import ROOT
from tests.integration.lc_world import BIG, model
from tests.origins import Origin, serving
from tests.ports import free_port
from tests.waiting import patience, wait_for

SIZE, KILLS = (200_000_000, 20) if os.environ.get("HALIMEDE_FAULTS") == "whole" else (60_000_000, 6)
SEED = 15
PATIENCE = 60.0
#: bytes that the kernel may hold between the server and a process that the machine gives no time
BUFFERED = 12_000_000


class Node:
    """A node that holds one Model, without a broker: it prepares what it holds before it has heard from anybody."""

    def __init__(self, home: Path, spec: dict[str, Any]) -> None:
        self.home, self.folders = home, NodePaths(home, "edge0")
        with NodeStore(self.folders.store) as store:
            store.put(NodeResource(BIG, "u1", 1, model("big", uid="u1", **spec)))

    @property
    def models(self) -> list[Path]:
        return list((self.folders.models / "sha256").glob("*"))

    @property
    def unfinished(self) -> int:
        """Bytes of the part that is here."""
        found = [path for path in (self.folders.models / "parts").glob("*") if "." not in path.name]
        return sum(path.stat().st_size for path in found)

    @contextlib.contextmanager
    def runs(self) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "halimede", "lc", "--node", "edge0", "--home", str(self.home), "--http", "off"]
        command += ["--broker", f"127.0.0.1:{free_port()}", "--fetch-allow", "loopback"]
        with (self.home / "lc.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait(patience(PATIENCE))


def kill_at(origin: Origin, offset: int, process: subprocess.Popen[bytes]) -> None:
    """Have the server kill a process when it gets to an offset, and go on sending."""

    def before(at: int) -> None:
        if at >= offset and process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)

    origin.before = before


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("size", "kills", "named"), [pytest.param(SIZE, KILLS, True, marks=pytest.mark.slow), (SIZE // 3, 2, False)]
)
def test_fault_15_a_download_survives_every_kill(size: int, kills: int, named: bool, tmp_path: Path) -> None:
    body = random.Random(SEED).randbytes(size)
    offsets = sorted(random.Random(SEED + kills).sample(range(size), kills))
    digest = hashlib.sha256(body).hexdigest()
    with serving(body) as origin:
        spec = {"url": f"{origin.url}/big.bin", "format": "bin"} | ({"sha256": digest} if named else {})
        node = Node(tmp_path, spec)
        begun: list[int] = []
        for offset in offsets:
            begun.append(node.unfinished)
            with node.runs() as process:
                kill_at(origin, offset, process)
                assert process.wait(patience(PATIENCE)) == -signal.SIGKILL, (tmp_path / "lc.log").read_text()
            assert node.models == [], "a model that is not whole has its name"
        begun.append(node.unfinished)
        origin.before = lambda _: None
        with node.runs():
            wait_for(lambda: node.models, PATIENCE)
            assert [path.name for path in node.models] == [digest]
            assert hashlib.sha256(node.models[0].read_bytes()).hexdigest() == digest
    asked = [int(handler.headers.get("Range", "bytes=0-")[6:-1]) for handler in origin.asked]
    assert asked == begun, "each went on exactly where the one before it was killed"
    assert begun == sorted(begun)
    assert begun[-1] > offsets[-1] - BUFFERED, "what came before a kill is kept"
