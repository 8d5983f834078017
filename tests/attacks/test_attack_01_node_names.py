"""Names with path or topic characters, far too long, or odd Unicode: refused before a folder or topic is built."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halimede import topics
from halimede.bus import Packet
from halimede.bus.memory import MemoryBus
from halimede.errors import InvalidFieldError
from halimede.messages import LogsReply
from services.lc.app import Config
from services.lc.main import main, parse
from services.lc.paths import NodePaths, Worker
from services.lc.store import NodeStore
from tests.integration.lc_world import World, model, service, world
from tests.simulated import eventually, simulated
from tests.waiting import patience

ROOT = Path(__file__).parents[2]
BAD = [
    "",
    "/",
    "a/b",
    "+",
    "a+",
    "#",
    "a\0b",
    "..",
    "../up",
    ".",
    "a.",
    "-a",
    "A",
    "ä",
    "a\u202eb",
    "ⅷ",
    "a\n",
    "x" * 65_536,
]


@pytest.mark.parametrize("name", BAD)
def test_attack_01_a_node_with_such_a_name_does_not_start(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match="--node"):
        parse(["--node=" + name, "--home", str(tmp_path)])
    with pytest.raises(InvalidFieldError, match="node"):
        _ = Config(name, tmp_path, "").folders
    assert list(tmp_path.iterdir()) == []


def test_attack_01_the_command_says_so_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--node", "../../etc", "--home", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_attack_01_a_process_refuses_it_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "halimede", "lc", "--node", "a+/#b", "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "--node: 'a+/#b' is not accepted" in done.stderr


@pytest.mark.parametrize("name", BAD)
def test_attack_01_no_worker_folder_or_log_is_built_from_such_a_name(name: str, tmp_path: Path) -> None:
    folders = NodePaths(tmp_path, "edge0")
    for worker in (Worker("default", name), Worker(name, "worker")):
        with pytest.raises(InvalidFieldError):
            folders.log(worker)


@pytest.mark.parametrize("name", BAD)
@simulated
async def test_attack_01_a_log_outside_the_workers_folder_is_not_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text("secret")
    replies: list[LogsReply] = []

    async def answered(delivery: Any) -> None:
        replies.append(delivery.body)

    async with world(tmp_path) as node, MemoryBus("operator", node.broker) as operator:
        await operator.subscribe(topics.LOGS_REPLY.filter(client="operator"), answered)
        await operator.wait_connected(patience(10))
        request = topics.LOGS_REQUEST.at(node="edge0", client="operator").text
        for body in ({"namespace": "default", "worker": name}, {"namespace": name, "worker": "w"}):
            packet = Packet(request, msgspec.json.encode(body), response_topic="sedna/logs/reply/operator")
            await operator.send(packet)
        await operator.send(
            Packet(
                request,
                msgspec.json.encode({"namespace": "default", "worker": "none-such"}),
                response_topic="sedna/logs/reply/operator",
            )
        )
        # a name of 64 KiB is refused by the contract's bounds; the others get an answer that says what to do
        await eventually(lambda: len(replies) + node.bus.stats.rejected == 3)
        assert {reply.text for reply in replies} == {""}
        assert "has run on node edge0" in replies[-1].error
        assert all("is not accepted" in reply.error for reply in replies[:-1])


@pytest.mark.parametrize("name", ["a/b", "..", "A", "x" * 300])
@simulated
async def test_attack_01_a_body_that_contradicts_its_topic_is_not_stored(name: str, tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        for body in (model(), service()):
            for field in ("name", "namespace"):
                wrong = {**body, "metadata": {**body["metadata"], field: name}}
                await _insert(node, body, wrong)
        await _insert(node, model(), service(name="small"))
        await _insert(node, model(), {**model(), "metadata": {**model()["metadata"], "uid": ""}})
        await _insert(node, model(), model(generation=2**63))
        await _insert(node, model(), {**model(), "metadata": None})
        await eventually(lambda: node.bus.stats.rejected == 8)
        assert node.bus.stats.failed_handlers == 0
        await asyncio.sleep(2)
        assert node.gm.syncs[-1].holds == []
        assert node.launcher.started == []


@pytest.mark.parametrize("epoch", ["", "-1", "1.5", "one", "\u0661", "9" * 40, "9223372036854775808"])
@simulated
async def test_attack_01_an_epoch_that_is_no_number_is_refused(epoch: str, tmp_path: Path) -> None:
    async with world(tmp_path) as node:
        address = topics.INSERT.at(node="edge0", ns="default", plural="models", name="small")
        await node.gm.bus.publish(address, model(), properties={"epoch": epoch} if epoch else {})
        await node.gm.insert(service())
        await eventually(lambda: len(node.gm.statuses) == 1)
        assert node.bus.stats.failed_handlers == 0


def test_attack_01_names_in_a_store_that_was_tampered_with_put_it_aside(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with NodeStore(path) as store:
        store._db.execute("INSERT INTO resources VALUES ('../x/models/y', 'u', 1, '{}')")
        store._db.commit()
    with NodeStore(path) as store:
        assert store.resources == {}
        assert not store.complete


async def _insert(node: World, at: dict[str, Any], body: Any) -> None:
    meta = at["metadata"]
    plural = "models" if at["kind"] == "Model" else "jointinferenceservices"
    address = topics.INSERT.at(node="edge0", ns=meta["namespace"], plural=plural, name=meta["name"])
    await node.gm.bus.publish(address, body, properties={"epoch": "1"})
