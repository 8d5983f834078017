"""How a Model comes to a node for real: brought, unpacked, tried once, described; what must not be used is refused."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import msgspec
import pytest

from examples.digits import train
from halimede.api.model import ModelSpec
from halimede.api.processing import Postprocess, PostprocessScript
from halimede.models import Cache, FetchError
from halimede.models.cache import in_thread
from halimede.names import Key
from services.lc.models import preparer
from services.lc.models.preparer import ModelFiles, UnusableError
from services.lc.planning.resource_state import RequiredFile

KEY = Key("models", "default", "small")


def want(path: Path, format_: str = "onnx", postprocess: Postprocess | None = None) -> RequiredFile:
    spec = msgspec.json.encode(ModelSpec(url="/", format=format_, postprocess=postprocess)).decode()
    return RequiredFile(KEY, "u1", 1, str(path), format=format_, spec=spec)


@pytest.fixture(scope="module")
def small() -> Path:
    if not (train.FOLDER / "small.onnx").exists():
        train.main()
    return train.FOLDER / "small.onnx"


async def test_a_model_is_described_by_what_its_file_declares(tmp_path: Path, small: Path) -> None:
    brought = await ModelFiles()(want(small), Cache(tmp_path), lambda *_: None)
    assert brought.path.read_bytes() == small.read_bytes()
    assert brought.facts.size == small.stat().st_size
    assert [(t.datatype, t.shape) for t in brought.facts.inputs] == [("FP32", [-1, 64])]
    assert brought.facts.since.endswith("Z")


async def test_an_archive_is_unpacked_and_its_one_model_is_taken(tmp_path: Path, small: Path) -> None:
    packed = tmp_path / "small.tar.gz"
    with tarfile.open(packed, "w:gz") as file:
        file.add(small, "folder/anything.onnx")
        readme = tarfile.TarInfo("folder/README")
        readme.size = 2
        file.addfile(readme, io.BytesIO(b"hi"))
    brought = await ModelFiles()(want(packed), Cache(tmp_path / "cache"), lambda *_: None)
    assert brought.path.name == "anything.onnx"
    assert len(brought.facts.inputs) == 1


async def test_a_model_is_tried_once(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, files = Cache(tmp_path), ModelFiles()
    first = await files(want(small), cache, lambda *_: None)

    async def never(*_: object) -> None:
        raise AssertionError("it is known already")

    monkeypatch.setattr(preparer, "try_model", never)
    assert await files(want(small), cache, lambda *_: None) == first


async def test_what_would_run_code_is_refused_with_its_reason(tmp_path: Path) -> None:
    evil = tmp_path / "model.onnx"
    evil.write_bytes(pickle.dumps({"weights": [1, 2, 3]}))
    with pytest.raises(UnusableError) as caught:
        await ModelFiles()(want(evil), Cache(tmp_path / "cache"), lambda *_: None)
    assert caught.value.reason == "UnsafeModel"


def with_script(model: Path, code: str, to: Path) -> RequiredFile:
    """Pack a model and its script; return the archive with a spec that names the script."""
    with tarfile.open(to, "w:gz") as file:
        file.add(model, "model/model.onnx")
        member = tarfile.TarInfo("model/post.py")
        member.size = len(code)
        file.addfile(member, io.BytesIO(code.encode()))
    return want(to, postprocess=Postprocess(script=PostprocessScript(file="post.py")))


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
    assert await in_thread(brought.path.read_bytes) == weights.read_bytes()
    assert brought.facts.inputs == []


async def test_an_archive_without_a_model_says_so(tmp_path: Path) -> None:
    packed = tmp_path / "empty.tar"
    with tarfile.open(packed, "w") as file:
        member = tarfile.TarInfo("README")
        member.size = 2
        file.addfile(member, io.BytesIO(b"hi"))
    with pytest.raises(FetchError, match=r"\.onnx"):
        await ModelFiles()(want(packed), Cache(tmp_path / "cache"), lambda *_: None)
