"""Fault 42: what changes behind an unchanged manifest is noticed: on a server, in a script, and across a restart.

A resource that is applied again unchanged makes its nodes check its files at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from halimede.api import parse
from halimede.api.code_files import code_files
from halimede.api.placement import placements
from halimede.messages import ModelFacts
from halimede.models import AddressPolicy, Cache, fetch
from halimede.models.origin_watch import FILE_PERIOD_S
from halimede.names import Key
from services.lc.models.preparer import InstalledModel, UnusableError
from services.lc.planning.resource_state import RequiredFile
from tests.integration import gm_world
from tests.integration.lc_world import HELMET, SMALL, World, model, service
from tests.origins import Handler, Origin, serving
from tests.simulated import eventually, simulated
from tests.waiting import eventually as in_time

LOOPBACK = AddressPolicy.parse("loopback", "allow")
OTHER = Key(SMALL.plural, "default", "other")
FIRST_DATE, SECOND_DATE = "Sat, 28 Nov 2026 10:00:00 GMT", "Sat, 28 Nov 2026 10:00:01 GMT"


async def bring(required: RequiredFile, cache: Cache, progress: Any) -> InstalledModel:
    """Bring a file, and try it: by its content."""
    fetched = await fetch(required.url, required.sha256, cache, progress, policy=LOOPBACK)
    content = fetched.path.read_bytes()
    if content == b"crash":
        raise UnusableError("ModelCrashed", "it ended its process")
    invalid = "it is no model" if content == b"wrong" else ""
    return InstalledModel(fetched.path, ModelFacts(digest=fetched.digest), invalid=invalid, fresh=fetched.fresh)


@asynccontextmanager
async def node_with(folder: Path, *bodies: dict[str, Any]) -> AsyncIterator[World]:
    """A node with Models that are ready."""
    node = World(folder)
    node.bring = bring
    async with node.gm.running(), node.lc():
        await node.gm.insert(*bodies)
        for body in bodies:
            await node.gm.reaches(Key(SMALL.plural, "default", body["metadata"]["name"]), "Ready")
        yield node


def change(origin: Origin, body: bytes, *, etag: str = "", modified: str = "") -> None:
    origin.body, origin.etag, origin.modified = body, etag, modified


@pytest.mark.parametrize(
    ("first", "second"),
    [({"etag": '"1"'}, {"etag": '"2"'}), ({"modified": FIRST_DATE}, {"modified": SECOND_DATE})],
    ids=["ETag", "Last-Modified"],
)
async def test_fault_42_an_apply_asks_the_server_of_a_model(
    tmp_path: Path, first: dict[str, str], second: dict[str, str]
) -> None:
    with serving() as origin:
        change(origin, b"first", **first)
        body = model(url=f"{origin.url}/m.onnx")
        async with node_with(tmp_path, body) as node:
            before = node.gm.statuses[SMALL].model
            change(origin, b"second", **second)
            await node.gm.insert(body)
            await in_time(lambda: node.gm.statuses[SMALL].reason == "ContentChanged")
            after = node.gm.statuses[SMALL].model
            assert before
            assert after
            assert f"sha256 {before.digest[:12]}.. -> {after.digest[:12]}.." in node.gm.statuses[SMALL].message
            asked = len(origin.asked)
            await node.gm.insert(body)
            await in_time(lambda: len(origin.asked) > asked)
            assert origin.sent == len(b"first") + len(b"second"), "unchanged content is not sent again"
            assert node.gm.statuses[SMALL].reason == "ContentChanged"


async def test_fault_42_a_server_that_tells_nothing_is_not_asked(tmp_path: Path) -> None:
    with serving(b"first") as silent, serving(b"first") as origin:
        change(silent, b"first")
        bodies = model(url=f"{silent.url}/m.onnx"), model("other", url=f"{origin.url}/m.onnx")
        async with node_with(tmp_path, *bodies) as node:
            change(silent, b"second")
            change(origin, b"second", etag='"2"')
            await node.gm.insert(*bodies)
            await in_time(lambda: node.gm.statuses[OTHER].reason == "ContentChanged")
            assert len(silent.asked) == 1
            assert node.gm.statuses[SMALL].reason == ""


@pytest.mark.parametrize("content", [b"first", b"wrong"])
async def test_fault_42_an_origin_that_does_not_answer_is_logged_once(tmp_path: Path, content: bytes) -> None:
    def refuse(handler: Handler) -> bool:
        handler.head(503, {"Content-Length": "0"})
        return True

    with serving(b"first") as origin:
        body = model(url=f"{origin.url}/m.onnx")
        async with node_with(tmp_path, body) as node:
            change(origin, content, etag=f'"{content!r}"')
            asked = len(origin.asked)
            await node.gm.insert(body)
            await in_time(lambda: len(origin.asked) > asked)
            if content == b"wrong":
                await node.gm.reaches(SMALL, "Ready", "ContentUnusable")
            with structlog.testing.capture_logs() as logs:
                for answers in ({"/m.onnx": refuse}, {"/m.onnx": refuse}, {"/m.onnx": refuse}, {}):
                    origin.answers = dict(answers)
                    asked = len(origin.asked)
                    await node.gm.insert(body)
                    await in_time(lambda asked=asked: len(origin.asked) > asked)  # type: ignore[misc]
                    assert node.gm.statuses[SMALL].phase == "Ready"
                await in_time(lambda: [log for log in logs if "answers again" in log["event"]])
    warnings = [log["event"] for log in logs if log["log_level"] == "warning"]
    assert warnings == ["origin of a model does not answer: its cached content is used"]


@simulated
async def test_fault_42_an_unchanged_apply_is_sent_to_the_nodes_that_have_it(tmp_path: Path) -> None:
    small = ("insert", "models/small", 1)
    async with gm_world.world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        await w.apply(gm_world.model("small"), gm_world.model("big"), gm_world.service())
        await w.reaches("Running")
        before = edge.sent("insert").count(small)
        assert (await w.ask("apply", object=gm_world.model("small"))).outcome == "unchanged"
        await eventually(lambda: edge.sent("insert").count(small) > before)


@pytest.mark.parametrize("content", [b"wrong", b"crash"])
@simulated
async def test_fault_42_the_content_before_stays_across_a_restart(tmp_path: Path, content: bytes) -> None:
    file, node = tmp_path / "small.onnx", World(tmp_path)
    file.write_bytes(b"first")
    node.bring = bring
    async with node.gm.running():
        async with node.lc():
            await node.gm.insert(model(url=file.as_uri()), service())
            first = (await node.gm.reaches(SMALL, "Ready", "")).model
            file.write_bytes(content)
            await node.gm.reaches(SMALL, "Ready", "ContentUnusable")
        assert not node.launcher.alive
        node.gm.statuses.clear()
        async with node.lc():
            await eventually(lambda: node.launcher.alive, 60)
            status = await node.gm.reaches(SMALL, "Ready", "ContentUnusable")
            assert "cannot be used, and the one before stays" in status.message
            assert status.model == first
        file.write_bytes(b"mended")
        async with node.lc():
            await eventually(lambda: (node.gm.statuses[SMALL].model or first) != first, 60)


@simulated
async def test_fault_42_a_model_that_was_never_usable_stays_failed(tmp_path: Path) -> None:
    file, node = tmp_path / "small.onnx", World(tmp_path)
    file.write_bytes(b"crash")
    node.bring = bring
    async with node.gm.running():
        for _ in range(2):
            async with node.lc():
                await node.gm.insert(model(url=file.as_uri()))
                await node.gm.reaches(SMALL, "Failed", "ModelCrashed")


@pytest.mark.parametrize("command", [["python", "x.py"], ["python", "-m", "halimede.compat.sedna", "x.py", "--stay"]])
@simulated
async def test_fault_42_a_worker_with_an_edited_script_is_replaced(tmp_path: Path, command: list[str]) -> None:
    script, node = tmp_path / "x.py", World(tmp_path)
    script.write_text("first = 1\n")
    body = service(edge={"command": command, "workingDir": str(tmp_path)})
    async with node.gm.running(), node.lc():
        await node.gm.insert(model(), body)
        await eventually(lambda: node.launcher.alive and HELMET in node.gm.statuses)
        (process,) = node.launcher.alive
        first = node.gm.statuses[HELMET].code[str(script)]
        script.write_text("second = 2\n")
        await eventually(lambda: not process.alive and len(node.launcher.alive) == 1, 60)
        await eventually(lambda: node.gm.statuses[HELMET].code[str(script)] != first, 60)


@simulated
async def test_fault_42_a_script_that_was_removed_is_a_condition_until_it_is_back(tmp_path: Path) -> None:
    script, node = tmp_path / "x.py", World(tmp_path)
    script.write_text("first = 1\n")
    body = service(edge={"command": ["python", "x.py"], "workingDir": str(tmp_path)})

    def reason() -> tuple[str, str]:
        worker = next(worker for worker in node.gm.statuses[HELMET].workers if worker.role == "edge")
        return worker.phase, worker.reason

    async with node.gm.running(), node.lc():
        await node.gm.insert(model(), body)
        await eventually(lambda: HELMET in node.gm.statuses and reason() == ("Running", ""))
        script.unlink()
        await eventually(lambda: reason() == ("Running", "CodeMissing"), 2 * FILE_PERIOD_S)
        script.write_text("first = 1\n")
        await eventually(lambda: reason() == ("Running", ""), 2 * FILE_PERIOD_S)
        assert len(node.launcher.started) == 1


@simulated
async def test_fault_42_a_script_that_is_missing_at_a_restart_of_the_lc_restarts_no_worker(tmp_path: Path) -> None:
    script, node = tmp_path / "x.py", World(tmp_path)
    script.write_text("first = 1\n")
    body = service(edge={"command": ["python", "x.py"], "workingDir": str(tmp_path)})
    async with node.gm.running():
        async with node.lc(killed=True):
            await node.gm.insert(model(), body)
            await eventually(lambda: node.launcher.alive and HELMET in node.gm.statuses)
            (process,) = node.launcher.alive
            first = node.gm.statuses[HELMET].code
        script.unlink()
        node.gm.statuses.clear()
        async with node.lc():
            await eventually(lambda: HELMET in node.gm.statuses and node.gm.statuses[HELMET].code == first, 60)
            assert node.launcher.started == [process]
            script.write_text("first = 1\n")
            await asyncio.sleep(2 * FILE_PERIOD_S)
            assert node.launcher.started == [process]
            script.write_text("second = 2\n")
            await eventually(lambda: not process.alive and len(node.launcher.alive) == 1, 60)


async def test_fault_42_an_apply_makes_the_node_read_scripts_at_once(tmp_path: Path) -> None:
    script, node = tmp_path / "x.py", World(tmp_path)
    script.write_text("first = 1\n")
    body = service(edge={"command": ["python", "x.py"], "workingDir": str(tmp_path)})
    async with node.gm.running(), node.lc():
        await node.gm.insert(model(), body)
        await in_time(lambda: node.launcher.alive)
        (process,) = node.launcher.alive
        script.write_text("second = 2\n")
        await node.gm.insert(body)
        await in_time(lambda: not process.alive and len(node.launcher.alive) == 1, 4)


def test_fault_42_only_python_files_that_the_spec_names_are_read() -> None:
    edge = {
        "command": ["python", "a.py", "../b.py"],
        "args": ["/c/c.py", "d.txt"],
        "workingDir": "/app",
        "env": [{"name": "ESTIMATOR", "value": "own.code:Own"}],
    }
    spec = parse(service(edge=edge, hardExampleMining={"name": "/rules/few.py:Few"})).spec
    files = {placement.role: code_files(spec, placement) for placement in placements(spec)}
    assert files == {"edge": ("/app/a.py", "/app/own/code.py", "/c/c.py", "/rules/few.py"), "cloud": ()}
