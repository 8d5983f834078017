"""How a Model comes to a node for real: brought, unpacked, tried once, described; what must not be used is refused."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples.digits import train
from halimede.api.model import ModelSpec
from halimede.api.processing import Grayscale, Layout, Normalize, Postprocess, PostprocessScript, Resize
from halimede.models import Cache, FetchError, FetchReason
from halimede.models.cache import in_thread
from halimede.names import Key
from services.lc.models import preparer
from services.lc.models.preparer import ModelFiles, UnusableError
from services.lc.planning.resource_state import RequiredFile
from tests.lite_files import write_weigher
from tests.unit.models.archives import tar
from tests.unit.models.test_model_trial import without

KEY = Key("models", "default", "small")


def want(path: Path, format_: str = "onnx", postprocess: Postprocess | None = None) -> RequiredFile:
    spec = msgspec.json.encode(ModelSpec(url="/", format=format_, postprocess=postprocess)).decode()
    return RequiredFile(KEY, "u1", 1, str(path), format=format_, spec=spec)


def packed(to: Path, files: dict[str, bytes]) -> Path:
    to.write_bytes(tar(files, "w:gz" if to.suffix == ".gz" else "w"))
    return to


@pytest.fixture(scope="module")
def small() -> Path:
    if not (train.FOLDER / "small.onnx").exists():
        train.main()
    return train.FOLDER / "small.onnx"


async def test_a_model_is_described_by_what_its_file_declares(tmp_path: Path, small: Path) -> None:
    brought = await ModelFiles()(want(small), Cache(tmp_path), lambda *_: None)
    assert (brought.path.read_bytes(), brought.facts.size) == (small.read_bytes(), small.stat().st_size)
    assert [(t.datatype, t.shape) for t in brought.facts.inputs] == [("FP32", [-1, 64])]
    assert brought.facts.since.endswith("Z")


def record_threads(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[bool]:
    """Return a list that gets, for each call of a module's function, whether the event loop waited for it."""
    on_loop: list[bool] = []
    function = getattr(module, name)

    def recorded(*args: Any) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return function(*args)

    monkeypatch.setattr(module, name, recorded)
    return on_loop


async def test_an_archive_is_unpacked_and_its_one_model_is_found_in_a_thread(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = record_threads(monkeypatch, preparer, "model_file")
    archive = packed(tmp_path / "m.tar.gz", {"folder/anything.onnx": small.read_bytes(), "folder/README": b"hi"})
    brought = await ModelFiles()(want(archive), Cache(tmp_path / "cache"), lambda *_: None)
    assert (brought.path.name, len(brought.facts.inputs)) == ("anything.onnx", 1)
    assert set(on_loop) == {False}


async def test_a_model_is_tried_once(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, files = Cache(tmp_path), ModelFiles()
    first = await files(want(small), cache, lambda *_: None)

    async def never(*_: object) -> None:
        raise AssertionError("it is known already")

    monkeypatch.setattr(preparer, "try_model", never)
    assert await files(want(small), cache, lambda *_: None) == first


@pytest.mark.parametrize("scaled", [False, True])
async def test_a_model_that_pictures_reach_as_0_to_255_is_warned_of(tmp_path: Path, small: Path, scaled: bool) -> None:
    steps = [Grayscale(), Resize(width=8, height=8), *([Normalize()] if scaled else []), Layout(order="flat")]
    spec = msgspec.json.encode(ModelSpec(url="/", format="onnx", preprocess=steps)).decode()
    wanted = RequiredFile(KEY, "u1", 1, str(small), format="onnx", spec=spec)
    for _ in range(2):  # the second result is the stored one
        brought = await ModelFiles()(wanted, Cache(tmp_path), lambda *_: None)
        assert brought.facts.outputs
        assert ("pictures reach it as 0 to 255" in brought.warning) == (not scaled)


async def test_what_would_run_code_is_refused_with_its_reason(tmp_path: Path) -> None:
    evil = tmp_path / "model.onnx"
    evil.write_bytes(pickle.dumps({"weights": [1, 2, 3]}))
    with pytest.raises(UnusableError) as caught:
        await ModelFiles()(want(evil), Cache(tmp_path / "cache"), lambda *_: None)
    assert caught.value.reason == "UnsafeModel"


def with_script(model: Path, code: str, to: Path) -> RequiredFile:
    """Pack a model and its script; return the archive with a spec that names the script."""
    archive = packed(to, {"model/model.onnx": model.read_bytes(), "model/post.py": code.encode()})
    return want(archive, postprocess=Postprocess(script=PostprocessScript(file="post.py")))


async def test_a_script_comes_with_the_models_archive_and_is_tried_with_it(tmp_path: Path, small: Path) -> None:
    code = "def postprocess(outputs, size):\n    return outputs['probabilities'][0]\n"
    needed = with_script(small, code, tmp_path / "m.tar.gz")
    brought = await ModelFiles()(needed, Cache(tmp_path / "cache"), lambda *_: None)
    assert (brought.path.parent / "post.py").read_text() == code
    assert len(brought.facts.outputs) > 0, "its workers need not try it again"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def postprocess(outputs, size)\n", r"spec\.postprocess\.script: post\.py is not valid Python"),
        ("def postprocess(outputs, size): 1 / 0\n", r"spec\.postprocess\.script: postprocess of post\.py raised Zero"),
        ("def postprocess(outputs, size): open('/tmp/x', 'w')\n", r"spec\.postprocess\.script: .*PermissionError"),
        ("def process(outputs, size): pass\n", r"spec\.postprocess\.script\.function: post\.py has no function"),
    ],
)
async def test_a_script_that_fails_its_trial_reaches_no_worker(
    tmp_path: Path, small: Path, code: str, says: str
) -> None:
    needed = with_script(small, code, tmp_path / "m.tar.gz")
    with pytest.raises(UnusableError, match=says) as caught:
        await ModelFiles()(needed, Cache(tmp_path / "cache"), lambda *_: None)
    assert caught.value.reason == "ScriptInvalid"


async def test_a_bare_model_has_no_script_with_it(tmp_path: Path, small: Path) -> None:
    needed = want(small, postprocess=Postprocess(script=PostprocessScript(file="post.py")))
    with pytest.raises(UnusableError, match=r"no readable file post\.py in .*: pack it into one archive"):
        await ModelFiles()(needed, Cache(tmp_path / "cache"), lambda *_: None)


async def test_a_module_that_a_worker_may_have_is_left_to_it(tmp_path: Path, small: Path) -> None:
    needed = with_script(small, "import a_library_of_the_worker\n", tmp_path / "m.tar.gz")
    brought = await ModelFiles()(needed, Cache(tmp_path / "cache"), lambda *_: None)
    assert brought.facts.outputs == [], "each worker tries it itself"


async def test_formats_of_users_own_code_are_left_as_they_are(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"PK\x03\x04 whatever torch writes")
    brought = await ModelFiles()(want(weights, "pt"), Cache(tmp_path / "cache"), lambda *_: None)
    assert (await in_thread(brought.path.read_bytes), brought.facts.inputs) == (weights.read_bytes(), [])


def served(path: Path, format_: str) -> RequiredFile:
    """The file of an InferenceModel, which only halimede's own server reads."""
    spec = msgspec.json.encode(ModelSpec(url="/", format=format_)).decode()
    key = Key("inferencemodels", "default", "small")
    return RequiredFile(key, "u1", 1, str(path), format=format_, spec=spec, own_code=False)


@pytest.mark.parametrize("archived", [True, False], ids=["an archive", "the bare file"])
@pytest.mark.parametrize("make", [want, served], ids=["a Model", "an InferenceModel"])
async def test_a_lite_model_is_unpacked_tried_and_described(
    tmp_path: Path, archived: bool, make: Callable[[Path, str], RequiredFile]
) -> None:
    file = write_weigher(tmp_path / "m.tflite")
    given = packed(tmp_path / "m.tar.gz", {"faces/net.tflite": file.read_bytes()}) if archived else file
    brought = await ModelFiles()(make(given, "tflite"), Cache(tmp_path / "cache"), lambda *_: None)
    assert (brought.path.name == "net.tflite", brought.lack) == (archived, "")
    assert await in_thread(brought.path.read_bytes) == file.read_bytes()
    assert [(t.name, t.shape) for t in brought.facts.outputs] == [("y", [-1, 2])]


async def test_what_only_our_server_reads_is_not_downloaded_without_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "tensorflow")
    with pytest.raises(FetchError, match=r"run pip install 'halimede\[tensorflow\]'$") as caught:
        await ModelFiles()(served(tmp_path / "absent.tar.gz", "tensorflow"), Cache(tmp_path), lambda *_: None)
    assert (caught.value.reason, caught.value.temporary) == (FetchReason.NOT_INSTALLED, False)


async def test_a_saved_model_without_its_package_is_there_for_the_users_code_and_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "tensorflow")
    archive = packed(tmp_path / "m.tar.gz", {"faces/saved_model.pb": b"x", "faces/variables/variables.index": b"y"})
    brought = await ModelFiles()(want(archive, "tensorflow"), Cache(tmp_path / "cache"), lambda *_: None)
    assert (brought.path.name, brought.path.is_dir(), brought.facts.inputs) == ("faces", True, [])
    assert brought.lack.endswith("run pip install 'halimede[tensorflow]'")


async def test_a_checkpoint_of_the_users_code_stays_the_archive_that_it_was(tmp_path: Path) -> None:
    archive = packed(tmp_path / "m.tar.gz", {"checkpoint": b"x", "model.ckpt": b"y"})
    brought = await ModelFiles()(want(archive, "tensorflow"), Cache(tmp_path / "cache"), lambda *_: None)
    assert await in_thread(brought.path.read_bytes) == archive.read_bytes()


@pytest.mark.parametrize(
    ("make", "form", "name"), [(want, "onnx", "m.tar"), (served, "tflite", "m.tar.gz")], ids=["onnx", "no user's code"]
)
async def test_an_archive_without_the_file_of_its_format_is_refused(
    tmp_path: Path, make: Callable[[Path, str], RequiredFile], form: str, name: str
) -> None:
    archive = packed(tmp_path / name, {"README": b"hi"})
    with pytest.raises(FetchError, match=rf"no \.{form} file, only README: add model\.{form}") as caught:
        await ModelFiles()(make(archive, form), Cache(tmp_path / "cache"), lambda *_: None)
    assert caught.value.reason is FetchReason.NO_MODEL_FILE


async def test_where_pods_run_the_models_only_onnx_is_unpacked_and_nothing_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "ai_edge_litert")
    archive = packed(tmp_path / "m.tar.gz", {"m.tflite": write_weigher(tmp_path / "m.tflite").read_bytes()})
    brought = await ModelFiles(formats={"onnx"})(want(archive, "tflite"), Cache(tmp_path / "cache"), lambda *_: None)
    assert (await in_thread(brought.path.read_bytes), brought.lack) == (archive.read_bytes(), "")
