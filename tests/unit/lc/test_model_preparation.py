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
from halimede.models import Cache, FetchError
from halimede.models.cache import in_thread
from halimede.names import Key
from services.lc.models import preparer
from services.lc.models.preparer import ModelFiles, UnusableError
from services.lc.planning.resource_state import RequiredFile

KEY = Key("models", "default", "small")


def want(path: Path, format_: str = "onnx") -> RequiredFile:
    spec = msgspec.json.encode(ModelSpec(url="/", format=format_)).decode()
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
