"""The pictures of bench.camera: JPEG files and films as cameras make them, out of photographs that packages bring.

The photographs are scikit-learn's, resampled to the size of a camera, with grain. Each next picture is another part of
a photograph, as of a camera that turns slowly. Nothing of this is in the repository.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

from halimede.frames.payloads import new_id
from halimede.messages import Frame

SIZES = {"1080p": (1920, 1080), "4K": (3840, 2160)}
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
#: pictures of each size; quality and grain (deviation in steps of 256) with which a file is as large as a camera's
COUNT, QUALITY, GRAIN = 6, 80, 4.0
#: share of a photograph's width that a picture shows
SHARE = 0.9
#: frames of a film, and frames a second
FILM_FRAMES, FILM_FPS = 60, 30
#: options of encoders that print otherwise
QUIET = {"libx265": {"x265-params": "log-level=none"}}


def picture(photograph: str, position: float, size: tuple[int, int]) -> Image.Image:
    """Return a picture of a camera that turns from the left (0) to the right (1) over a photograph."""
    import sklearn  # noqa: PLC0415  # slow to import, and only its files are read

    scene = Image.open(Path(sklearn.__file__).parent / "datasets" / "images" / photograph).convert("RGB")
    width = scene.width * SHARE
    height = width * size[1] / size[0]
    left, top = (scene.width - width) * position, (scene.height - height) / 2
    large = scene.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    grain = np.random.default_rng(round(position * 1e6)).normal(0, GRAIN, (size[1], size[0], 1))
    return Image.fromarray((np.asarray(large) + grain).clip(0, 255).astype(np.uint8))


def jpegs(size: tuple[int, int], count: int = COUNT) -> list[bytes]:
    """Return pictures of cameras as JPEG files, of each photograph in turn."""
    files = []
    for number in range(count):
        file = io.BytesIO()
        photograph = PHOTOGRAPHS[number % len(PHOTOGRAPHS)]
        picture(photograph, number / count, size).save(file, format="JPEG", quality=QUALITY)
        files.append(file.getvalue())
    return files


def write_jpegs(folder: Path, files: Sequence[bytes]) -> None:
    """Write files for other processes."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("camera-*.jpg"):
        old.unlink()
    for number, data in enumerate(files):
        (folder / f"camera-{number:03}.jpg").write_bytes(data)


def written_jpegs(folder: Path) -> list[bytes]:
    """Return the files that were written."""
    return [path.read_bytes() for path in sorted(folder.glob("camera-*.jpg"))]


def frame_of(data: bytes) -> Frame:
    """Return a JPEG as a frame on the bus."""
    return Frame(id=new_id(), encoding="jpeg", data=memoryview(data))


def write_film(path: Path, codec: str, size: tuple[int, int], frames: int, fps: float = FILM_FPS) -> Path:
    """Write a film of one photograph, without frames that wait for later ones: cameras send none."""
    import av  # noqa: PLC0415  # only where a film is made

    options = {"preset": "veryfast", "tune": "zerolatency", **QUIET.get(codec, {})}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(fps).limit_denominator(1000), options=options)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            shown = picture(PHOTOGRAPHS[0], number / frames, size)
            container.mux(stream.encode(av.VideoFrame.from_image(shown)))
        container.mux(stream.encode())
    return path
