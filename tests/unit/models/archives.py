"""Archives as people make them, and as those who mean harm do."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any

import pytest

from halimede.models import Cache, Fetched, FetchError, FetchReason

FILES = {"model.onnx": b"\x08\x08a model", "weights/model.data": b"w" * 70_000, "labels.txt": b"cat\ndog\n"}


def tar(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    return tar_of(*((member(name, size=len(body)), body) for name, body in files.items()), mode=mode)


def member(name: str, **facts: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in facts.items():
        setattr(made, key, value)
    return made


def tar_of(*members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as made:  # type: ignore[call-overload]
        for info, body in members:
            made.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def zipped(files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    return zip_of(*((zipfile.ZipInfo(name), body) for name, body in files.items()), compression=compression)


def zip_of(*members: tuple[zipfile.ZipInfo, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for info, body in members:
            made.writestr(info, body, compression)
    return buffer.getvalue()


def stored(cache: Cache, content: bytes) -> Fetched:
    """Put content into a cache, as if it had been fetched."""
    digest = hashlib.sha256(content).hexdigest()
    part = cache.root / "parts" / digest
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(content)
    return cache.keep(part, digest)


async def refusal(work: Awaitable[object], match: str | None = None) -> tuple[FetchReason, bool]:
    """Wait for work that fails; return why, and whether that may pass."""
    with pytest.raises(FetchError, match=match) as caught:
        await work
    return caught.value.reason, caught.value.temporary


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
