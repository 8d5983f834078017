"""Pages of 40 words by a whole system that sends hard crops, compared with whole pages: accuracy, bytes, crops a page.

    python -m bench.pages                     24 pages to calibrate on, 24 to answer: some 5 minutes
    python -m bench.pages --pages 8 --out build/bench/pages

PP-OCRv4's detector finds the words of a page at the edge, and its recogniser reads them. PP-OCRv6's recogniser reads
the hard ones in the cloud. Broker, GM and both nodes are processes of their own. The service is calibrated on crops of
other pages, by ``halimede calibrate``. Whole pages are computed: as many go up, those first that crops changed most,
as give the accuracy of the crops; the cloud then reads each word of them.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from examples.demo_command import output_of
from examples.multi_edge import live
from examples.real_pairs import manifests, packages, pages, words
from examples.real_pairs.pages import Plate
from examples.real_pairs.record import Recorder, picture_key
from halimede import log
from halimede.api.base import convert
from halimede.api.model import ModelSpec
from halimede.bus.mqtt import MqttBus
from halimede.errors import HalimedeError
from halimede.inference import Model, open_model
from halimede.inference.crops import pixels
from halimede.messages import Box, Prediction, Result
from halimede.pipeline.crops import combine_answers

NAME, CAMERA = "pages", "board"
NODES = ("edge0", "cloud0")
BUDGET, RULE, FPS = 0.2, "Threshold", 1.0
#: seconds until the service runs, and without a further answer
START_S, SILENT_S = 120.0, 60.0


@dataclass(frozen=True)
class Measurement:
    """What one run measured: shares of words that were read to the last letter, and bytes that went up."""

    pages: int
    plates: int
    crops: int
    edge: float
    joint: float
    cloud: float
    crops_up: int
    crop_bytes: int
    whole_pages: int
    whole_bytes: int
    all_bytes: int
    lost: int
    repeated: int


def opened(body: dict[str, Any]) -> Model:
    """Open the Model of a manifest."""
    return open_model(body["spec"]["url"], convert(body["spec"], ModelSpec, "spec"))


def crops_of(picture: np.ndarray, boxes: Sequence[Box]) -> list[np.ndarray]:
    """Return the pixels of boxes."""
    corners = [pixels(box, picture) for box in boxes]
    return [picture[y1:y2, x1:x2] for x1, y1, x2, y2 in filter(None, corners)]


def write_crops(folder: Path, source: Path, truths: dict[str, list[Plate]], detector: Model) -> int:
    """Write the crops of words that a detector finds, with their texts as ``metadata.csv``; return how many."""
    folder.mkdir(parents=True)
    rows = []
    for name, page in truths.items():
        picture = np.asarray(Image.open(source / name))
        boxes = [box for box in detector.predict([detector.prepare(picture)])[0].boxes or () if pixels(box, picture)]
        for number, (box, crop) in enumerate(zip(boxes, crops_of(picture, boxes), strict=True)):
            middle = (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2
            text = next((plate.text for plate in page if plate.contains(*middle)), "")
            if text:
                file = f"{name[:-4]}-{number:03}.png"
                Image.fromarray(crop).save(folder / file)
                rows.append((file, text))
    with (folder / "metadata.csv").open("w", newline="") as file_:
        csv.writer(file_).writerows([("file_name", "text"), *rows])
    return len(rows)


def write_service(path: Path, installed: Path) -> list[dict[str, Any]]:
    """Write the manifests of the Models and of the service; return those of the Models, the detector last."""
    models = [*words.write_models(path.parent, installed), pages.detector(installed)]
    body = manifests.service(NAME, "text-small", "text-big", RULE, [CAMERA])
    body["spec"]["edgeWorker"]["detector"] = {"name": "text-detector", "maxBoxes": 100}
    manifests.write(path, [*models, body])
    return models


async def answer(folder: Path, calibrated: Path, names: Sequence[str]) -> tuple[Recorder, dict[str, Result]]:
    """Let a whole system answer all pages; return what was recorded, and the results by page."""
    keys = {picture_key((folder / "test" / name).read_bytes()): name for name in names}
    recorder = Recorder(NAME, keys)
    async with (
        live.system(folder / "home", ("--insecure",), NODES) as where,
        MqttBus("bench-pages", where.settings) as bus,
    ):
        await recorder.listen(bus)
        await output_of("apply", "-f", str(calibrated), environment=where.environment)
        await recorder.until("Running", START_S, lambda: recorder.phase == "Running")
        files = [str(folder / "test" / name) for name in names]
        options = ("--camera", CAMERA, "--fps", f"{FPS:g}", "--wait")
        await output_of("publish", *files, *options, environment=where.environment)
        await recorder.until("the last answer", SILENT_S, lambda: len(recorder.results) >= len(names))
        crops = sum(len(result.prediction.lines or ()) for result, _ in recorder.results.values())
        await recorder.until("the last count", SILENT_S, lambda: recorder.metric("inferenceNumber") >= crops)
    results = {recorder.published[key].picture: result for key, (result, _) in recorder.results.items()}
    return recorder, results


def measure(
    folder: Path, truths: dict[str, list[Plate]], recorder: Recorder, results: dict[str, Result], big: Model
) -> Measurement:
    """Measure the answers of a run."""
    edge, joint, cloud, hard, sizes = [], [], [], [], []
    for name, page in truths.items():
        result = results.get(name)
        final = result.prediction if result else Prediction()
        small = (result.edge if result else None) or final
        picture = np.asarray(Image.open(folder / "test" / name))
        boxes = [_box_of(line.corners or ()) for line in final.lines or ()]
        read = [big.predict([big.prepare(crop)])[0] for crop in crops_of(picture, boxes)]
        edge.append(pages.read_right(page, small))
        joint.append(pages.read_right(page, final))
        cloud.append(pages.read_right(page, combine_answers(boxes, read, "text")))
        pairs = zip(small.lines or (), final.lines or (), strict=True)
        hard.append(sum(before.text != after.text for before, after in pairs))
        sizes.append((folder / "test" / name).stat().st_size)
    right = [sum(map(sum, answers)) for answers in (edge, joint, cloud)]
    total = sum(map(len, truths.values()))
    order = sorted(range(len(edge)), key=lambda page: -hard[page])
    up = whole_pages([sum(edge[page]) for page in order], [sum(cloud[page]) for page in order], right[1])
    return Measurement(
        pages=len(truths),
        plates=total,
        crops=recorder.metric("inferenceNumber"),
        edge=right[0] / total,
        joint=right[1] / total,
        cloud=right[2] / total,
        crops_up=recorder.metric("cloudInferenceNumber"),
        crop_bytes=recorder.metric("uploadedBytes"),
        whole_pages=up,
        whole_bytes=sum(sizes[page] for page in order[:up]),
        all_bytes=sum(sizes),
        lost=len(truths) - len(results),
        repeated=recorder.repeated,
    )


def whole_pages(edge: Sequence[int], cloud: Sequence[int], least: int) -> int:
    """Return how many of the first pages the cloud must read for so many right words; all if there are too few."""
    right = sum(edge)
    for count, (before, after) in enumerate(zip(edge, cloud, strict=True)):
        if right >= least:
            return count
        right += after - before
    return len(edge)


def _box_of(corners: Sequence[Any]) -> Box:
    return Box(corners[0].x, corners[0].y, corners[2].x, corners[2].y, 1.0)


def table(measured: Measurement) -> str:
    """Return a measurement as a table of Markdown."""
    rows = [
        ("the edge alone", measured.edge, 0, ""),
        ("hard crops", measured.joint, measured.crop_bytes, f"{measured.crops_up / measured.pages:.1f} crops"),
        (
            "whole pages, for as many right words",
            measured.joint,
            measured.whole_bytes,
            f"{measured.whole_pages} of {measured.pages} pages",
        ),
        ("all pages", measured.cloud, measured.all_bytes, "1 page"),
    ]
    lines = ["| what goes up | exact match of words | bytes a page | of a page |", "|---|---|---|---|"]
    lines += [f"| {name} | {right:.3f} | {size / measured.pages:,.0f} | {what} |" for name, right, size, what in rows]
    return "\n".join(lines)


def run(count: int, folder: Path, installed: Path) -> Measurement:
    """Prepare, calibrate, answer and measure. Raises HalimedeError."""
    packages.install(words.PACKAGES, installed, print)
    shutil.rmtree(folder, ignore_errors=True)
    models = write_service(folder / "service.yaml", installed)
    truths = {part: pages.write_pages(folder / part, part, count) for part in manifests.PARTS}
    with opened(models[-1]) as detector:
        crops = write_crops(folder / "crops", folder / "calibrate", truths["calibrate"], detector)
    print(f"{count} pages have {crops} crops of words to calibrate on")
    files = ("--service", str(folder / "service.yaml"), "--data", str(folder / "crops"), "--out", str(folder))
    asyncio.run(output_of("calibrate", *files, "--target-upload", f"{BUDGET:g}", "--accept", "--json"))
    recorder, results = asyncio.run(answer(folder, folder / f"{NAME}.calibration.yaml", list(truths["test"])))
    with opened(models[1]) as big:
        return measure(folder, truths["test"], recorder, results, big)


def main() -> None:
    """Run the bench and print its table; exit 1 if a page was lost or answered twice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=24, help="to answer, and as many to calibrate on")
    parser.add_argument("--out", type=Path, default=Path("build/bench/pages"))
    parser.add_argument("--packages", type=Path, default=packages.FOLDER, help="folder of what is installed")
    options = parser.parse_args()
    log.configure("ERROR")
    try:
        measurement = run(options.pages, options.out, options.packages)
    except HalimedeError as error:
        sys.exit(f"Error: {error}")
    (options.out / "figures.json").write_text(json.dumps(asdict(measurement), indent=1) + "\n")
    print(table(measurement))
    print(msgspec.json.encode(measurement).decode())
    sys.exit(bool(measurement.lost or measurement.repeated))


if __name__ == "__main__":
    main()
