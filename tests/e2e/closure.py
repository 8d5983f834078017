"""A Python environment with exactly what some extras need, made of links to what is installed here already.

What pip would find for the extras of an image is what the constraints name, and that is what is installed here: only
that nothing else is in reach has to be tried, and that takes no download. `test_install.py` runs pip itself, once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement


def needed(extras: Iterable[str]) -> list[Distribution]:
    """Return all distributions that halimede needs with these extras, itself left out."""
    found: dict[str, Distribution] = {}
    waiting = [("halimede", frozenset(extras))]
    done = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name.lower(), wanted) in done:
            continue
        done.add((name.lower(), wanted))
        found[name.lower()] = distribution(name)
        waiting += [(r.name, frozenset(r.extras)) for r in _requirements(found[name.lower()], wanted)]
    del found["halimede"]
    return list(found.values())


def _requirements(of: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in of.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def environment(venv: Path, extras: Iterable[str], wheel: Path) -> None:
    """Make a virtual environment of a wheel of halimede and of what it needs with these extras."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    with ZipFile(wheel) as file:
        file.extractall(site)
    for each in needed(extras):
        for top in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(each.locate_file(top))))
