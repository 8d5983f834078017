"""Train the three models of the demo and write them as ONNX files: a few seconds, from what libraries bring.

    python -m examples.multi_edge.train

``embedder.onnx`` turns the picture of an object into 64 numbers, near to one another for pictures of one object
whatever light and noise there is. It is a linear discriminant analysis (Fisher 1936) over 16 x 16 pixels, learnt from
objects that are in no film: whom the cameras see it has never seen. ``digits.onnx`` reads a digit through bad weather
for fusion, ``belt.onnx`` a clean one for balance.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageFilter
from skl2onnx import to_onnx
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline

from examples.digits import data as digits
from examples.multi_edge import boards, pictures
from examples.multi_edge.pictures import Picture

FOLDER = Path(__file__).parent / "models"
#: side of what the models are given, numbers in a vector, objects and pictures of each that it is learnt from
SIDE, LENGTH, THINGS, LOOKS = 16, 64, 300, 14
#: share of an even spread that is added to what varies within an object, so that nothing counts as certain
SHRINK = 0.08
#: how often each training digit is seen through each camera's weather
WEATHERS = 3

Matrix = NDArray[np.float64]


def main() -> None:
    """Train, export, and say what came out."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="sklearn")
    warnings.filterwarnings("ignore", category=ConvergenceWarning)  # a few rounds are enough
    FOLDER.mkdir(exist_ok=True)
    x, y = looks(pictures.training(THINGS, seed=1), seed=2)
    onnx.save(embedder(*discriminants(x, y)), FOLDER / "embedder.onnx")
    print(f"embedder.onnx: {LENGTH} numbers of {SIDE} x {SIDE} pixels, from {THINGS} objects that are in no film")

    seen, labels = weather(training=True, count=898, rounds=WEATHERS)
    reader = MLPClassifier((128,), alpha=0.5, learning_rate_init=3e-3, max_iter=14, random_state=0)
    model = make_pipeline(PCA(60, whiten=True, random_state=0), reader)
    model.fit(seen, labels)
    _save("digits.onnx", model, seen)
    for camera in boards.CAMERAS:
        seen, labels = weather(training=False, count=899, rounds=1, cameras=(camera,))
        print(f"digits.onnx: accuracy on unseen digits, camera {camera}: {model.score(seen, labels):.3f}")

    split = digits.load()
    clean = LogisticRegression(C=0.05, max_iter=1000).fit(split.train_x, split.train_y)
    _save("belt.onnx", clean, split.train_x)


def looks(things: list[Picture], seed: int) -> tuple[Matrix, NDArray[np.int64]]:
    """Show each object in many lights, shifted and noisy, as a row of numbers each, and whose it is."""
    draw = np.random.default_rng(seed)
    rows = [_row(_seen(thing, draw)) for thing in things for _ in range(LOOKS)]
    return np.array(rows), np.repeat(np.arange(len(things)), LOOKS)


def _seen(thing: Picture, draw: np.random.Generator) -> Picture:
    side = pictures.SIDE + 2 * 3
    ground = int(draw.integers(30, 90))
    whole = Image.new("RGB", (side + 24, side + 24), (ground, ground, ground + 6))
    framed = Image.new("RGBA", (side, side), (226, 228, 230, 255))
    framed.paste(Image.fromarray(thing), (3, 3))
    turned = framed.rotate(float(draw.normal(0, 5)), pictures.BICUBIC, expand=True)
    whole.paste(turned, (12 - (turned.width - side) // 2, 12 - (turned.height - side) // 2), turned)
    left, top, right, bottom = np.add(draw.normal(0, 3.0, 4), (11, 11, side + 14, side + 14))
    cut = whole.crop((round(left), round(top), round(right), round(bottom)))
    small = cut.resize((48, 48), Image.Resampling.BILINEAR).filter(ImageFilter.GaussianBlur(float(draw.uniform(0, 1))))
    light = draw.uniform(0.6, 1.2) * draw.uniform(0.85, 1.13, 3)
    lit = np.asarray(small, dtype=float) * light + draw.normal(0, draw.uniform(2, 10), (48, 48, 3))
    return np.clip(lit, 0, 255).astype(np.uint8)


def _row(picture: Picture) -> Matrix:
    small = Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    planes = np.asarray(small, dtype=float).transpose(2, 0, 1) / 255
    return even(planes.reshape(1, 3, SIDE, SIDE)).reshape(-1)


def even(planes: Matrix) -> Matrix:
    """Take brightness and contrast out: what the model's first three nodes do."""
    mean = planes.mean(axis=(2, 3), keepdims=True)
    spread = np.sqrt(((planes - mean) ** 2).mean(axis=(1, 2, 3), keepdims=True) + 1e-4)
    means = mean / mean.mean(axis=1, keepdims=True).clip(0.02) - 1
    return np.asarray((planes - mean) / spread + 0.7 * means)


def discriminants(x: Matrix, y: NDArray[np.int64]) -> tuple[Matrix, Matrix]:
    """Return the mean and the directions ``[numbers, LENGTH]`` in which objects differ most from one another."""
    mean = x.mean(axis=0)
    centres = np.stack([x[y == thing].mean(axis=0) for thing in range(y.max() + 1)])
    inside = np.cov((x - centres[y]).T)
    size = len(inside)
    inside = (1 - SHRINK) * inside + SHRINK * np.trace(inside) / size * np.eye(size)
    values, vectors = np.linalg.eigh(inside)
    white = vectors / np.sqrt(values)
    values, vectors = np.linalg.eigh(np.cov(((centres - mean) @ white).T))
    return mean, white @ vectors[:, ::-1][:, :LENGTH]


def embedder(mean: Matrix, directions: Matrix) -> onnx.ModelProto:
    """Write the embedder: [N, 3, SIDE, SIDE] in 0..1 to [N, LENGTH] of length 1."""
    constants: dict[str, Any] = {
        "mean": mean, "directions": directions, "small": 1e-4, "least": 0.02, "one": 1.0, "part": 0.7,
    }  # fmt: skip
    f32 = [numpy_helper.from_array(np.asarray(value, dtype=np.float32), name) for name, value in constants.items()]
    i64 = {"pixels": [2, 3], "all": [1, 2, 3], "planes": [1]}
    f32 += [numpy_helper.from_array(np.array(axes, dtype=np.int64), name) for name, axes in i64.items()]
    node = helper.make_node
    nodes = [
        node("ReduceMean", ["picture", "pixels"], ["each"]),
        node("Sub", ["picture", "each"], ["centred"]),
        node("Mul", ["centred", "centred"], ["squares"]),
        node("ReduceMean", ["squares", "all"], ["variance"]),
        node("Add", ["variance", "small"], ["some"]),
        node("Sqrt", ["some"], ["spread"]),
        node("Div", ["centred", "spread"], ["evened"]),
        node("ReduceMean", ["each", "planes"], ["grey"]),
        node("Max", ["grey", "least"], ["bright"]),
        node("Div", ["each", "bright"], ["tint"]),
        node("Sub", ["tint", "one"], ["cast"]),
        node("Mul", ["cast", "part"], ["colour"]),
        node("Add", ["evened", "colour"], ["features"]),
        node("Flatten", ["features"], ["flat"]),
        node("Sub", ["flat", "mean"], ["moved"]),
        node("MatMul", ["moved", "directions"], ["turned"]),
        node("LpNormalization", ["turned"], ["embedding"], axis=1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "embedder",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", LENGTH])],
        f32,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def weather(
    *, training: bool, count: int, rounds: int, cameras: tuple[str, ...] = boards.CAMERAS
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return digits as cameras see them, as rows of numbers in 0..1, and what they are."""
    rows, labels = [], []
    for i in range(rounds):
        shown = boards.show(count, seed=boards.SEED + 7 * i + training, training=training)
        for camera in cameras:
            rows += [_grey(picture) for picture in boards.views(camera, shown, seed=i + 100)]
            labels.append(shown.labels)
    return np.array(rows, dtype=np.float32), np.concatenate(labels)


def _grey(picture: Picture) -> NDArray[np.float32]:
    grey = Image.fromarray(picture).convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return (np.asarray(grey, dtype=np.float32) / np.float32(255)).reshape(-1)


def _save(name: str, model: Any, rows: NDArray[np.float32]) -> None:
    made = to_onnx(model, rows[:1], options={"zipmap": False})
    (FOLDER / name).write_bytes(made.SerializeToString())


if __name__ == "__main__":
    main()
