"""The Dockerfile: its stages, the images that it makes, and what each of them is made of."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "Dockerfile"
#: where it installs from, mounted while an image is built
PIP, WHEEL = "/pip/bin/pip --python /venv", "/wheel/*.whl"


@dataclass(frozen=True)
class Stage:
    """A stage. ``own``: its instructions, as pairs of a word and the rest; ``all``: those of its bases too."""

    name: str
    base: str
    own: tuple[tuple[str, str], ...]
    all: tuple[tuple[str, str], ...]

    def lines(self, word: str) -> list[str]:
        return [rest for each, rest in self.all if each == word]

    @property
    def extras(self) -> set[str]:
        """Those of the wheel that its last step installs, and checks."""
        (found,) = re.findall(r"\*\.whl\)\[([a-z0-9,]+)\]", "\n".join(self.lines("RUN")))
        return set(found.split(","))

    @property
    def packages(self) -> set[str]:
        """What its layers install by name."""
        installed = [line.partition(f"{PIP} install ")[2] for line in self.lines("RUN") if "--no-index" not in line]
        words = " ".join(line.partition(" && ")[0] for line in installed).split()
        return {word for word in words if re.fullmatch(r"[a-z0-9-]+", word) and not word.startswith("-")}

    @property
    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for line in self.lines("ENV") for pair in line.split())

    @property
    def entrypoint(self) -> list[str]:
        found: list[str] = json.loads(self.lines("ENTRYPOINT")[-1])
        return found


def stages() -> dict[str, Stage]:
    text = re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, Stage] = {}
    for part in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]:
        head, *rest = [re.sub(r"\s+", " ", line).strip() for line in part.splitlines() if line.strip()]
        base, _, name = head.partition(" AS ")
        own = tuple((line.partition(" ")[0], line.partition(" ")[2]) for line in rest)
        found[name] = Stage(name, base, own, (*(found[base].all if base in found else ()), *own))
    return found


def tags() -> dict[str, str]:
    """Return the name of each image by target, as the file's head builds them."""
    return dict(re.findall(r"^#   docker build --target (\S+) -t (\S+) \.$", FILE.read_text(), re.MULTILINE))


def images() -> dict[str, Stage]:
    every = stages()
    return {target: every[target] for target in tags()}
