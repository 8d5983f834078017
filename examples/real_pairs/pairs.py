"""The pairs that the demo can show: what it installs, writes and says of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.real_pairs import faces, words
from examples.real_pairs.packages import Package


@dataclass(frozen=True)
class Pair:
    """Two models of others, and pictures whose truth is known.

    ``environment``: pictures of packages that are there anyway: package, contents, licence. ``truth`` and ``measured``:
    how the truth is known, and what the accuracy is. ``rule``: of the service before its calibration. ``budget``: the
    share of frames that may go to the cloud. ``frames``: as many to answer as to calibrate on, unless the user gives
    another number. ``fps``: of each camera. ``film``: whether half of the frames come from a camera over RTSP.
    """

    name: str
    title: str
    intro: str
    truth: str
    measured: str
    small: str
    big: str
    packages: tuple[Package, ...]
    environment: tuple[tuple[str, str, str], ...]
    rule: str
    budget: float
    frames: int
    fps: float
    film: bool
    write_models: Callable[[Path, Path], list[dict[str, Any]]]
    write_frames: Callable[..., None]

    @property
    def sources(self) -> list[tuple[str, str, str]]:
        """All packages of which files are read, what these are, and their licence."""
        return [*((package.pin, package.contents, package.licence) for package in self.packages), *self.environment]


FACES = Pair(
    name="faces",
    title="Faces: BlazeFace asks CenterFace, where it is worth it",
    intro="A detector of 0.2 MB answers each frame at the edge. The frames that it is not sure of travel to a "
    "detector of 7 MB in the cloud.",
    truth="Frames are photographs of 1280 x 720 pixels with prints of faces at known places. The boxes of the 102 "
    "faces were drawn by hand. Nobody who is in a frame of the calibration is in a frame of this run.",
    measured="F1 is the harmonic mean of two shares: of the faces that are found, and of the boxes that are right. "
    "Boxes count from a score of 0.5 on, and are right if they overlap a face by half.",
    small="BlazeFace",
    big="CenterFace",
    packages=faces.PACKAGES,
    environment=faces.ENVIRONMENT,
    rule="UncertainBoxes",
    budget=0.3,
    frames=240,
    fps=4.0,
    film=True,
    write_models=faces.write_models,
    write_frames=faces.write_frames,
)
TEXT = Pair(
    name="text",
    title="Text: PP-OCRv4 asks PP-OCRv6, where it is worth it",
    intro="An older reader answers each crop of a word at the edge. The words that it is not sure of travel to a "
    "newer and larger one in the cloud.",
    truth="Words are random letters and digits in the fonts of this machine, seen from the side, blurred, and with "
    "noise. The words of the calibration are others.",
    measured="Exact match is the share of words that are right to the last character.",
    small="PP-OCRv4",
    big="PP-OCRv6",
    packages=words.PACKAGES,
    environment=(),
    rule="Threshold",
    budget=0.2,
    frames=400,
    fps=20.0,
    film=False,
    write_models=words.write_models,
    write_frames=words.write_frames,
)
PAIRS = {pair.name: pair for pair in (FACES, TEXT)}
