"""What `halimede camera` takes for a frame of H.264 or H.265 from its packet to the JPEG that it publishes.

Beside it are PyAV with OpenCV's ``imencode``, in the same quality, and the decoding alone, which is in both. All take
turns in one process. FFmpeg decodes with its default threads in all of them, and processor time counts all threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import av
import cv2

from bench.camera_frames import SIZES, write_film
from halimede.cameras.address import parse
from halimede.cameras.ipc_messages import SourceError
from halimede.cameras.settings import CameraSettings
from halimede.cameras.source_reader import ReadProgress, read_frames

CODECS = {"H.264": "libx264", "H.265": "libx265"}
QUALITY = CameraSettings("", parse("/")).quality


def films(folder: Path, frames: int) -> dict[str, Path]:
    """Write a film of 1080p for each codec that PyAV can write here; return them."""
    written = {}
    for name, codec in CODECS.items():
        if codec in av.codecs_available:
            written[name] = write_film(folder / f"{codec}.mp4", codec, SIZES["1080p"], frames)
    return written


def by_halimede(film: Path) -> Iterator[int]:
    """Yield the bytes of each frame's JPEG, as a camera's reader makes it."""
    settings = CameraSettings("film", parse(str(film)), pace=0, quality=QUALITY)
    try:
        for shot in read_frames(settings, ReadProgress()):
            yield len(shot.make().data)
    except SourceError:
        return  # its end


def by_opencv(film: Path) -> Iterator[int]:
    """Yield the bytes of each frame's JPEG by PyAV and OpenCV."""
    with av.open(str(film)) as container:
        for frame in container.decode(video=0):
            _, written = cv2.imencode(".jpg", frame.to_ndarray(format="bgr24"), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
            yield written.size


def decoded_alone(film: Path) -> Iterator[int]:
    """Yield 0 for each frame that was decoded."""
    with av.open(str(film)) as container:
        yield from (0 for _ in container.decode(video=0))


READERS: Mapping[str, Callable[[Path], Iterator[int]]] = {
    "halimede camera": by_halimede,
    "PyAV, imencode": by_opencv,
    "decoding alone": decoded_alone,
}


def measure(folder: Path, frames: int, rounds: int) -> dict[str, Any]:
    """Return by codec and reader what a frame takes: milliseconds of processor time, and bytes of its JPEG."""
    cv2.setNumThreads(1)
    times: dict[tuple[str, str], list[float]] = {}
    sizes: dict[tuple[str, str], float] = {}
    paths = films(folder, frames)
    for number in range(rounds + 1):
        for codec, film in paths.items():
            for name in READERS if number % 2 else reversed(READERS):
                start = time.process_time()
                counts = list(READERS[name](film))
                cost_ms = (time.process_time() - start) * 1000 / len(counts)
                sizes[codec, name] = statistics.mean(counts)
                if number:  # the first is to warm up
                    times.setdefault((codec, name), []).append(cost_ms)
    return {
        codec: {
            name: {
                "ms": round(statistics.median(times[codec, name]), 3),
                "spread": [round(min(times[codec, name]), 3), round(max(times[codec, name]), 3)],
                "jpeg_bytes": round(sizes[codec, name]),
            }
            for name in READERS
        }
        for codec in paths
    }
