"""Archives as people make them, and as those who mean harm do."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halimede.models import Cache, Fetched

FILES = {"model.onnx": b"\x08\x08a model", "weights/model.data": b"w" * 70_000, "labels.txt": b"cat\ndog\n"}


def tar(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    """A tar of regular files."""
    return tar_of(*((member(name, size=len(body)), body) for name, body in files.items()), mode=mode)


def member(name: str, **facts: Any) -> tarfile.TarInfo:
    """One header."""
    made = tarfile.TarInfo(name)
    for key, value in facts.items():
        setattr(made, key, value)
    return made


def tar_of(*members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> bytes:
    """A tar of any members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as made:  # type: ignore[call-overload]
        for info, body in members:
            made.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def zipped(files: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of regular files."""
    return zip_of(*((zipfile.ZipInfo(name), body) for name, body in files.items()), compression=compression)


def zip_of(*members: tuple[zipfile.ZipInfo, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of any members."""
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


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
