"""What is watched of a model of the node, and how many data files a hostile model can name."""

from __future__ import annotations

import itertools
import tarfile
import textwrap
from pathlib import Path

import pytest

from halimede.models import Cache, FetchError, external_data, fetch, origin_watch
from halimede.models.external_data import (
    MAX_ATTEMPTS,
    MAX_FILES,
    MAX_LOCATION,
    data_files,
    data_locations,
    fetch_model,
    is_inside,
)
from tests.hostile_models import adding, outside
from tests.programs import run_python


def field(number: int, content: bytes) -> bytes:
    """Return one field of up to 16383 bytes of a protobuf message."""
    size = len(content)
    return bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7]) + content


def tensor(*names: str) -> bytes:
    """Return a model with one tensor that has these locations."""
    entries = (field(13, field(1, b"location") + field(2, name.encode())) for name in names)
    return field(7, field(5, b"".join(entries)))


@pytest.mark.parametrize("lost", ["the file's content", "the cached content"])
async def test_data_files_are_watched_whichever_copy_of_the_model_names_them(
    tmp_path: Path, cache: Cache, lost: str
) -> None:
    model = adding(tmp_path / "m.onnx", outside("w.bin"))
    (tmp_path / "w.bin").write_bytes(b"\0" * 64)
    await fetch_model(str(model), "", cache)
    if lost == "the cached content":
        cache.path((await fetch(str(model), "", cache)).digest).unlink()
    else:
        model.write_bytes(b"")  # its user is about to write it again
    assert set(origin_watch._file_validators(str(model), model, cache)) == {model, tmp_path / "w.bin"}


@pytest.mark.parametrize("times", [1, MAX_ATTEMPTS])
async def test_files_of_two_versions_never_become_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    model, versions = tmp_path / "m.onnx", itertools.count()

    def publish() -> None:
        version = next(versions)
        model.write_bytes(tensor("w.bin") + field(2, b"version %d" % version))
        (tmp_path / "w.bin").write_bytes(b"data %d" % version)

    def replaced(path: Path) -> list[str]:
        names = data_files(path)
        if next(replacements, None) is not None:
            publish()
        return names

    replacements = iter(range(times))
    publish()
    monkeypatch.setattr(external_data, "data_files", replaced)
    fetching = fetch_model(str(model), "", Cache(tmp_path / "cache"))
    if times == MAX_ATTEMPTS:
        with pytest.raises(FetchError, match="were replaced 3 times") as failed:
            await fetching
        assert failed.value.temporary
    else:
        with tarfile.open((await fetching).path) as tar:
            contents = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        assert contents["model.onnx"].endswith(b"version 1")
        assert contents["w.bin"] == b"data 1"


def test_a_model_that_is_shortened_while_it_is_read_ends_no_process(tmp_path: Path) -> None:
    """A mapped file that becomes shorter ends the process that reads it (SIGBUS)."""
    code = f"""
        import os
        from pathlib import Path
        from halimede.models import Cache, external_data, origin_watch
        path = Path({str(tmp_path / "m.onnx")!r})
        path.write_bytes({tensor("w.bin")!r} + b"\\0" * 1_000_000)
        read = external_data.records
        def shortened(content):
            os.truncate(path, 0)
            return read(content)
        external_data.records = shortened
        origin_watch._file_validators(str(path), path, Cache(path.parent / "cache"))
    """
    done = run_python("-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr


def test_no_more_locations_are_read_than_a_model_may_have() -> None:
    content = b"".join(tensor(f"w{number}") for number in range(3 * MAX_FILES))
    assert len(data_locations(content)) == MAX_FILES + 1


def test_a_tensor_with_locations_without_end_is_no_onnx(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(tensor(*(f"w{number}" for number in range(100))))
    assert data_files(path) == []


def test_a_location_that_is_too_long_for_a_message_is_not_inside() -> None:
    assert is_inside("w" * MAX_LOCATION)
    assert not is_inside("w" * (MAX_LOCATION + 1))
