"""How much of the gap between two detectors each rule closes: edge, cloud, oracle, random, and every rule for boxes.

    python -m bench.detections
    python -m bench.detections --sets scenes --seeds 20 --samples 600

`scenes` are those of examples/detection, `faces` those of `make demo-faces`, whose people and photographs of the
calibration are not those of the test. `faces-low` are the same frames, with the small model's boxes from a score of
0.05 instead of 0.3: they show a rule what it almost found. Both models answer a pool of frames of each part once; the
answers are kept in `build/detections`. Each seed draws `--samples` frames of each pool: Learned is fitted on the one
draw, and all rules are measured on the other. `chosen by calibrate` is the rule that `halimede calibrate` takes on the
one draw, where it tries all of them. `oracle` uploads the frames of the highest reward, which only labels
tell.

Figures are means over the seeds, with their 95 % intervals. `gap`: (joint - edge) / (cloud - edge). The pools are
finite, so the draws of two seeds share frames, and the intervals count this. At the end stands the processor time of
the learned rule for 25 boxes. Ends with 1 if this is over 0.2 ms.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bench.calibration_services import EXAMPLES, example_models
from examples.detection import scenes
from examples.real_pairs import faces, packages
from examples.real_pairs.manifests import PARTS, service, write
from examples.real_pairs.packages import Package
from halimede.calibration.calibrate import Goal, fit
from halimede.calibration.candidates import LEARNED
from halimede.calibration.measurement import student95
from halimede.calibration.rewards import rewards_by
from halimede.evaluation.data import LabelledPicture, read_labelled
from halimede.evaluation.detection import Detection
from halimede.evaluation.service import answers, read_chain
from halimede.messages import Box, Prediction
from halimede.mining import create, hardness_of
from halimede.mining.calibration_file import CalibrationFile
from halimede.mining.reward import MAX_BOXES, expected_reward

RATIOS = (0.05, 0.1, 0.2, 0.5)
#: the share of uploads at which the gap is compared
COMPARED = 0.2
FIXED_RULES = ("Threshold", "IBT", "UncertainBoxes", "BoxCount", "SmallestBox")
#: most milliseconds of processor time that the learned rule may take for 25 boxes
LIMIT_MS = 0.2
TIMED = 200
FOLDER = Path(__file__).parents[1] / "build" / "detections"
Values = NDArray[np.float64]


class Answers(Struct):
    """The frames of one part: their objects, and the answers of both models."""

    objects: list[list[Box]]
    edge: list[Prediction]
    cloud: list[Prediction]

    def drawn(self, indices: Sequence[int]) -> Answers:
        """Return a part of the frames."""
        return Answers(
            [self.objects[i] for i in indices], [self.edge[i] for i in indices], [self.cloud[i] for i in indices]
        )


@dataclass(frozen=True)
class DataSet:
    """Two detectors, and what writes the frames of a part. ``pool``: the number of frames of each part."""

    name: str
    pool: int
    write_models: Callable[[Path], list[dict[str, Any]]]
    write_frames: Callable[[Path, str, int], None]
    packages: tuple[Package, ...] = ()


LOW_SCORE = 0.05


def write_low_models(folder: Path) -> list[dict[str, Any]]:
    """Write the face detectors, of which the small one also answers boxes of low scores."""
    small, big = faces.write_models(folder)
    small["spec"]["postprocess"]["nms"]["score"] = LOW_SCORE
    return [small, big]


DATA_SETS = (
    DataSet(
        "scenes",
        12_000,
        lambda _: example_models(EXAMPLES / "detection" / "1-models.yaml"),
        lambda folder, part, count: scenes.write(
            folder, scenes.scenes("test" if part == "test" else "calibrate", count)
        ),
    ),
    DataSet("faces", 2400, faces.write_models, faces.write_frames, faces.PACKAGES),
    DataSet("faces-low", 2400, write_low_models, faces.write_frames, faces.PACKAGES),
)


def read_pools(data_set: DataSet, count: int, folder: Path) -> dict[str, Answers]:
    """Return the answers to the frames of each part; the models answer only what is not in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {part: folder / f"{data_set.name}-{part}-{count}.json" for part in PARTS}
    if not all(file.exists() for file in files.values()):
        packages.install(data_set.packages, report=print)
        with tempfile.TemporaryDirectory(prefix="halimede-bench-") as name:
            for part, file in files.items():
                file.write_bytes(msgspec.json.encode(answer_frames(data_set, part, count, Path(name))))
    return {part: msgspec.json.decode(file.read_bytes(), type=Answers) for part, file in files.items()}


def answer_frames(data_set: DataSet, part: str, count: int, folder: Path) -> Answers:
    """Write the frames of a part, and let both models answer them."""
    models = data_set.write_models(folder)
    small, big = (body["metadata"]["name"] for body in models)
    write(folder / "service.yaml", [*models, service(data_set.name, small, big, "Threshold")])
    chain = read_chain([folder / "service.yaml"])
    data_set.write_frames(folder / part, part, count)
    data = read_labelled(folder / part, chain.cloud.spec.labels)
    return Answers(
        [list(boxes) for boxes in data.boxes or []], answers(chain.tiers[0], data), answers(chain.cloud, data)
    )


def calibrate(frames: Answers, rule: str) -> CalibrationFile:
    """Return what `halimede calibrate` writes for these frames; an empty ``rule`` tries all of them."""
    number = len(frames.edge)
    data = LabelledPicture(images=[np.zeros(1)] * number, names=[""] * number, sizes=[0] * number, boxes=frames.objects)
    return fit(frames.edge, frames.cloud, data, goal=Goal(target_upload=COMPARED), rule=rule, held_out=0).artefact


def hardness_by(artefact: CalibrationFile, frames: Answers) -> Values:
    """Return the hardness of the frames by the rule of a calibration."""
    if artefact.reward:
        return rewards_by(artefact.reward, frames.edge)
    return hardness_of(create(artefact.rule, artefact.parameters), frames.edge)


def orders_of(calibration: Answers, frames: Answers, measured: Detection, seed: int) -> dict[str, Values]:
    """Return the hardness of the frames by each rule; ``calibration``: those that rules are fitted on."""
    orders = {
        "oracle": measured.rewards(),
        "by objects gained": measured.gain(),
        "Learned": hardness_by(calibrate(calibration, LEARNED), frames),
        "chosen by calibrate": hardness_by(calibrate(calibration, ""), frames),
        "random": np.random.default_rng(seed).random(len(measured)),
    }
    for rule in FIXED_RULES:
        for empty in ("hard", "easy"):
            orders[f"{rule}, empty: {empty}"] = hardness_of(create(rule, {"empty": empty}), frames.edge)
    return orders


def accuracies(hardness: Values, measured: Detection, seed: int) -> list[float]:
    """Return mAP@0.5 if the hardest frames are uploaded, for each ratio; equally hard ones are in a random order."""
    number = len(measured)
    shuffled = np.random.default_rng(seed).permutation(number)
    order = shuffled[np.argsort(-hardness[shuffled], kind="stable")]
    values = []
    for ratio in RATIOS:
        uploaded = np.zeros(number, bool)
        uploaded[order[: round(ratio * number)]] = True
        values.append(measured.measure(uploaded)[0])
    return values


def measure(pools: Mapping[str, Answers], samples: int, seeds: int) -> tuple[Values, dict[str, Values]]:
    """Return mAP@0.5 of edge and cloud ``[seeds, 2]``, and of each rule ``[seeds, ratios]``."""
    ends, joint = [], dict[str, list[list[float]]]()
    for seed in range(seeds):
        chance = np.random.default_rng(seed)
        calibration, test = (
            pools[part].drawn(chance.choice(len(pools[part].edge), samples, replace=False).tolist()) for part in PARTS
        )
        measured = Detection(test.objects, test.edge, test.cloud)
        ends.append([measured.measure(np.full(samples, uploaded))[0] for uploaded in (False, True)])
        for rule, hardness in orders_of(calibration, test, measured, seed).items():
            joint.setdefault(rule, []).append(accuracies(hardness, measured, seed))
    return np.array(ends), {rule: np.array(values) for rule, values in joint.items()}


def mean_of_draws(values: Values, share: float) -> tuple[float, float]:
    """Return the mean over draws and half of its 95 % interval; each draw is this share of the frames of one pool.

    Draws without replacement differ by 1 - share of the variance of independent draws, and what all have in common is
    the variance of the pool, share of it (Shao and Wu, "A general theory for jackknife variance estimation", Annals of
    Statistics 1989).
    """
    spread = float(np.var(values, ddof=1)) * (share / (1 - share) + 1 / len(values))
    return float(np.mean(values)), student95(len(values) - 1) * math.sqrt(spread)


def learned_ms(calibration: Answers) -> float:
    """Return the processor time of the learned rule for one frame of 25 boxes, in milliseconds: the least of many."""
    chance = np.random.default_rng(0)
    corners, scores = chance.uniform(0, 500, (MAX_BOXES, 2)).tolist(), chance.random(MAX_BOXES).tolist()
    rule = calibrate(calibration, LEARNED).reward
    if rule is None:
        raise ValueError("calibrate fits no rule of boxes")
    names = rule.classes or ["face"]
    boxes = [
        Box(x, y, x + 100, y + 100, score, names[i % len(names)])
        for i, ((x, y), score) in enumerate(zip(corners, scores, strict=True))
    ]
    prediction, times = Prediction(boxes=boxes), []
    for _ in range(TIMED):
        start = time.process_time_ns()
        expected_reward(rule, prediction)
        times.append(time.process_time_ns() - start)
    return min(times) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m bench.detections", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", default=",".join(data_set.name for data_set in DATA_SETS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--samples", type=int, default=600, help="frames of each draw")
    parser.add_argument("--pool", type=int, help="frames of each pool, instead of the data set's own number")
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    for data_set in DATA_SETS:
        if data_set.name not in arguments.sets.split(","):
            continue
        count = arguments.pool or data_set.pool
        if arguments.samples >= count:
            parser.error(f"argument --samples: {arguments.samples} must be less than the {count} frames of the pool")
        pools, share = read_pools(data_set, count, FOLDER), arguments.samples / count
        ends, joint = measure(pools, arguments.samples, arguments.seeds)
        gaps = {rule: (values - ends[:, :1]) / (ends[:, 1:] - ends[:, :1]) for rule, values in joint.items()}
        compared = RATIOS.index(COMPARED)
        print(f"\n{data_set.name}: edge {ends[:, 0].mean():.3f}, cloud {ends[:, 1].mean():.3f} (mAP@0.5)")
        heads = "".join(f"{f'{ratio:.0%}':>16}" for ratio in RATIOS)
        print(f"{'rule':<28}{heads}{f'gap at {COMPARED:.0%}':>18}{'of oracle':>11}")
        rows: dict[str, Any] = {}
        for rule, values in joint.items():
            cells = [mean_of_draws(values[:, i], share) for i in range(len(RATIOS))]
            gap = mean_of_draws(gaps[rule][:, compared], share)
            of_oracle = gap[0] / float(gaps["oracle"][:, compared].mean())
            shown = "".join(f"{f'{mean:.3f} ± {half:.3f}':>16}" for mean, half in cells)
            print(f"{rule:<28}{shown}{f'{gap[0]:.3f} ± {gap[1]:.3f}':>18}{of_oracle:>11.2f}", flush=True)
            rows[rule] = {"map": cells, "gap": gap, "of_oracle": of_oracle}
        duration = learned_ms(pools["calibrate"].drawn(range(arguments.samples)))
        print(f"Learned takes {duration:.3f} ms of processor time for {MAX_BOXES} boxes")
        edge, cloud = ends.mean(axis=0).tolist()
        report[data_set.name] = {"edge": edge, "cloud": cloud, "rules": rows, "learned_ms": duration}
    (FOLDER / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return 1 if any(measured["learned_ms"] > LIMIT_MS for measured in report.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
