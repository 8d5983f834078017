"""Occupancy events of films with known visits: precision, recall and delay, at several settings.

    python -m bench.occupancy                   40 films for each setting; about a minute
    python -m bench.occupancy --films 10        in short
    python -m bench.occupancy --live            frames a second with and without occupancy, and the time to an event

Each film has 300 frames, ten a second, of one handwritten digit that slides into the picture, stands on the border of
a zone, and leaves; strokes, blur and noise make some films hard. The small model of ``examples/detection`` answers the
frames, and the tracker makes events of its answers. An ``entered`` event of the digit's label during its visit counts
as right, once for each visit and zone; each other one is false. Writes build/bench/occupancy.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from PIL import Image, ImageFilter

from bench import occupancy_live, results
from examples.detection.scenes import LABELS, SIDE, digits
from halimede.api.base import parse
from halimede.api.occupancy import Occupancy, Zone
from halimede.cli.manifests import load
from halimede.inference import open_model
from halimede.messages import Prediction
from halimede.occupancy import OccupancyTracker, detected_objects

FRAMES, FRAMES_PER_S, ABSENT = 300, 10, 60
#: the right half of the picture; the digit stands on its border
ZONE = Zone(name="right", camera="cam0", polygon=[[0.5, 0.0], [1.0, 0.0], [1.0, 1.0], [0.5, 1.0]])
#: minFrames and holdS
SETTINGS = ((1, 0.0), (3, 1.0), (5, 3.0))
MIN_SCORE = 0.5
DETECTOR = results.ROOT / "examples" / "detection"


@dataclass(frozen=True)
class Film:
    """Pictures [frames, SIDE, SIDE], the digit's label, and its first and last frame in the picture and in the zone."""

    pictures: np.ndarray
    label: str
    visits: dict[str, tuple[int, int]]


def make_film(number: int) -> Film:
    """Return a film: always the same one for a number."""
    draw = np.random.default_rng(number)
    images, labels = digits("test")
    chosen, side, hard = int(draw.integers(len(labels))), int(draw.integers(16, 25)), draw.random()
    image = Image.fromarray(images[chosen].astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC)
    ink = np.clip(np.asarray(image), 0, 1) * draw.uniform(70, 170)
    ground = draw.uniform(25, 80) + np.zeros((SIDE, SIDE))
    top, target = int(draw.integers(4, SIDE - side - 4)), SIDE // 2 - side // 2
    start, stop = ABSENT, FRAMES - ABSENT
    pictures, in_picture, in_zone = [], [], []
    for frame in range(FRAMES):
        travel = min((frame - start) / 40, (stop - frame) / 40, 1.0)
        x = round(-side + travel * (target + side) + (draw.normal(0, 1.5) if travel >= 1 else 0))
        canvas = np.pad(ground, side, mode="edge")
        if travel > 0:
            canvas[top + side : top + 2 * side, x + side : x + 2 * side] += ink
        picture = Image.fromarray(np.clip(canvas[side:-side, side:-side], 0, 255).astype(np.uint8))
        blurred = np.asarray(picture.filter(ImageFilter.GaussianBlur(0.9 * hard)))
        pictures.append(np.clip(blurred + draw.normal(0, 2 + 20 * hard, blurred.shape), 0, 255).astype(np.uint8))
        in_picture += [frame] if travel > 0 and x >= 0 else []
        in_zone += [frame] if travel > 0 and x + side / 2 > SIDE / 2 else []
    visits = {zone: (frames[0], frames[-1]) for zone, frames in (("", in_picture), (ZONE.name, in_zone)) if frames}
    return Film(np.stack(pictures), LABELS[labels[chosen]], visits)


def answers_of(films: Sequence[Film]) -> list[list[Prediction]]:
    """Return the small model's answer to each frame of each film."""
    manifest = load([str(DETECTOR / "1-models.yaml")])[0]
    with open_model(DETECTOR / "models" / "small.onnx", parse(manifest.resource.body).spec) as model:
        return [[model.predict([picture])[0] for picture in film.pictures] for film in films]


def measure(
    films: Sequence[Film], answers: Sequence[Sequence[Prediction]], min_frames: int, hold_s: float
) -> dict[str, float]:
    """Return precision and recall of entered events, their median delay (frames), and events a film."""
    right = false = events = visits = 0
    delays: list[int] = []
    for film, predictions in zip(films, answers, strict=True):
        tracker = OccupancyTracker(Occupancy(min_frames=min_frames, hold_s=hold_s, zones=[ZONE]))
        visits += len(film.visits)
        entered = set[str]()
        for i, answer in enumerate(predictions):
            objects = detected_objects(answer, (SIDE, SIDE), min_score=MIN_SCORE) or []
            for change in tracker.observe("cam0", i * 10**9 // FRAMES_PER_S, f"{i:032x}", objects):
                events += 1
                if change.kind != "entered":
                    continue
                first, last = film.visits.get(change.zone, (FRAMES, 0))
                if change.label == film.label and first <= i <= last and change.zone not in entered:
                    entered.add(change.zone)
                    right += 1
                    delays.append(i - first)
                else:
                    false += 1
    return {
        "minFrames": min_frames,
        "holdS": hold_s,
        "precision": round(right / max(right + false, 1), 3),
        "recall": round(right / visits, 3),
        "delay_frames": median(delays) if delays else FRAMES,
        "events_per_film": round(events / len(films), 1),
    }


def main() -> int:
    """Measure each setting, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--films", type=int, default=40, help="films for each setting")
    parser.add_argument("--live", action="store_true", help="measure a worker on a real broker instead")
    arguments = parser.parse_args()
    if arguments.live:
        rates = occupancy_live.measure()
        print("  ".join(f"{name} {value}" for name, value in rates.items()))
        results.write(results.FOLDER / "occupancy-live.json", rates)
        return 0
    films = [make_film(number) for number in range(arguments.films)]
    answers = answers_of(films)
    rows = [measure(films, answers, *setting) for setting in SETTINGS]
    print(f"{len(films)} films, {sum(len(film.visits) for film in films)} visits of pictures and zones")
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    results.write(results.FOLDER / "occupancy.json", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
