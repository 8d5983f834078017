"""Writes what the cameras film: video files, and the truth about them.

    python -m examples.multi_edge.films [--seconds 24] [--out build/demo-multi-edge/films]

``street-<camera>.mkv`` are three views of one plane for re-identification, ``board-<camera>.mkv`` three views of one
board of digits for fusion, ``belt-...`` one digit a frame for balance. All are Motion JPEG, as cheap network
cameras send it: what is on its way to the nodes is what a camera has compressed, and nobody compresses it again.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image

from examples.multi_edge import boards, scene
from examples.multi_edge.pictures import Picture

#: frames a second of the street's cameras, and of the board's
FPS, BOARD_FPS = 6.0, 8.0
QUALITY = 88


@dataclass(frozen=True)
class Film:
    """One camera's video file. ``fps``: as it is played."""

    camera: str
    path: Path
    fps: float


def street(folder: Path, seconds: float, fps: float = FPS) -> list[Film]:
    """Film the plane from three sides."""
    films = [Film(camera.name, folder / f"street-{camera.name}.mkv", fps) for camera in scene.CAMERAS]
    frames = range(int(seconds * fps))
    halves = [(i, seconds, fps) for i in (frames[: len(frames) // 2], frames[len(frames) // 2 :])]
    with ProcessPoolExecutor(2) as pool:
        views = [views for part in pool.map(_street, halves) for views in part]
    for i, film in enumerate(films):
        write(film.path, (three[i] for three in views), fps)
    return films


def _street(part: tuple[Sequence[int], float, float]) -> list[list[bytes]]:
    frames, seconds, fps = part
    found = []
    for i in frames:
        draw = np.random.default_rng((scene.SEED, i))
        above = scene.plane(i / fps, seconds)
        found.append([jpeg(scene.view(camera, above, i / fps / seconds, draw)) for camera in scene.CAMERAS])
    return found


def board(folder: Path, shown: boards.Shown, fps: float = BOARD_FPS) -> list[Film]:
    """Film the board of digits through three kinds of bad weather."""
    films = []
    for camera in boards.CAMERAS:
        path = folder / f"board-{camera}.mkv"
        write(path, (jpeg(picture) for picture in boards.views(camera, shown)), fps)
        films.append(Film(camera, path, fps))
    return films


def belt(folder: Path, count: int, fps: float, name: str) -> list[Film]:
    """Film ``count`` digits for each camera, one a frame."""
    films = []
    for i, camera in enumerate(boards.CAMERAS):
        path = folder / f"belt-{name}-{camera}.mkv"
        write(path, (jpeg(picture) for picture in boards.belt(count, i)), fps)
        films.append(Film(camera, path, fps))
    return films


def jpeg(picture: Picture) -> bytes:
    """Compress one picture as a camera does."""
    out = io.BytesIO()
    Image.fromarray(picture).save(out, format="JPEG", quality=QUALITY)
    return out.getvalue()


def write(path: Path, pictures: Iterable[bytes], fps: float) -> None:
    """Write a Motion JPEG file of pictures that are compressed already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = Fraction(fps).limit_denominator(1000)
    with av.open(str(path), "w") as container:
        stream = None
        for i, data in enumerate(pictures):
            if stream is None:
                with Image.open(io.BytesIO(data)) as first:
                    stream = container.add_stream("mjpeg", rate=rate)
                    stream.width, stream.height = first.size
                    stream.pix_fmt = "yuvj420p"
            packet = av.Packet(data)
            packet.stream, packet.time_base = stream, 1 / rate
            packet.pts = packet.dts = i
            packet.is_keyframe = True
            container.mux(packet)


def read(path: Path) -> Iterator[bytes]:
    """Yield the pictures of such a file, compressed."""
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            if packet.size:
                yield bytes(packet)


def main() -> None:
    """Write the films, for who wants to look at them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=24.0)
    parser.add_argument("--out", type=Path, default=Path("build/demo-multi-edge/films"))
    options = parser.parse_args()
    films = street(options.out, options.seconds)
    films += board(options.out, boards.show(int(options.seconds * BOARD_FPS)))
    for film in films:
        print(f"{film.path}: {film.path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
