"""``halimede inspect`` as a user types it: what a file declares, a Model that can be applied, and the answer."""

from __future__ import annotations

import importlib.util
import json
import math
import shlex
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image
from ruamel.yaml import YAML

from examples.digits import train
from halimede.api import admit
from halimede.cli.manifests import load
from halimede.inference.file_metadata import FileMetadata
from halimede.inference.proposals.proposal import PRESETS
from tests.e2e.test_documentation import commands
from tests.graphs import FLOAT, Node, write_graph
from tests.lite_files import write_classifier
from tests.programs import run_python
from tests.typed import typed
from tests.unit.api.samples import resource

#: answers with the mean of each channel; 0 to 1 in, nearly a probability out
MEANS: list[Node] = [("Conv", ["x", "w"], ["c"], {}), ("Flatten", ["c"], ["y"], {})]
KERNEL = {"w": (np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1) * np.ones((1, 1, 4, 4), np.float32) / 16)}


def inspect(*arguments: object, code: int = 0) -> Any:
    return typed("inspect", *arguments, code=code)


def said(*arguments: object) -> Any:
    return json.loads(inspect(*arguments, "--json").stdout)


def red(folder: Path) -> Path:
    Image.new("RGB", (40, 30), (200, 100, 0)).save(folder / "red.png")
    return folder / "red.png"


def means(folder: Path, *before: Node, softmax: bool = False) -> Path:
    last: list[Node] = [("Softmax", ["y"], ["p"], {})] if softmax else []
    ports = {"pixels" if before else "x": (FLOAT, ["N", 3, 4, 4])}, {"p" if softmax else "y": (FLOAT, ["N", 3])}
    return write_graph(folder / "Channel Means.onnx", [*before, *MEANS, *last], *ports, KERNEL)


def test_it_shows_inputs_outputs_a_model_and_what_it_has_assumed(tmp_path: Path) -> None:
    shown = " ".join(inspect(means(tmp_path, softmax=True)).output.split())
    for part in ("ONNX, 1 KiB", "INPUT TYPE SHAPE x float [N, 3, 4, 4]", "OUTPUT TYPE SHAPE p float [N, 3]"):
        assert part in shown
    assert "pictures are RGB. If the model was trained on BGR" in shown
    assert "{op: normalize, mean: 0.5, std: 0.5}" in shown
    assert "Note: there are no names of classes, so classes are numbered: write spec.labels" in shown


def test_what_it_writes_is_a_model_that_apply_takes_and_that_answers(tmp_path: Path) -> None:
    out = tmp_path / "made" / "model.yaml"
    done = inspect(means(tmp_path, softmax=True), red(tmp_path), "--out", out)
    assert f"Next: halimede apply -f {out}" in done.output
    (manifest,) = load([str(out)], "", admit)
    assert manifest.missing is None
    assert manifest.resource.metadata.name == "channel-means"
    assert typed("apply", "-f", out, "--dry-run=client").stderr == ""
    again = said(out, red(tmp_path))
    assert (again["answer"]["label"], "manifest" in again) == ("0", False)


def test_the_order_of_channels_changes_the_answer(tmp_path: Path) -> None:
    out = tmp_path / "model.yaml"
    assert said(means(tmp_path, softmax=True), red(tmp_path), "--out", out)["answer"]["label"] == "0"
    body = YAML(typ="safe").load(out.read_text())
    assert body["spec"]["url"] == "./Channel Means.onnx"
    body["spec"]["preprocess"].insert(0, {"op": "channels", "format": "bgr"})
    body["spec"]["labels"] = ["red", "green", "blue"]
    with out.open("w") as file:
        YAML(typ="safe").dump(body, file)
    assert said(out, red(tmp_path))["answer"]["label"] == "blue"


@pytest.mark.parametrize(("file", "form"), [("answer.jpg", "JPEG"), ("answer.JPEG", "JPEG"), ("answer.png", "PNG")])
def test_the_answer_is_drawn_on_the_picture(tmp_path: Path, file: str, form: str) -> None:
    out = tmp_path / "new" / file
    done = inspect(means(tmp_path, softmax=True), red(tmp_path), "--draw", out)
    assert f"drawn: {out}" in done.output
    with Image.open(out) as drawn:
        assert (drawn.format, drawn.size) == (form, (320, 240))
        assert len(drawn.crop((0, 0, 80, 20)).getcolors(80 * 20) or []) > 20, "the class stands at the top"
    assert said(means(tmp_path, softmax=True), red(tmp_path), "--draw", out)["answer"]["label"] == "0"


@pytest.mark.parametrize(
    ("options", "code", "cause"),
    [
        (["red.png", "--draw", "answer.gif"], 2, "end the name of --draw with .jpg, .jpeg or .png"),
        (["red.png", "--draw", "/proc/answer.jpg"], 1, "cannot be written"),
        (["--draw", "a.jpg"], 2, "give a PICTURE with --draw"),
    ],
)
def test_a_drawing_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, cause: str
) -> None:
    red(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cause in inspect(means(tmp_path, softmax=True), *options, code=code).stderr


def test_a_model_of_which_pictures_are_not_scaled_is_warned_of_by_inspect_and_apply(tmp_path: Path) -> None:
    out = tmp_path / "model.yaml"
    inspect(means(tmp_path, softmax=True), "--out", out)
    out.write_text(out.read_text().replace("  - op: normalize\n", ""))
    assert "pictures reach it as 0 to 255" in inspect(out).stderr
    checked = typed("apply", "-f", out, "--dry-run=client")
    assert "model/channel-means: spec.preprocess: the model's input x takes floats" in checked.stderr


def test_a_model_that_scales_its_input_itself_gets_no_step_for_that(tmp_path: Path) -> None:
    scales: Node = ("Mul", ["pixels", "k"], ["x"], {})
    ports = {"pixels": (FLOAT, ["N", 3, 4, 4])}, {"y": (FLOAT, ["N", 3])}
    constants = {**KERNEL, "k": np.array(1 / 255, np.float32)}
    found = said(write_graph(tmp_path / "m.onnx", [scales, *MEANS], *ports, constants), red(tmp_path))
    assert [step["op"] for step in found["manifest"]["spec"]["preprocess"]] == ["resize", "layout"]
    assert any("computes Mul first" in note for note in found["notes"])
    assert found["answer"]["probabilities"] == pytest.approx([200 / 255, 100 / 255, 0], abs=1e-3)


def resized(width: int, height: int) -> dict[str, Any]:
    return {"op": "resize", "width": width, "height": height}


GRAY, RANGE = {"op": "grayscale"}, {"op": "normalize"}
CHW, FLAT = ({"op": "layout", "order": order} for order in ("chw", "flat"))


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        (["N", 3, 32, 48], [resized(48, 32), RANGE, CHW]),
        (["N", 32, 48, 3], [resized(48, 32), RANGE]),
        (["N", 1, 8, 8], [GRAY, resized(8, 8), RANGE, CHW]),
        (["N", 64], [GRAY, resized(8, 8), RANGE, FLAT]),
        (["N", 192], [resized(8, 8), RANGE, FLAT]),
    ],
    ids=["chw", "hwc", "gray", "a row", "a row of three channels"],
)
def test_the_steps_fit_the_shape(tmp_path: Path, shape: list[Any], steps: list[dict[str, Any]]) -> None:
    size = int(np.prod(shape[1:]))
    nodes: list[Node] = [
        ("Flatten", ["x"], ["f"], {}),
        ("MatMul", ["f", "w"], ["z"], {}),
        ("Softmax", ["z"], ["y"], {}),
    ]
    weights = {"w": np.ones((size, 2), np.float32)}
    path = write_graph(tmp_path / "m.onnx", nodes, {"x": (FLOAT, shape)}, {"y": (FLOAT, ["N", 2])}, weights)
    found = said(path, red(tmp_path))
    assert found["manifest"]["spec"]["preprocess"] == steps
    assert (found["manifest"]["spec"]["postprocess"], found["answer"]["label"]) == ({"task": "classification"}, "0")


def test_logits_become_probabilities(tmp_path: Path) -> None:
    ports = {"x": (FLOAT, ["N", 3, 4, 4])}, {"y": (FLOAT, ["N", 3])}
    path = write_graph(tmp_path / "m.onnx", MEANS, *ports, {"w": KERNEL["w"] * 9})
    found = said(path, red(tmp_path))
    assert found["manifest"]["spec"]["postprocess"]["activation"] == "softmax"
    assert sum(found["answer"]["probabilities"]) == pytest.approx(1)


def test_a_detector_of_the_form_of_yolov8_answers_with_boxes_of_the_picture(tmp_path: Path) -> None:
    # as many boxes as cells of 8, 16 and 32 pixels
    rows = np.array([[32, 32, 16, 16, 0.9, 0.1], [5, 5, 4, 4, 0.1, 0.1]] + [[0] * 6] * 82, np.float32)
    found = said(constant(tmp_path, {"output0": rows.T[np.newaxis]}), red(tmp_path))
    assert found["manifest"]["spec"]["preprocess"][0] == {"op": "letterbox", "width": 64, "height": 64}
    postprocess = {"task": "detection", "boxes": {"decode": "yolo"}, "nms": {}}
    assert found["manifest"]["spec"]["postprocess"] == postprocess
    (box,) = found["answer"]["boxes"]
    # 24 to 40 of 64 x 64, in which the picture of 40 x 30 is 64 x 48
    assert box[:4] == pytest.approx([15, 10, 25, 20])


def test_a_lite_file_is_inspected_through_the_same_port(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "lite.tflite", np.ones((16, 2), np.float32), np.zeros(2, np.float32))
    found = said(path, red(tmp_path))
    assert found["format"] == found["manifest"]["spec"]["format"] == "tflite"
    assert found["answer"]["probabilities"] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("damage", [b"PK\x01\x02", b"one name a line\n"], ids=["directory", "content"])
def test_a_lite_file_with_a_damaged_archive_of_labels_is_inspected_without_them(tmp_path: Path, damage: bytes) -> None:
    path = write_classifier(tmp_path / "lite.tflite", np.ones((16, 2), np.float32), np.zeros(2, np.float32))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.txt", "one name a line\n")
    assert said(path)["metadata"]["labels"] == ["one name a line"]
    path.write_bytes(path.read_bytes().replace(damage, b"?" * len(damage)))
    assert "metadata" not in said(path)


@pytest.mark.parametrize(("mean", "std"), [((math.nan,), (1.0,)), ((0.0,), (math.inf,)), ((0.0,), (0.0,)), ((), ())])
def test_a_range_that_scales_to_no_numbers_is_not_proposed(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    assert FileMetadata(mean=(127.5,), std=(127.5,)).has_range
    assert not FileMetadata(mean=mean, std=std).has_range


@pytest.mark.parametrize("kind", ["onnx", "tflite"])
def test_the_model_in_an_archive_is_inspected_whatever_its_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path / "home"))
    lite = write_classifier(tmp_path / "lite.tflite", np.ones((16, 2), np.float32), np.zeros(2, np.float32))
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(lite if kind == "tflite" else means(tmp_path, softmax=True), f"net/model.{kind}")
    out = tmp_path / "model.yaml"
    found = said(tmp_path / "packed.tar.gz", red(tmp_path), "--out", out)
    assert (found["format"], found["manifest"]["metadata"]["name"]) == (kind, "packed")
    assert found["manifest"]["spec"]["url"] == "./packed.tar.gz"
    assert said(out, red(tmp_path))["answer"]["label"] == found["answer"]["label"]


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_a_saved_model_names_the_package_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"\x08\x01")
    assert "pip install 'halimede[tensorflow]'" in inspect(tmp_path / "saved", code=1).output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nowhere.onnx",), "MODEL: 'nowhere.onnx' is not accepted: there is no such file or folder"),
        (("text.onnx",), "text.onnx is not an ONNX model that can run here: it is text: give the model's file"),
        (("page.onnx",), "it is a web page: download the file itself"),
        (("lfs.onnx",), "it is a pointer of Git LFS: run `git lfs pull`"),
        (("picture.png",), "not an ONNX model: it is a PNG picture: give the model's file"),
        (("folder",), "MODEL: 'folder' is not accepted: there is no .onnx file, only notes.txt"),
        ((".",), "MODEL: '.' is not accepted: there are several models"),
        (("empty.yaml",), "contains no resource"),
        (("service.yaml",), "give a manifest with one Model: it has 0"),
        (("two.onnx",), "the model has 2 inputs (a, b): export it with one"),
        (("Channel Means.onnx", "text.onnx"), "PICTURE"),
        (("Channel Means.onnx", "none.png"), "PICTURE"),
    ],
)
def test_a_mistake_is_one_line_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], text: str
) -> None:
    means(tmp_path)
    (tmp_path / "text.onnx").write_text("no model, and ë" * 100)
    (tmp_path / "page.onnx").write_text("\n<!DOCTYPE html><title>Sign in</title>")
    (tmp_path / "lfs.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    Image.new("L", (4, 4)).save(tmp_path / "picture.png")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").touch()
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "service.yaml").write_text(Path("examples/digits/2-service.yaml").read_text())
    add: Node = ("Add", ["a", "b"], ["y"], {})
    write_graph(tmp_path / "two.onnx", [add], {"a": (FLOAT, [1]), "b": (FLOAT, [1])}, {"y": (FLOAT, [1])})
    monkeypatch.chdir(tmp_path)
    shown = inspect(*arguments, code=1).output
    assert text in shown
    assert "bug in halimede" not in shown


def test_the_only_model_in_a_folder_is_inspected(tmp_path: Path) -> None:
    path = means(tmp_path)
    assert said(path.parent)["manifest"] == said(path)["manifest"]


def test_a_gray_picture_of_a_model_of_colours_names_the_step_to_add(tmp_path: Path) -> None:
    out, gray = tmp_path / "model.yaml", tmp_path / "gray.png"
    Image.new("L", (4, 4), 99).save(gray)
    inspect(means(tmp_path), "--out", out)
    refused = inspect(out, gray, code=1)
    assert "add a channels step first, which makes three channels of a gray picture" in refused.output
    out.write_text(out.read_text().replace("preprocess:\n", "preprocess:\n  - {op: channels, format: rgb}\n"))
    inspect(out, gray)


@pytest.mark.slow
def test_the_lines_of_docs_processing_md(tmp_path: Path) -> None:
    if not (train.HERE / train.PICTURES / "camera.jpg").exists():
        train.main()
    lines = [line for line in commands("docs/processing.md") if line.startswith("halimede")]
    assert len(lines) == 4
    for line in lines:
        done = typed(*shlex.split(line.replace("build/", f"{tmp_path}/"))[1:])
        assert ("Written: " if "models add" in line else "ANSWER TO") in done.output


@pytest.mark.parametrize(("written", "warned"), [("onx", "did you mean onnx?"), ("pkl", ""), ("ONNX", "")])
def test_apply_warns_of_a_format_that_is_nearly_one_that_is_read(tmp_path: Path, written: str, warned: str) -> None:
    model = resource("Model", {"url": "https://example.org/m", "format": written}, "m")
    (tmp_path / "m.yaml").write_text(json.dumps(model))
    checked = typed("apply", "-f", tmp_path / "m.yaml", "--dry-run=client")
    assert warned in checked.stderr
    assert bool(warned) == ("did you mean" in checked.stderr)


UNKNOWN = "I do not know this output"


def constant(folder: Path, outputs: dict[str, np.ndarray], side: int = 64) -> Path:
    """Write a model of pictures of ``side`` pixels that gives these outputs, whatever the picture is."""
    nodes: list[Node] = [("ReduceMax", ["x"], ["m"], {"keepdims": 0}), ("Mul", ["m", "zero"], ["nothing"], {})]
    constants = {"zero": np.array(0, np.float32)}
    for name, values in outputs.items():
        constants[f"{name}_values"] = values.astype(np.float32)
        nodes.append(("Add", [f"{name}_values", "nothing"], [name], {}))
    ports = {name: (FLOAT, list(values.shape)) for name, values in outputs.items()}
    return write_graph(folder / "m.onnx", nodes, {"x": (FLOAT, [1, 3, side, side])}, ports, constants)


def described(path: Path, **metadata: str) -> Path:
    file = onnx.load(path)
    onnx.helper.set_model_props(file, metadata)
    onnx.save(file, path)
    return path


def family(path: Path) -> str:
    """Return the family of a file, or the text that there is none."""
    document = said(path)
    return str(document.get("family") or document["unknown"].partition(":")[0])


#: maps of a detector of centres, and how many of each
HEAT = [("heat", 1), ("s", 2), ("o", 2)]
ROWS = np.zeros((1, 300, 6))
ROWS[0, 0] = [5, 5, 40, 50, 0.9, 3]
RANDOM = np.random.default_rng(0)
SPREAD = RANDOM.standard_normal((1, 99999))


class TestFamilies:
    @pytest.mark.parametrize(
        ("outputs", "expected"),
        [
            ({"y": np.zeros((1, 6, 84))}, "yolo"),
            ({"y": np.zeros((1, 252, 7))}, "yolov5"),
            ({"y": np.zeros((1, 84, 7))}, UNKNOWN),  # cells first and one score more: YOLOX
            ({"y": np.zeros((1, 6, 80))}, UNKNOWN),
            ({"y": np.zeros((1, 116, 84)), "masks": np.zeros((1, 32, 16, 16))}, UNKNOWN),
            ({"y": ROWS}, "rows"),
            ({"y": ROWS[:, :, [4, 0, 1, 2, 3, 5]]}, UNKNOWN),
            ({"y": ROWS[..., :5]}, UNKNOWN),
            ({"boxes": ROWS[..., :4], "scores": ROWS[..., 4:]}, UNKNOWN),
            ({"boxes": ROWS[..., :4], "scores": ROWS[..., 4:5]}, "pair"),
            ({"boxes": -ROWS[..., :4], "scores": ROWS[..., 4:5]}, UNKNOWN),
            ({name: np.zeros((1, count, 16, 16)) for name, count in HEAT}, "centernet"),
            ({name: np.zeros((1, count, 8, 8)) for name, count in HEAT}, UNKNOWN),
            ({"boxes": np.zeros((1, 256, 16)), "scores": np.zeros((1, 256))}, "ssd-anchors"),
            ({"y": np.full((1, 128), 128**-0.5)}, "embedding"),
            ({"y": np.eye(1, 128)}, "classes"),
            ({"y": SPREAD[:, :128]}, UNKNOWN),
            ({"y": SPREAD[:, :1000]}, "classes"),
            ({"y": SPREAD[:, :4].reshape(1, 1, 1, 4)}, UNKNOWN),
            ({"y": np.full((1, 1), 7)}, UNKNOWN),
            ({"y": SPREAD[:, :63], "score": np.zeros((1, 1))}, UNKNOWN),
            ({"mask": np.zeros((1, 1, 64, 64))}, UNKNOWN),
            ({"y": np.full((1, 10), 0.1), "features": SPREAD[:, :64]}, "classes"),
        ],
    )
    def test_structure_and_values_show_the_family_or_that_there_is_none(
        self, tmp_path: Path, outputs: dict[str, np.ndarray], expected: str
    ) -> None:
        assert family(constant(tmp_path, outputs)) == expected

    @pytest.mark.parametrize(
        ("metadata", "expected"),
        [
            ({"task": "detect", "names": "{0: 'cap', 1: 'helmet'}"}, "yolo"),
            ({"task": "detect", "names": "{0: 'cap'}"}, UNKNOWN),
            ({"task": "pose", "names": "{0: 'cap', 1: 'helmet'}"}, UNKNOWN),
            ({"names": "__import__('os').system('true')"}, "yolo"),
        ],
    )
    def test_metadata_of_ultralytics_are_used(self, tmp_path: Path, metadata: dict[str, str], expected: str) -> None:
        path = described(constant(tmp_path, {"y": np.zeros((1, 6, 84))}), **metadata)
        assert family(path) == expected
        labels = said(path).get("manifest", {}).get("spec", {}).get("labels")
        assert labels == (["cap", "helmet"] if expected == "yolo" and "task" in metadata else None)

    def test_names_make_classes_of_numbers_that_may_be_features(self, tmp_path: Path) -> None:
        path = described(constant(tmp_path, {"y": SPREAD[:, :64]}), names=str([f"c{n}" for n in range(64)]))
        spec = said(path)["manifest"]["spec"]
        assert (spec["postprocess"]["activation"], spec["labels"][63]) == ("softmax", "c63")

    def test_rows_keep_the_pictures_proportions(self, tmp_path: Path) -> None:
        spec = said(constant(tmp_path, {"y": ROWS}))["manifest"]["spec"]
        assert spec["preprocess"][0] == {"op": "letterbox", "width": 64, "height": 64}
        assert spec["postprocess"] == {"task": "detection"}


def test_an_output_of_no_known_form_shows_its_shape_and_the_beginning_of_a_script(tmp_path: Path) -> None:
    path = constant(tmp_path, {"mask": np.zeros((1, 1, 64, 64))})
    done = inspect(path)
    assert f"{UNKNOWN}: mask [1, 64, 64] (a map of the picture, as of a segmentation). Write a script" in done.stderr
    assert "PROPOSED" not in done.output
    source = done.stdout[done.stdout.index("import numpy") :]
    assert "output0 = outputs['mask'][0]  # tensor(float) [1, 64, 64]" in source
    compile(source, "postprocess.py", "exec")
    out = tmp_path / "model.yaml"
    inspect(path, "--out", out, code=1)
    inspect(path, red(tmp_path), code=1)
    assert not out.exists()


def test_the_lines_for_fixed_axes_open_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    means: Node = ("GlobalAveragePool", ["x"], ["p"], {})
    nodes = [means, ("Flatten", ["p"], ["f"], {}), ("Softmax", ["f"], ["y"], {})]
    path = write_graph(tmp_path / "ten.onnx", nodes, {"x": (FLOAT, [10, 3, 8, 8])}, {"y": (FLOAT, [10, 3])})
    done = inspect(path, code=1)
    assert "the model takes exactly 10 samples a run" in done.stderr
    start, end = done.stderr.index("import onnx"), done.stderr.index("Error:")
    run_python("-c", done.stderr[start:end], check=True)
    opened = said(tmp_path / "ten-open.onnx", red(tmp_path))
    assert opened["inputs"][0]["shape"] == ["x_0", 3, "x_2", "x_3"]
    assert len(opened["answer"]["probabilities"]) == 3


def test_metadata_are_shown_in_one_line_each(tmp_path: Path) -> None:
    path = described(means(tmp_path, softmax=True), author="A\nB \x1b[31m", names="['red', 'green', 'blue']")
    shown = inspect(path).output
    assert all(part in shown for part in ("author", "A B \ufffd[31m", "red, green, blue")), shown
    document = said(path, red(tmp_path))
    assert (document["metadata"]["labels"], document["answer"]["label"]) == (["red", "green", "blue"], "red")


def test_a_manifest_may_have_several_models(tmp_path: Path) -> None:
    means(tmp_path, softmax=True)
    spec = {"url": "./Channel Means.onnx", "format": "onnx", "preprocess": [resized(4, 4), RANGE, CHW]}
    models = [
        resource("Model", {**spec, "labels": list(labels)}, n) for n, labels in (("second", "abc"), ("first", "xyz"))
    ]
    manifest = tmp_path / "models.yaml"
    manifest.write_text("\n---\n".join(map(json.dumps, models)))
    assert [document["answer"]["label"] for document in said(manifest, red(tmp_path))] == ["a", "x"]
    shown = inspect(manifest, red(tmp_path)).output
    assert shown.index("model/second") < shown.index("model/first")
    assert shown.count("ANSWER TO") == 2
    refused = inspect(manifest, red(tmp_path), "--draw", tmp_path / "a.jpg", code=1)
    assert "has 2 Models: inspect one of them" in refused.output


class TestModelsAdd:
    def add(self, *arguments: object, code: int = 0) -> Any:
        return typed("models", "add", *arguments, code=code)

    def test_it_writes_the_proposal_beside_nothing_else(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        self.add(means(tmp_path, softmax=True), "--name", "colours")
        (manifest,) = load(["colours.yaml"], "", admit)
        assert manifest.resource.metadata.name == "colours"
        assert said("colours.yaml", red(tmp_path))["answer"]["label"] == "0"
        again = self.add(means(tmp_path, softmax=True), "--name", "colours", code=1)
        assert "it exists already: remove it" in again.output

    @pytest.mark.parametrize("name", ["My Model", "../up", "a" * 300])
    def test_a_name_that_no_model_may_have_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        folder = tmp_path / "inner"
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert "--name: " in self.add(means(tmp_path, softmax=True), "--name", name, code=1).output
        assert not [*folder.iterdir(), *tmp_path.glob("*.yaml")]

    def test_a_preset_names_what_the_file_does_not_show(self, tmp_path: Path) -> None:
        path, out = constant(tmp_path, {"y": SPREAD[:, :128]}), tmp_path / "out.yaml"
        assert UNKNOWN in self.add(path, "--out", out, code=1).output
        assert not out.exists()
        for preset, task in (("embedding", "embedding"), ("imagenet", "classification")):
            self.add(path, "--preset", preset, "--out", tmp_path / f"{preset}.yaml")
            assert YAML(typ="safe").load(tmp_path / f"{preset}.yaml")["spec"]["postprocess"]["task"] == task
        steps = YAML(typ="safe").load(tmp_path / "imagenet.yaml")["spec"]["preprocess"]
        assert steps[1] == {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}

    @pytest.mark.parametrize("preset", [(), ("--preset", "ctc")])
    def test_a_reader_of_text_that_gives_logits_gets_a_softmax(self, tmp_path: Path, preset: tuple[str, ...]) -> None:
        path, out = constant(tmp_path, {"y": 9 * SPREAD[:, :40].reshape(1, 10, 4)}), tmp_path / "out.yaml"
        nameless = self.add(path, "--preset", "ctc", "--out", out, code=1)
        assert not out.exists()
        assert "spec.postprocess.text.alphabet: '' is empty" in " ".join(nameless.output.split())
        self.add(described(path, character="a\nb\nc"), *preset, "--out", out)
        assert YAML(typ="safe").load(out)["spec"]["postprocess"] == {"task": "text", "activation": "softmax"}

    def test_fixed_axes_name_the_command_that_prints_lines_for_them(self, tmp_path: Path) -> None:
        nodes: list[Node] = [("ReduceMean", ["x"], ["y"], {"axes": [2, 3], "keepdims": 0})]
        path = write_graph(tmp_path / "ten.onnx", nodes, {"x": (FLOAT, [10, 3, 8, 8])}, {"y": (FLOAT, [10, 3])})
        refused = self.add(path, "--out", tmp_path / "out.yaml", code=1)
        assert f"`halimedeinspect{path}`printsPythonlines" in "".join(refused.output.split())

    @pytest.mark.parametrize(
        ("preset", "text"),
        [("yolo", "the file's outputs do not fit it: they are y [128] a sample"), ("resnet", "use one of ctc, rows")],
    )
    def test_a_preset_that_does_not_fit_names_the_outputs(self, tmp_path: Path, preset: str, text: str) -> None:
        path = constant(tmp_path, {"y": SPREAD[:, :128]})
        assert text in self.add(path, "--preset", preset, "--out", tmp_path / "out.yaml", code=1).output

    def test_its_help_names_every_preset(self) -> None:
        shown = " ".join(self.add("--help").output.replace("│", " ").split())
        assert ", ".join(PRESETS[:-2]) + f", {PRESETS[-2]} or {PRESETS[-1]}" in shown
