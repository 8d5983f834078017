"""Names with ``/ + # NUL ..``, 64 KiB long or in odd Unicode are refused before any topic, folder or path is built."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halimede import topics
from halimede.bus import Packet
from halimede.bus.memory import MemoryBus
from halimede.errors import InvalidFieldError
from halimede.messages import LogsReply
from halimede.names import check_label, check_name
from halimede.topics import CONTRACT
from services.lc.app import Config
from services.lc.main import parse
from services.lc.paths import NodePaths, Worker
from services.lc.store import NodeStore
from tests.inbox import Inbox
from tests.integration.lc_world import World, model, service, world
from tests.programs import run_python
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.simulated

ROOT = Path(__file__).parents[2]

HOSTILE = [
    "", "/", "a/b", "+", "a+", "#", "a/#", "\0", "a\0b", ".", "..", "../x", "a..b", "a.", ".a", "-a", "a-", "$SYS",
    "$share", "A", "a b", "a\n", "\na", "a\r\nb", "a" * 65_536, "a." * 32_768 + "a",
    "\u0430",  # Cyrillic a
    "\uff41",  # full-width a
    "e\u0301",  # with a combining accent
    "\u202ea",  # right-to-left override
    "\ud800",  # a lone surrogate
    "a\u200b",  # zero-width space
    "\u0661",  # a digit, but not one of ours
    "ä", "ⅷ", "%2e%2e", "a\\b", "~", "a;b",
]  # fmt: skip
each_name = pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:12]))


@each_name
def test_attack_01_no_check_lets_it_pass(name: str) -> None:
    for check in (check_label, check_name):
        with pytest.raises(InvalidFieldError) as caught:
            check("metadata.name", name)
        assert len(str(caught.value)) < 500


@each_name
def test_attack_01_no_topic_or_filter_is_built(name: str) -> None:
    for topic in CONTRACT:
        for field in topic.fields:
            names = {**dict.fromkeys(topic.fields, "ok"), field: name}
            with pytest.raises(InvalidFieldError):
                topic.at(**names)
            with pytest.raises(InvalidFieldError):
                topic.filter(**names)
            assert topic.parse(topic.template.format_map(names)) is None
        if name:  # an empty group means: not shared
            with pytest.raises(InvalidFieldError):
                topic.filter(group=name)


@each_name
def test_attack_01_a_node_with_such_a_name_does_not_start(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match="--node"):
        parse(["--node=" + name, "--home", str(tmp_path)])
    with pytest.raises(InvalidFieldError, match="node"):
        _ = Config(name, tmp_path, "").folders
    assert list(tmp_path.iterdir()) == []


def test_attack_01_a_process_refuses_it_in_one_line(tmp_path: Path) -> None:
    done = run_python("-m", "halimede", "lc", "--node", "a+/#b", "--home", tmp_path, cwd=ROOT)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--node: 'a+/#b' is not accepted" in done.stderr


@each_name
def test_attack_01_no_worker_folder_or_log_is_built_from_such_a_name(name: str, tmp_path: Path) -> None:
    folders = NodePaths(tmp_path, "edge0")
    for worker in (Worker("default", name), Worker(name, "worker")):
        with pytest.raises(InvalidFieldError):
            folders.log(worker)


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "\ud800"], ids=lambda name: ascii(name[:12]))
async def test_attack_01_a_log_outside_the_workers_folder_is_not_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text("secret")
    replies = Inbox[LogsReply]()
    async with world(tmp_path) as node, MemoryBus("operator", node.broker) as operator:
        await operator.subscribe(topics.LOGS_REPLY.filter(client="operator"), replies)
        await operator.wait_connected(patience(10))
        request = topics.LOGS_REQUEST.at(node="edge0", client="operator").text
        for namespace, worker in (("default", name), (name, "w"), ("default", "none-such")):
            body = msgspec.json.encode({"namespace": namespace, "worker": worker})
            await operator.send(Packet(request, body, response_topic="sedna/logs/reply/operator"))
        # a name of 64 KiB is refused by the contract's bounds; the others get an answer that says what to do
        await eventually(lambda: len(replies.deliveries) + node.bus.stats.rejected == 3)
        assert {reply.text for reply in replies.bodies} == {""}
        *refusals, last = replies.read(lambda reply: reply.error)
        assert "has run on node edge0" in last
        assert all("is not accepted" in refusal for refusal in refusals)


@pytest.mark.parametrize("name", ["a/b", "..", "A", "x" * 300])
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
