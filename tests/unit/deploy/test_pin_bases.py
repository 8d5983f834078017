"""scripts/pin_bases.sh: a release builds on the digest of its base image, with skopeo and a registry on loopback."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.dockerfile import FILE, ROOT
from tests.waiting import patience

SCRIPT = ROOT / "scripts" / "pin_bases.sh"
NAME = "python:3.11-slim-bookworm"
INDEX = b"""{
  "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []
}"""
DIGEST = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"
#: what skopeo does, where there is none
STANDIN = f'#!/bin/sh\ntest "$*" = "inspect --raw docker://{NAME}" || exit 1\ncat "$(dirname "$0")/index.json"\n'


class Registry(BaseHTTPRequestHandler):
    """One tag of one image."""

    def do_GET(self) -> None:
        known = {"/v2/": b"{}", "/v2/library/python/manifests/3.11-slim-bookworm": INDEX}
        body = known.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "application/vnd.oci.image.index.v1+json")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[str]:
    """Return a home folder whose configuration puts a registry on loopback in the place of the usual one."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = tmp_path / ".config" / "containers" / "registries.conf"
    path.parent.mkdir(parents=True)
    location = f"127.0.0.1:{server.server_port}"
    path.write_text(f'[[registry]]\nprefix = "docker.io"\nlocation = "{location}"\ninsecure = true\n')
    yield str(tmp_path)
    server.shutdown()
    server.server_close()


def pin(file: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, file],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )


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
