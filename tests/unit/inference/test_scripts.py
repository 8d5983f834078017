"""Functions of a user's own before and after the model: what they get, what they may return, how they fail."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.api.model import ModelSpec
from halimede.errors import InvalidFieldError
from halimede.inference import ModelError, SampleError, isolate, open_model
from halimede.inference.scripts import bind
from halimede.messages.file_facts import TrialReason
from tests.graphs import FLOAT, write_graph
from tests.unit.inference.world import spec_of

LABELS = ["cap", "helmet"]


def scripted(file: str = "post.py", **fields: Any) -> dict[str, Any]:
    return {"postprocess": {"script": {"file": file, **fields}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a model ``[N, 2]`` that answers with its input, in the output ``y``, and its double."""
    nodes = [("Identity", ["x"], ["y"], {}), ("Add", ["x", "x"], ["twice"], {})]
    row = (FLOAT, ["N", 2])
    write_graph(tmp_path / "model.onnx", nodes, {"x": row}, {"y": row, "twice": row})
    return tmp_path


@pytest.fixture
def picture_model(tmp_path: Path) -> Path:
    """Return the folder of a model that answers a picture of 4 x 8 with its brightest pixel."""
    nodes = [("ReduceMax", ["x"], ["y"], {"axes": [1, 2, 3], "keepdims": 0})]
    write_graph(tmp_path / "model.onnx", nodes, {"x": (FLOAT, ["N", 4, 8, 1])}, {"y": (FLOAT, ["N"])})
    return tmp_path


def write(folder: Path, code: str, name: str = "post.py") -> Path:
    (folder / name).write_text(textwrap.dedent(code))
    return folder / "model.onnx"


def answer(path: Path, wanted: ModelSpec, *frames: np.ndarray) -> list[Any]:
    with open_model(path, wanted) as model:
        return isolate([model.prepare(frame) for frame in frames], model.predict)


def answers(folder: Path, code: str, *frames: np.ndarray, file: str = "post.py", **fields: Any) -> list[Any]:
    """Write a script next to a model; return the answers that it makes of frames."""
    return answer(write(folder, code, file), spec_of(**{**scripted(file), **fields}), *frames)


def row(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


RESIZE = {"op": "resize", "width": 8, "height": 4}
BOTH, CAST = {"op": "script", "file": "both.py"}, {"op": "cast", "dtype": "float32"}


class TestPostprocess:
    def test_a_script_gets_every_output_of_one_sample_by_its_name(self, folder: Path) -> None:
        code = """
            def postprocess(outputs, size):
                return {"value": {name: [list(map(int, each.shape)), each.tolist()] for name, each in outputs.items()}}
        """
        found = answers(folder, code, row(1, 2), row(3, 4))
        assert [each.value["value"] for each in found] == [
            {"y": [[1, 2], [[1, 2]]], "twice": [[1, 2], [[2, 4]]]},
            {"y": [[1, 2], [[3, 4]]], "twice": [[1, 2], [[6, 8]]]},
        ]

    def test_probabilities_get_the_labels_of_the_spec(self, folder: Path) -> None:
        code = "def postprocess(outputs, size):\n    return outputs['y'][0]\n"
        (found,) = answers(folder, code, row(0.25, 0.75), labels=LABELS)
        assert (found.label, found.score, found.probabilities) == ("helmet", 0.75, [0.25, 0.75])

    def test_a_function_of_another_name_is_called(self, folder: Path) -> None:
        (folder / "lib").mkdir()
        path = write(folder, "def read(outputs, size):\n    return 'anything'\n", "lib/read.py")
        (found,) = answer(path, spec_of(**scripted("lib/read.py", function="read")), row(0, 0))
        assert found.label == "anything"

    def test_a_script_reads_files_next_to_it(self, folder: Path) -> None:
        (folder / "names.txt").write_text("left\nright\n")
        code = """
            from pathlib import Path
            NAMES = Path(__file__).with_name("names.txt").read_text().split()
            def postprocess(outputs, size):
                return NAMES[int(outputs["y"].argmax())]
        """
        assert [each.label for each in answers(folder, code, row(0, 1), row(1, 0))] == ["right", "left"]

    def test_boxes_in_the_models_input_are_mapped_back_through_declared_steps(self, picture_model: Path) -> None:
        code = "def postprocess(outputs, size):\n    return [[1, 1, 3, 2, 0.5, 'helmet']]\n"
        (found,) = answers(picture_model, code, np.zeros((8, 16, 1), np.uint8), preprocess=[RESIZE])
        box = found.boxes[0]
        assert (box.x1, box.y1, box.x2, box.y2, box.label) == (2, 2, 6, 4, "helmet")

    def test_a_script_gets_the_height_and_width_of_the_frame(self, picture_model: Path) -> None:
        code = "def postprocess(outputs, size):\n    return {'value': list(size)}\n"
        (found,) = answers(picture_model, code, np.zeros((30, 20, 1), np.uint8), preprocess=[RESIZE])
        assert found.value["value"] == [30, 20]


class TestPreprocess:
    def test_a_script_is_a_step_between_declared_ones(self, picture_model: Path) -> None:
        path = write(picture_model, "def preprocess(image):\n    return image[::2, ::2]\n", "pre.py")
        steps = [{"op": "grayscale"}, {"op": "script", "file": "pre.py"}, RESIZE, CAST]
        wanted = spec_of(preprocess=steps, **scripted())
        write(picture_model, "def postprocess(outputs, size):\n    return {'value': float(outputs['y'][0])}\n")
        frame = np.zeros((8, 16), np.uint8)
        frame[1::2] = 200  # in the rows that the script leaves out
        assert answer(path, wanted, frame)[0].value["value"] == 0
        assert answer(path, wanted, frame[1:])[0].value["value"] > 0

    def test_both_functions_of_one_file_share_their_variables(self, picture_model: Path) -> None:
        code = """
            seen = []
            def preprocess(image):
                seen.append(image.shape)
                return image[:4, :8, :1].astype("float32")
            def postprocess(outputs, size):
                return {"value": [size[0], len(seen)]}
        """
        (found,) = answers(picture_model, code, np.zeros((9, 9, 3), np.uint8), file="both.py", preprocess=[BOTH])
        height, calls = found.value["value"]
        assert height == 9
        assert calls >= 1

    def test_a_script_cannot_change_the_sample_that_it_gets(self, folder: Path) -> None:
        """If another sample of its batch fails, it is called with the same sample again."""
        path = write(folder, "def preprocess(row):\n    row[...] += 1\n    return row\n", "pre.py")
        steps = [{"op": "layout", "order": "flat"}, CAST, {"op": "script", "file": "pre.py"}]
        wanted = spec_of(preprocess=steps, postprocess={"output": "y"})
        with pytest.raises(ModelError, match="read-only"):
            open_model(path, wanted)

    def test_boxes_of_a_script_that_moved_pixels_are_taken_as_they_are(self, picture_model: Path) -> None:
        code = """
            def preprocess(image):
                return image[::2, ::2]
            def postprocess(outputs, size):
                return [[0, 0, size[1] / 2, size[0] / 2, 0.5]]
        """
        steps = [{"op": "resize", "width": 16, "height": 8}, BOTH, CAST]
        (found,) = answers(picture_model, code, np.zeros((40, 100, 1), np.uint8), file="both.py", preprocess=steps)
        assert (found.boxes[0].x2, found.boxes[0].y2) == (50, 20)

    def test_a_step_after_a_script_gets_what_the_script_returns(self, picture_model: Path) -> None:
        code = """
            def preprocess(image):
                return image.repeat(4, axis=0).repeat(4, axis=1)
            def postprocess(outputs, size):
                return [[0, 0, size[1], size[0], 0.5]]
        """
        steps = [{"op": "grayscale"}, BOTH, {"op": "crop", "width": 8, "height": 4}, CAST]
        (found,) = answers(picture_model, code, np.zeros((2, 2, 3), np.uint8), file="both.py", preprocess=steps)
        assert (found.boxes[0].x2, found.boxes[0].y2) == (2, 2)

    def test_a_script_may_not_resize_where_declared_boxes_are_mapped_back(self, tmp_path: Path) -> None:
        nodes = [("ReduceMax", ["x"], ["y"], {"axes": [3], "keepdims": 0})]
        write_graph(tmp_path / "model.onnx", nodes, {"x": (FLOAT, ["N", "H", "W", 3])}, {"y": (FLOAT, ["N", "H", 6])})
        path = write(tmp_path, "def preprocess(image):\n    return image[::2, ::2]\n", "pre.py")
        wanted = spec_of(preprocess=[{"op": "script", "file": "pre.py"}], postprocess={"task": "detection"})
        with pytest.raises(ModelError, match=r"spec\.preprocess\[0\]: .*\[240, 320, 3\] for \[480, 640, 3\].*declared"):
            open_model(path, wanted)


def test_the_script_of_the_documents_resizes_and_suppresses_overlapping_boxes(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "processing.md").read_text()
    code = next(each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def postprocess" in each)
    detected = [[320, 320, 64, 64, 0.9, 0.1], [324, 320, 64, 64, 0.8, 0.1], [100, 100, 20, 40, 0.2, 0.7]]
    constants = {"found": np.array([*detected, [9] * 4 + [0] * 2], np.float32).T[np.newaxis]}
    ports = {"x": (FLOAT, [1, 3, 640, 640])}, {"output0": (FLOAT, [1, 6, 4])}
    write_graph(tmp_path / "model.onnx", [("Identity", ["found"], ["output0"], {})], *ports, constants)
    steps = [{"op": "script", "file": "detector.py"}]
    (found,) = answers(tmp_path, code, np.zeros((320, 1280, 3), np.uint8), file="detector.py", preprocess=steps)
    assert [(box.label, round(box.score, 3)) for box in found.boxes] == [("cap", 0.9), ("helmet", 0.7)]
    first = found.boxes[0]
    assert (first.x1, first.y1, first.x2, first.y2) == (576, 144, 704, 176)


FAULTS = [
    ("def postprocess(outputs, size:\n    pass\n", r"script: post\.py is not valid Python: .*\(line 1\)"),
    ("import nothing_of_that_name\n", r"script: post\.py raised ModuleNotFoundError.*\(line 1\): install it"),
    ("x = 1 / 0\n", r"script: post\.py raised ZeroDivisionError: .*\(line 1\)"),
    ("raise SystemExit(3)\n", r"script: post\.py raised SystemExit"),
    ("def other(outputs, size): pass\n", r"script\.function: post\.py has no function postprocess: it has other"),
    ("postprocess = 3\n", r"script\.function: post\.py has no function postprocess: it has none"),
    ("def postprocess(outputs): pass\n", r"script: postprocess of post\.py raised TypeError"),
    ("def postprocess(outputs, size):\n    return outputs['z']\n", r"script: .*raised KeyError: 'z' \(line 2\)"),
    ("def postprocess(outputs, size):\n    raise SystemExit\n", r"script: .*raised SystemExit"),
    ("def postprocess(outputs, size):\n    raise BaseException('x')\n", r"script: .*raised BaseException: x"),
    ("def postprocess(outputs, size):\n    return None\n", r"script: .*failed: .*returned nothing"),
    ("def postprocess(outputs, size):\n    return object()\n", r"script: .*failed: .*what JSON cannot say"),
    ("def postprocess(outputs, size):\n    return [float('nan')]\n", r"script: .*failed: .*NaN"),
    ("def postprocess(outputs, size):\n    return [[1, 2, 3, 4, 7]]\n", r"script: .*failed: .*score 7"),
    ("def postprocess(outputs, size):\n    return postprocess(outputs, size)\n", r"script: .*RecursionError"),
]


class TestFaults:
    @pytest.mark.parametrize(("code", "says"), FAULTS)
    def test_what_a_script_does_wrong_is_found_at_the_opening(self, folder: Path, code: str, says: str) -> None:
        path = write(folder, code)
        with pytest.raises(ModelError, match=r"^spec\.postprocess\." + says) as caught:
            open_model(path, spec_of(**scripted()))
        missing = "ModuleNotFoundError" in says  # which the machine of the worker may have
        assert caught.value.reason is (TrialReason.INVALID if missing else TrialReason.SCRIPT)

    @pytest.mark.parametrize(
        ("code", "says"),
        [
            ("return [1.0]", r"returned list: return a NumPy array"),
            ("return None", r"returned NoneType"),
            ("return image.astype(object)", r"returned an array of object"),
            ("return image[:0]", r"returned an array of uint8 \[0, 640, 3\]"),
            ("image[0] = 1; return image", r"raised ValueError: assignment destination is read-only \(line 2\)"),
            ("return image[:3, :3]", r"the model wants input \[N,2\] float32"),
        ],
    )
    def test_a_step_that_returns_no_input_is_found_too(self, folder: Path, code: str, says: str) -> None:
        path = write(folder, f"def preprocess(image):\n    {code}\n", "pre.py")
        wanted = spec_of(preprocess=[{"op": "script", "file": "pre.py"}], postprocess={"output": "y"})
        with pytest.raises(ModelError, match=r"^spec\.preprocess.*" + says) as caught:
            open_model(path, wanted)
        assert caught.value.reason is TrialReason.SCRIPT

    def test_a_script_that_did_not_come_with_the_model_is_named(self, folder: Path) -> None:
        with pytest.raises(ModelError, match=r"spec\.postprocess\.script\.file: .*no readable file post\.py.*archive"):
            open_model(folder / "model.onnx", spec_of(**scripted()))

    def test_a_pipe_in_place_of_a_script_is_not_waited_for(self, folder: Path) -> None:
        os.mkfifo(folder / "post.py")
        with pytest.raises(ModelError, match="no readable file"):
            open_model(folder / "model.onnx", spec_of(**scripted()))

    def test_only_the_sample_that_a_script_fails_on_is_without_an_answer(self, folder: Path) -> None:
        code = """
            def postprocess(outputs, size):
                if outputs["y"][0, 0] > 2:
                    raise ValueError("too much")
                return "fine"
        """
        good, bad, also = answers(folder, code, row(1, 0), row(3, 0), row(2, 0))
        assert (good.label, also.label) == ("fine", "fine")
        assert isinstance(bad, SampleError)
        assert str(bad) == "spec.postprocess.script: postprocess of post.py raised ValueError: too much (line 4)"

    def test_a_script_in_preprocess_fails_where_the_model_runs_and_not_where_frames_come_in(self, folder: Path) -> None:
        """Frames are prepared on the event loop, and a sample that cannot be prepared is refused as broken."""
        code = """
            def preprocess(image):
                if image.max() > 2:
                    raise ValueError("too bright")
                return image.ravel()[:2].astype("float32")
        """
        path = write(folder, code, "pre.py")
        softmax = {"output": "y", "activation": "softmax"}
        wanted = spec_of(preprocess=[{"op": "script", "file": "pre.py"}], postprocess=softmax)
        with open_model(path, wanted) as model:
            prepared = [model.prepare(np.full((2, 2), value, np.uint8)) for value in (1, 9)]
            good, bad = isolate(prepared, model.predict)
            assert good.label == "0"
            assert "too bright" in str(bad)
            assert not model.ours, "its calls must not run on the event loop"

    def test_nothing_is_written_next_to_a_script(self, folder: Path) -> None:
        path = write(folder, "def postprocess(outputs, size):\n    return 'x'\n")
        before = sorted(folder.rglob("*"))
        answer(path, spec_of(**scripted()), row(0, 0))
        assert sorted(folder.rglob("*")) == before

    def test_an_estimator_and_a_script_are_not_mixed(self, folder: Path) -> None:
        class Estimator:
            def predict(self, data: Any) -> str:
                return "x"

        with pytest.raises(InvalidFieldError, match=r"spec\.postprocess\.script: .*the estimator does this itself"):
            open_model(folder / "model.onnx", spec_of(**scripted()), Estimator)

    def test_a_new_version_of_a_script_is_not_the_old_one(self, folder: Path) -> None:
        path = write(folder, "def postprocess(outputs, size):\n    return 'old'\n")
        with open_model(path, spec_of(**scripted())) as old:
            write(folder, "def postprocess(outputs, size):\n    return 'new'\n")
            with open_model(path, spec_of(**scripted())) as new:
                labels = [model.predict([model.prepare(row(0, 0))])[0].label for model in (old, new)]
        assert labels == ["old", "new"]

    def test_dataclasses_with_delayed_annotations_work(self, folder: Path) -> None:
        code = """
            from __future__ import annotations
            from dataclasses import asdict, dataclass
            from typing import ClassVar

            @dataclass
            class Found:
                count: int
                kind: ClassVar[str] = "x"

            def postprocess(outputs, size):
                return asdict(Found(2))
        """
        assert answers(folder, code, row(0, 0))[0].value == {"count": 2}


def test_scripts_of_a_model_that_is_a_folder_are_in_that_folder(tmp_path: Path) -> None:
    (tmp_path / "faces").mkdir()
    write(tmp_path / "faces", "def postprocess(outputs, size):\n    return 'found'\n")
    loaded: Any = bind(spec_of(format="tensorflow", **scripted()), tmp_path / "faces")
    assert loaded.postprocess.script.call({}, None) == "found"
