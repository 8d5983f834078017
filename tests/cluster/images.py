"""Container images of the cluster: bases from Debian's packages, the project's own from its Dockerfile.

Nothing is pulled. Python packages are downloaded here, as this machine's pip is configured; builds see that folder
alone.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.node import PAUSE
from tests.cluster.processes import ClusterError, run
from tests.cluster.settings import BUILD, IMAGES, ROOT

#: where names without a registry are from, for containerd: nothing is pulled from there
HUB = "docker.io"
LIBRARY = f"{HUB}/library"
PYTHON = f"{LIBRARY}/python:3.11-slim-bookworm"
MOSQUITTO = f"{LIBRARY}/eclipse-mosquitto:2.0"
SUITE = "bookworm"
VERSION = "0.1.0"
#: seconds for one image
PATIENCE_S = 1800.0
#: of the packages that builds need: what the images install, and the build backend
EXTRAS = "gm,kubernetes,lc,s3,worker,camera,reid,otel,serve,grpc"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image of the project: its Dockerfile, and the stage of it that is the image (empty: the last)."""

    name: str
    dockerfile: str
    target: str = ""

    def reference(self, tag: str) -> str:
        """Return the name in the manifests, in the long form that containerd uses."""
        return f"{HUB}/halimede/{self.name}:{tag}"


def recipes_of(source: Path, *names: str) -> tuple[Recipe, ...]:
    """Return the recipes of images: a stage each of one Dockerfile; in former versions each had a Dockerfile."""
    if (source / "Dockerfile").exists():
        return tuple(Recipe(name, "Dockerfile", name) for name in names)
    return tuple(Recipe(name, f"services/{name}/Dockerfile") for name in names)


NAMES = ("gm", "lc", "worker", "serve")
#: the version that the suite upgrades from: a commit, also the tag of its images
FORMER = "e89e372"
BASES = (PYTHON, MOSQUITTO, PAUSE)
#: the smallest program that waits; it is the pause container of every pod
PAUSE_SOURCE = """\
#include <signal.h>
#include <unistd.h>
void end(int number) { _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
"""


class Images:
    """Builds images and exports them as archives. ``source``: a checkout of the project."""

    def __init__(self, source: Path = ROOT, names: Sequence[str] = NAMES, tag: str = VERSION) -> None:
        self._folder = IMAGES
        self._source = source
        self._recipes = recipes_of(source, *names)
        self._tag = tag

    @classmethod
    def former(cls) -> Images | None:
        """Return the images of the version that the suite upgrades from; None if its commit is not in this clone."""
        source = BUILD / FORMER
        if not source.exists():
            try:
                run("git", "-C", ROOT, "cat-file", "-e", f"{FORMER}^{{commit}}")
            except ClusterError:
                return None
            source.mkdir(parents=True)
            archive = BUILD / "former.tar"
            run("git", "-C", ROOT, "archive", "--output", archive, FORMER)
            run("tar", "-x", "-f", archive, "-C", source)
            archive.unlink()
        return cls(source, NAMES[:3], FORMER)

    def build(self) -> dict[str, Path]:
        """Build and export all; return the archives by image reference. Raises ClusterError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "registries.conf").write_text(f'unqualified-search-registries = ["{HUB}"]\n')
        (self._folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        for reference, make in ((PYTHON, self._python), (MOSQUITTO, self._mosquitto), (PAUSE, self._pause)):
            if not self._known(reference):
                print(f"image {reference}", flush=True)
                make(reference)
        self._download()
        archives = {reference: self._export(reference) for reference in BASES}
        for recipe in self._recipes:
            reference = recipe.reference(self._tag)
            print(f"image {reference}", flush=True)
            self._bud(recipe)
            archives[reference] = self._export(reference)
        return archives

    def _bud(self, recipe: Recipe) -> None:
        target = ["--target", recipe.target] if recipe.target else []
        tag = recipe.reference(self._tag)
        # buildah 1.28 takes a step from its cache though the stage that it mounts has changed: no cache, then, but only
        # when a file has changed
        mark, digest = self._archive(tag).with_suffix(".source"), self._digest()
        if mark.exists() and mark.read_text() == digest and self._known(tag):
            return
        settings = self._folder / "pip.conf"
        settings.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
        # a Dockerfile takes pip's settings as a secret, or reads them where pip looks for them
        if recipe.target:
            pip = ("--secret", f"id=pip.conf,src={settings}")
        else:
            pip = ("--volume", f"{settings}:/etc/pip.conf:ro")
        self._buildah(
            "bud", "--isolation", "chroot", "--pull-never", "--no-cache", *pip,
            "--volume", f"{self._folder / 'wheels'}:/wheels:ro",
            "--file", str(self._source / recipe.dockerfile), *target, "--tag", tag, str(self._source),
        )  # fmt: skip
        mark.write_text(digest)

    def _digest(self) -> str:
        """Return a hash of all that the Dockerfile copies."""
        sources = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "NOTICE", "Dockerfile")
        paths = [self._source / name for name in sources]
        for top in ("halimede", "services", "examples/digits"):
            paths += (path for path in (self._source / top).rglob("*") if path.suffix != ".pyc")
        found = hashlib.sha256()
        for path in sorted(path for path in paths if path.is_file()):
            found.update(f"{path.relative_to(self._source)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return found.hexdigest()

    def _download(self) -> None:
        """Download the packages of all images for Python 3.11 (a change of the pinned versions downloads again)."""
        pins = (self._source / "constraints.txt").read_bytes() + (self._source / "pyproject.toml").read_bytes()
        done = self._folder / "wheels" / f".{hashlib.sha256(pins).hexdigest()[:16]}"
        if done.exists():
            return
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest"]
        command += [str(done.parent), "-c", str(self._source / "constraints.txt")]
        command += [f"{self._source}[{EXTRAS}]", "hatchling", "setuptools", "wheel"]
        subprocess.run(command, check=True)
        done.touch()

    def _python(self, reference: str) -> None:
        packages = "python3-minimal,python3-venv,python3-pip,ca-certificates"
        root = self._debian("python", packages)
        # as in the image of that name
        for name, target in (("python", "python3.11"), ("python3", "python3.11"), ("pip", "/usr/bin/pip3")):
            (root / "usr/local/bin" / name).symlink_to(target if "/" in target else f"/usr/bin/{target}")
        self._commit(reference, root)

    def _mosquitto(self, reference: str) -> None:
        # `kill` is a program in the image of that name
        self._commit(reference, self._debian("mosquitto", "mosquitto,procps"))

    def _pause(self, reference: str) -> None:
        root = self._folder / "pause"
        root.mkdir(exist_ok=True)
        run("cc", "-Os", "-static", "-s", "-o", root / "pause", "-x", "c", "-", stdin=PAUSE_SOURCE)
        self._commit(reference, root, "--entrypoint", '["/pause"]')

    def _debian(self, name: str, packages: str) -> Path:
        root = self._folder / name
        shutil.rmtree(root, ignore_errors=True)
        options = ("--variant=minbase", f"--include={packages}", "--dpkgopt=path-exclude=/usr/share/doc/*")
        run("mmdebstrap", *options, SUITE, root, timeout=PATIENCE_S)
        return root

    def _commit(self, reference: str, root: Path, *config: str) -> None:
        container = self._buildah("from", "scratch").strip()
        self._buildah("add", container, str(root), "/")
        if config:
            self._buildah("config", *config, container)
        self._buildah("commit", "--rm", container, reference)

    def _export(self, reference: str) -> Path:
        archive = self._archive(reference)
        number = self._buildah("images", "--no-trunc", "--format", "{{.ID}}", reference).strip()
        mark = archive.with_suffix(".id")
        if not archive.exists() or not mark.exists() or mark.read_text() != number:
            archive.unlink(missing_ok=True)
            self._buildah("push", reference, f"docker-archive:{archive}:{reference}")
            mark.write_text(number)
        return archive

    def _archive(self, reference: str) -> Path:
        return self._folder / f"{reference.rpartition('/')[2].replace(':', '-')}.tar"

    def _known(self, reference: str) -> bool:
        try:
            self._buildah("inspect", "--type", "image", reference)
        except ClusterError:
            return False
        return True

    def _buildah(self, verb: str, *words: str) -> str:
        folder = self._folder
        stores = ("--root", folder / "storage", "--runroot", folder / "run", "--storage-driver", "overlay")
        files = ("--registries-conf", folder / "registries.conf")
        return run("buildah", *stores, *files, verb, *words, timeout=PATIENCE_S)
