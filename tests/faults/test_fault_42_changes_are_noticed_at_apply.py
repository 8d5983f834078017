"""Fault 42: what changes behind an unchanged manifest is noticed: on a server, in a script, and across a restart.

A resource that is applied again unchanged makes its nodes check its files at once. A Model that halimede cannot run, or
whose weights are left behind, is never Ready, and content that fails never replaces content that runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from halimede.api import admit, parse
from halimede.api.file_references import code_files
from halimede.api.model import ModelSpec
from halimede.api.placement import placements
from halimede.cli.local_model import read_local
from halimede.inference import open_model
from halimede.messages import ModelFacts
from halimede.models import AddressPolicy, Cache, FetchError, FetchReason, fetch
from halimede.models.__main__ import main
from halimede.models.archive import model_file, unpack
from halimede.models.external_data import digest_of, fetch_model
from halimede.models.origin_watch import FILE_PERIOD_S
from halimede.names import Key
from services.lc.models.preparer import InstalledModel, ModelFiles, UnusableError
from services.lc.planning.resource_state import Preparation, RequiredFile
from tests.hostile_models import adding, harmless, outside
from tests.integration import gm_world
from tests.integration.lc_world import HELMET, SMALL, FakeProcess, World, model, service
from tests.origins import Handler, Origin, serving
from tests.simulated import eventually
from tests.unit.lc.test_model_preparation import served, want
from tests.unit.lc.test_plan import decide
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


def with_script(folder: Path, *arguments: str) -> tuple[Path, World, dict[str, Any]]:
    """Return a script, a node, and a service whose edge worker runs the script by these arguments."""
    script = folder / "x.py"
    script.write_text("first = 1\n")
    command = ["python", *(arguments or ("x.py",))]
    return script, World(folder), service(edge={"command": command, "workingDir": str(folder)})


def is_replaced(node: World, process: FakeProcess) -> bool:
    return not process.alive and len(node.launcher.alive) == 1


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
            assert before
            change(origin, b"second", **second)
            await node.gm.insert(body)
            await in_time(lambda: node.gm.statuses[SMALL].reason == "ContentChanged")
            after = node.gm.statuses[SMALL].model
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


@pytest.mark.simulated
async def test_fault_42_an_unchanged_apply_is_sent_to_the_nodes_that_have_it(tmp_path: Path) -> None:
    small = ("insert", "models/small", 1)
    async with gm_world.world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"):
        await w.apply(gm_world.model("small"), gm_world.model("big"), gm_world.service())
        await w.reaches("Running")
        before = edge.sent("insert").count(small)
        assert (await w.ask("apply", object=gm_world.model("small"))).outcome == "unchanged"
        await eventually(lambda: edge.sent("insert").count(small) > before)


@pytest.mark.parametrize("content", [b"wrong", b"crash"])
@pytest.mark.simulated
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


@pytest.mark.simulated
async def test_fault_42_a_model_that_was_never_usable_stays_failed(tmp_path: Path) -> None:
    file, node = tmp_path / "small.onnx", World(tmp_path)
    file.write_bytes(b"crash")
    node.bring = bring
    async with node.gm.running():
        for _ in range(2):
            async with node.lc():
                await node.gm.insert(model(url=file.as_uri()))
                await node.gm.reaches(SMALL, "Failed", "ModelCrashed")


@pytest.mark.parametrize("by", ["x.py", "-m halimede.compat.sedna x.py --stay", "a rule"])
@pytest.mark.simulated
async def test_fault_42_a_worker_with_an_edited_script_or_rule_is_replaced(tmp_path: Path, by: str) -> None:
    script, node, body = with_script(tmp_path, *by.split())
    if by == "a rule":
        body = service(hardExampleMining={"name": f"{script}:Few"})
    async with node.gm.running(), node.lc():
        await node.gm.insert(model(), body)
        await eventually(lambda: node.launcher.alive and HELMET in node.gm.statuses)
        (process,) = node.launcher.alive
        first = node.gm.statuses[HELMET].code[str(script)]
        script.write_text("second = 2\n")
        await eventually(lambda: is_replaced(node, process), 60)
        await eventually(lambda: node.gm.statuses[HELMET].code[str(script)] != first, 60)


@pytest.mark.simulated
async def test_fault_42_a_script_that_is_missing_at_a_restart_of_the_lc_restarts_no_worker(tmp_path: Path) -> None:
    script, node, body = with_script(tmp_path)
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
            await eventually(lambda: is_replaced(node, process), 60)


async def test_fault_42_an_apply_makes_the_node_read_scripts_at_once(tmp_path: Path) -> None:
    script, node, body = with_script(tmp_path)
    async with node.gm.running(), node.lc():
        await node.gm.insert(model(), body)
        await in_time(lambda: node.launcher.alive)
        (process,) = node.launcher.alive
        script.write_text("second = 2\n")
        await node.gm.insert(body)
        await in_time(lambda: is_replaced(node, process), 4)


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


WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
OWN_CODE = {"image": "", "command": ["python", "/app/own.py"]}


def with_data(folder: Path, weights: np.ndarray[Any, Any] = WEIGHTS) -> Path:
    """Write a model whose weights are in a file beside it."""
    path = adding(folder / "small.onnx", outside("small.onnx.data"))
    (folder / "small.onnx.data").write_bytes(weights.tobytes())
    return path


async def answer(cache: Cache, url: str) -> list[float]:
    """Return what the model of a url answers to zeros: the weights that it adds."""
    fetched = await fetch_model(url, "", cache, policy=LOOPBACK)
    path = model_file(await unpack(cache, fetched))
    with open_model(path, ModelSpec(url="/m", format="onnx")) as opened:
        return opened.predict([np.zeros(4, np.float32)])[0].probabilities or []


@pytest.mark.parametrize(
    "damage",
    [lambda whole: b"\x7fELF" + bytes(range(256)) * 8, lambda whole: whole[: len(whole) // 2]],
    ids=["an ELF file", "half an ONNX"],
)
async def test_fault_42_the_result_of_a_trial_comes_with_the_file(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = harmless(tmp_path / "m.onnx")
    path.write_bytes(damage(path.read_bytes()))
    brought = await ModelFiles()(want(path), Cache(tmp_path / "cache"), lambda *_: None)
    assert "not an ONNX model that can run here" in brought.invalid


@pytest.mark.parametrize(
    ("bodies", "phase"),
    [
        ([], "Failed"),
        ([service()], "Failed"),
        ([service(edge=OWN_CODE)], "Ready"),
        ([service(edge={"env": [{"name": "ESTIMATOR", "value": "own:Own"}]})], "Ready"),
        ([service(edge=OWN_CODE), service("other", uid="u2")], "Failed"),
    ],
    ids=["nobody uses it", "halimede's worker", "a script", "an estimator", "both"],
)
def test_fault_42_a_model_that_failed_its_trial_is_ready_only_for_code_that_may_read_it(
    bodies: list[dict[str, Any]], phase: str
) -> None:
    required = decide(model(), *bodies, ready=False).prepare[SMALL]
    failed = Preparation(required, "Ready", "ModelInvalid", "it is no model", Path("/cache/small"))
    state = decide(model(), *bodies, ready={SMALL: failed}).states[SMALL].settled
    assert state is not None
    assert (state.phase, state.reason) == (phase, "ModelInvalid")
    assert state.message.startswith("it is no model")


async def test_fault_42_weights_beside_a_file_come_with_it_and_change_its_digest(tmp_path: Path) -> None:
    cache, path = Cache(tmp_path / "cache"), with_data(tmp_path)
    assert await answer(cache, str(path)) == pytest.approx(WEIGHTS.tolist())
    first = (await fetch_model(path.as_uri(), "", cache)).digest
    assert digest_of(path) == first, "apply shows the digest that nodes report"
    assert (await ModelFiles()(want(path), cache, lambda *_: None)).facts.digest == first
    with_data(tmp_path, WEIGHTS[::-1])
    assert await answer(cache, str(path)) == pytest.approx(WEIGHTS[::-1].tolist())
    assert digest_of(path) == (await fetch_model(path.as_uri(), "", cache)).digest != first


async def test_fault_42_weights_beside_a_url_come_from_the_same_folder(tmp_path: Path) -> None:
    path = with_data(tmp_path)

    def serve(name: str) -> Callable[[Handler], bool]:
        def send(handler: Handler) -> bool:
            body = (tmp_path / name).read_bytes()
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
            return True

        return send

    with serving(b"") as origin:
        origin.answers = {f"/a/{name}?v=1": serve(name) for name in ("small.onnx", "small.onnx.data")}
        assert await answer(Cache(tmp_path / "c"), f"{origin.url}/a/small.onnx?v=1") == pytest.approx(WEIGHTS.tolist())
        assert digest_of(path)
        assert [handler.path for handler in origin.asked] == ["/a/small.onnx?v=1", "/a/small.onnx.data?v=1"]


async def test_fault_42_weights_left_behind_are_missed_at_apply_and_on_the_node(tmp_path: Path) -> None:
    path = with_data(tmp_path)
    (tmp_path / "small.onnx.data").unlink()
    with pytest.raises(FetchError, match=r"pack all of them into an archive \(tar -czf") as caught:
        await ModelFiles()(served(path, "onnx"), Cache(tmp_path / "cache"), lambda *_: None)
    assert (caught.value.reason, caught.value.temporary) == (FetchReason.NOT_FOUND, False)
    resource = admit({**model(url=str(path)), "metadata": {"name": "small", "namespace": "default"}})
    assert "small.onnx.data, which does not exist: pack all of them" in read_local(resource).problem


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "sub/../../secret.bin", "a\\b"])
async def test_fault_42_no_file_outside_of_the_models_folder_is_brought(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(WEIGHTS.tobytes())
    path, cache = adding(tmp_path / "m" / "small.onnx", outside(location)), Cache(tmp_path / "cache")
    (tmp_path / "m" / "sub").mkdir()
    assert (await fetch_model(str(path), "", cache)).size == path.stat().st_size
    with pytest.raises(UnusableError, match="not in its folder") as caught:
        await ModelFiles()(want(path), cache, lambda *_: None)
    assert caught.value.reason == "UnsafeModel"
    with pytest.raises(FetchError, match="not in its folder"):
        digest_of(path)


@pytest.mark.parametrize("location", ["link.bin", "up/secret.bin"])
async def test_fault_42_no_link_is_followed_to_weights(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(WEIGHTS.tobytes())
    path = adding(tmp_path / "m" / "small.onnx", outside(location))
    (tmp_path / "m" / "link.bin").symlink_to("../secret.bin")
    (tmp_path / "m" / "up").symlink_to("..")
    with pytest.raises(FetchError, match="is a link: put the file itself there"):
        await fetch_model(path.as_uri(), "", Cache(tmp_path / "cache"))


def test_fault_42_an_init_container_delivers_a_model_with_its_weights_and_without_them_to_own_code_alone(
    tmp_path: Path,
) -> None:
    path, out = with_data(tmp_path), tmp_path / "downloads"

    def deliver(name: str, *options: str) -> int:
        return main(
            ["--url", str(path), "--cache", str(tmp_path / f"{name}-cache"), "--out", str(out / name), *options]
        )

    assert deliver("whole", "--unpack") == 0
    assert sorted(file.name for file in (out / "whole").iterdir()) == ["model.onnx", "small.onnx.data"]
    (tmp_path / "small.onnx.data").unlink()
    assert deliver("bare", "--unpack") == 2
    assert not (out / "bare").exists()
    assert deliver("bare", "--unpack", "--own-code") == 0
    assert (out / "bare").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("with_digest", [False, True], ids=["left behind", "with a digest"])
async def test_fault_42_a_services_own_code_gets_a_model_without_its_weights(tmp_path: Path, with_digest: bool) -> None:
    path, node, own = with_data(tmp_path), World(tmp_path), service(edge=OWN_CODE)
    node.bring = ModelFiles()
    weights = tmp_path / "small.onnx.data"
    content, digest = weights.read_bytes(), sha256(path.read_bytes()).hexdigest() if with_digest else ""
    if not with_digest:
        weights.unlink()
    body = model(url=str(path), sha256=digest)
    async with node.gm.running(), node.lc():
        await node.gm.insert(body, own)
        status = await node.gm.reaches(SMALL, "Ready", "ModelInvalid")
        assert "pack all of them into an archive" in status.message
        assert ("covers only the model file" in status.message) is with_digest
        await in_time(lambda: node.launcher.alive)
        weights.write_bytes(content)
        await node.gm.insert(body)
        if not with_digest:
            await node.gm.reaches(SMALL, "Ready", "")
        await node.gm.insert(service(uid="u3"))
        if with_digest:
            await node.gm.reaches(SMALL, "Failed", "ModelInvalid")


@pytest.mark.simulated
async def test_fault_42_a_changed_file_is_used_within_a_minute_unless_it_fails(tmp_path: Path) -> None:
    file, node = tmp_path / "small.onnx", World(tmp_path)
    file.write_bytes(b"first")
    node.bring = bring
    async with node.gm.running(), node.lc():
        await node.gm.insert(model(url=file.as_uri()), service())
        await node.gm.reaches(SMALL, "Ready", "")
        await eventually(lambda: node.launcher.alive)
        first = node.gm.statuses[SMALL].model
        file.write_bytes(b"second")
        await eventually(lambda: node.gm.statuses[SMALL].reason == "ContentChanged", 60)
        second = node.gm.statuses[SMALL].model
        assert first
        assert second
        change = f"sha256 {first.digest[:12]}.. -> {second.digest[:12]}.."
        assert node.gm.statuses[SMALL].message == f"spec.url has new content, which is used now: {change}"
        for content, problem in ((b"wrong", "ModelInvalid: it is no model"), (b"crash", "ModelCrashed: it ended")):
            file.write_bytes(content)
            await eventually(lambda problem=problem: problem in node.gm.statuses[SMALL].message, 60)  # type: ignore[misc]
            assert "cannot be used, and the one before stays" in node.gm.statuses[SMALL].message
            assert (node.gm.statuses[SMALL].phase, node.gm.statuses[SMALL].model) == ("Ready", second)
        assert node.gm.statuses[HELMET].phase != "Failed"
        file.write_bytes(b"mended, and used")
        await eventually(lambda: (node.gm.statuses[SMALL].model or second).digest != second.digest, 120)


@pytest.mark.simulated
async def test_fault_42_a_script_that_was_removed_is_a_condition_until_it_is_back(tmp_path: Path) -> None:
    script, node, body = with_script(tmp_path)

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
