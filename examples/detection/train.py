"""Train the small and the big detector on scenes of their own, and write both as ONNX files with pictures to try.

    python -m examples.detection.train

The small one takes long steps, knows few sizes and has a narrow network; the big one looks everywhere. Both learn from
the fit scenes alone. What is written into ./pictures: the scenes to calibrate on and to test on, with their boxes as
COCO has them.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from examples.detection.detector import Network, Plan, boxes, export, windows
from examples.detection.scenes import LABELS, Floats, Part, Scene, scenes, write

FOLDER = Path(__file__).parent / "models"
PICTURES = Path(__file__).parent / "pictures"
#: scenes of each part
COUNTS: dict[Part, int] = {"fit": 400, "tune": 60, "calibrate": 300, "test": 300}
#: plan, hidden units and rounds of learning
MODELS = {
    "small": (Plan(sides=(11.5, 14.5, 18.0, 23.0), stride=2), 24, 10),
    "big": (Plan(sides=(10.0, 12.0, 14.4, 17.3, 20.7, 24.9), stride=1), 96, 10),
}
#: overlap (intersection over union) from which a window shows the digit, and under which it shows nothing
SHOWN, NOTHING = 0.6, 0.35
#: windows of a scene that are learnt from: with a digit, without; and those among which to look for mistaken ones
WITH, WITHOUT, LOOKED_AT = 30, 40, 1500
BACKGROUND = len(LABELS)


def main() -> None:
    """Train, export, and say what came out."""
    warnings.filterwarnings("ignore", category=ConvergenceWarning)  # a few rounds are enough
    FOLDER.mkdir(exist_ok=True)
    with threadpool_limits(1):  # matrices this small gain nothing by more, and sums come out the same everywhere
        write_models()
    for part in ("calibrate", "test"):
        shown = scenes(part, COUNTS[part])
        write(PICTURES / part, shown)
        print(f"pictures/{part}: {len(shown)} scenes with {sum(len(scene.boxes) for scene in shown)} digits")


def write_models() -> None:
    """Train and export both."""
    fit, tune = scenes("fit", COUNTS["fit"]), scenes("tune", COUNTS["tune"])
    for name, (plan, hidden, rounds) in MODELS.items():
        model = export(plan, tuned(plan, train(plan, fit, hidden, rounds), tune))
        onnx.save(model, FOLDER / f"{name}.onnx")
        size = (FOLDER / f"{name}.onnx").stat().st_size
        print(f"{name}.onnx: {size / 1024:.0f} KiB, {len(boxes(plan))} windows a scene")


def train(plan: Plan, fit: list[Scene], hidden: int, rounds: int) -> Network:
    """Fit the network, then go on with the windows that it took for digits and that are none."""
    draw = np.random.default_rng(0)
    model = MLPClassifier(
        (hidden,), alpha=1e-3, learning_rate_init=2e-3, max_iter=rounds // 2, random_state=0, warm_start=True
    )
    rows, labels = _examples(plan, fit, draw)
    model.fit(rows, labels)
    fooled = _mistaken(plan, fit, draw, model)
    model.set_params(max_iter=rounds)
    model.fit(np.concatenate([rows, fooled]), np.concatenate([labels, np.full(len(fooled), BACKGROUND)]))
    (first, out), (first_bias, out_bias) = model.coefs_, model.intercepts_
    return Network(*(np.asarray(part, np.float64) for part in (first, first_bias, out, out_bias)))


def _examples(plan: Plan, fit: list[Scene], draw: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return windows that show digits and windows that show none, by lot, and what they show."""
    places, rows, labels = boxes(plan), [], []
    for scene in fit:
        best, which = overlaps(places, scene)
        shown = np.sort(draw.permutation(np.flatnonzero(best >= SHOWN))[:WITH])
        nothing = np.sort(draw.permutation(np.flatnonzero(best < NOTHING))[:WITHOUT])
        rows += [windows(plan, scene.picture, shown), windows(plan, scene.picture, nothing)]
        labels += [which[shown], np.full(len(nothing), BACKGROUND)]
    return np.concatenate(rows), np.concatenate(labels)


def _mistaken(plan: Plan, fit: list[Scene], draw: np.random.Generator, model: MLPClassifier) -> NDArray[np.float32]:
    """Return windows that show no digit and were taken for one."""
    places, found = boxes(plan), []
    for scene in fit:
        best, _ = overlaps(places, scene)
        nothing = np.sort(draw.permutation(np.flatnonzero(best < NOTHING))[:LOOKED_AT])
        rows = windows(plan, scene.picture, nothing)
        fooled = model.predict_proba(rows)[:, BACKGROUND] < 0.8
        found.append(rows[fooled][:WITHOUT])
    return np.concatenate(found)


def tuned(plan: Plan, network: Network, tune: list[Scene]) -> Network:
    """Make scores mean what they say: one temperature, and one number for how common nothing is.

    Windows were learnt from in other shares than scenes have them, so that scores are too high by as much. Both numbers
    are those under which what is in the loudest windows of other scenes is most likely (scaling as in Guo et al., "On
    calibration of modern neural networks", ICML 2017).
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        export(plan, network).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    places, said, truths = boxes(plan), [], []
    for scene in tune:
        (output,) = session.run(None, {"scene": (scene.picture / np.float32(255))[np.newaxis, np.newaxis]})
        scores = output[0, 4:].T.astype(np.float64)
        loud = np.flatnonzero(scores.sum(axis=1) > 0.01)
        best, which = overlaps(places[loud], scene)
        nothing = 1 - scores[loud].sum(axis=1, keepdims=True)
        said.append(np.log(np.concatenate([scores[loud], nothing], axis=1).clip(1e-9)))
        truths.append(np.where(best >= 0.5, which, BACKGROUND))
    logs, labels = np.concatenate(said), np.concatenate(truths)

    def unlikely(numbers: Floats) -> float:
        moved = logs / np.exp(numbers[0])
        moved[:, BACKGROUND] += numbers[1]
        top = moved.max(axis=1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(moved - top).sum(axis=1))
        return float((total - moved[np.arange(len(moved)), labels]).mean())

    warmth, common = minimize(unlikely, np.zeros(2), method="Nelder-Mead").x
    heat = np.exp(warmth)
    bias = network.out_bias / heat + common * (np.arange(BACKGROUND + 1) == BACKGROUND)
    return Network(network.hidden, network.hidden_bias, network.out / heat, bias)


def overlaps(places: Floats, scene: Scene) -> tuple[Floats, NDArray[np.int64]]:
    """Return the most (intersection over union) that each of ``[n, 4]`` overlaps a digit of the scene, and which."""
    first = np.maximum(places[:, np.newaxis, :2], scene.boxes[:, :2])
    last = np.minimum(places[:, np.newaxis, 2:], scene.boxes[:, 2:])
    shared = np.maximum(last - first, 0).prod(axis=2)
    own, theirs = ((box[:, 2:] - box[:, :2]).prod(axis=1) for box in (places, scene.boxes))
    shares = shared / (own[:, np.newaxis] + theirs - shared)
    if not len(scene.boxes):
        return np.zeros(len(places)), np.full(len(places), BACKGROUND)
    return shares.max(axis=1), scene.labels[shares.argmax(axis=1)]


if __name__ == "__main__":
    main()
