"""scripts/pin_bases.sh: a release builds on the digest of its base image, with skopeo and a registry on loopback."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dockerfile import FILE, ROOT
from tests.origins import Handler, serving
from tests.programs import run_program

SCRIPT = ROOT / "scripts" / "pin_bases.sh"
NAME = "python:3.11-slim-bookworm"
INDEX = b"""{
  "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []
}"""
TAG = {"/v2/": b"{}", "/v2/library/python/manifests/3.11-slim-bookworm": INDEX}
DIGEST = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"
#: what skopeo does, where there is none
STANDIN = f'#!/bin/sh\ntest "$*" = "inspect --raw docker://{NAME}" || exit 1\ncat "$(dirname "$0")/index.json"\n'


def registry(handler: Handler) -> bool:
    """Answer as a registry with one tag of one image."""
    body, kind = TAG[handler.path], "application/vnd.oci.image.index.v1+json"
    handler.head(200, {"Content-Type": kind, "Content-Length": str(len(body))})
    handler.wfile.write(body)
    return True


@pytest.fixture
def home(tmp_path: Path) -> Iterator[str]:
    """Return a home folder whose configuration puts a registry on loopback in the place of the usual one."""
    path = tmp_path / ".config" / "containers" / "registries.conf"
    path.parent.mkdir(parents=True)
    with serving() as server:
        server.answers = dict.fromkeys(TAG, registry)
        location = f"127.0.0.1:{server.port}"
        path.write_text(f'[[registry]]\nprefix = "docker.io"\nlocation = "{location}"\ninsecure = true\n')
        yield str(tmp_path)


def pin(file: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_program(SCRIPT, file, env={**os.environ, **environment})


def stand_in(tmp_path: Path) -> str:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "index.json").write_bytes(INDEX)
    (tmp_path / "bin" / "skopeo").write_text(STANDIN)
    (tmp_path / "bin" / "skopeo").chmod(0o755)
    return f"{tmp_path}/bin:{os.environ['PATH']}"


@pytest.mark.parametrize("program", ["skopeo", "a stand-in"])
def test_the_base_is_pinned_to_the_digest_of_all_architectures(program: str, home: str, tmp_path: Path) -> None:
    if program == "skopeo" and shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    path = os.environ["PATH"] if program == "skopeo" else stand_in(tmp_path)
    file = tmp_path / "Dockerfile"
    shutil.copy(FILE, file)
    done = pin(file, PATH=path, HOME=home)
    assert done.returncode == 0, done.stderr
    pinned = FILE.read_text().replace(f"FROM {NAME} AS python", f"FROM {NAME}@{DIGEST} AS python")
    assert pinned != FILE.read_text()
    assert file.read_text() == pinned
    # a second time nothing is left to do
    assert pin(file, PATH=path, HOME=home).stdout == ""
    assert file.read_text() == pinned


def test_an_image_that_the_registry_does_not_have_is_named(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM nobody:1\n")
    done = pin(file, PATH=stand_in(tmp_path))
    assert done.returncode == 1
    assert f"{file}: no digest of nobody:1" in done.stderr
    assert file.read_text() == "FROM nobody:1\n"
