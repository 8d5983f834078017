"""TensorFlow Lite files, answered by the real LiteRT: their answers, their tensors, and what is refused."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.inference import ModelError, SampleError, UnsafeModelError, open_model
from halimede.inference.runtimes.tflite import check_file
from halimede.inference.tensor_model import open_tensors
from halimede.models.desired_state import DesiredModel
from halimede.worker.model_reload import ModelOpener
from tests.lite_files import (
    softmax,
    write_classifier,
    write_external,
    write_fixed,
    write_library_operator,
    write_weigher,
)
from tests.unit.inference.world import spec_of

RANDOM = np.random.default_rng(1)
WEIGHTS, BIAS = RANDOM.standard_normal((6, 3)).astype(np.float32), RANDOM.standard_normal(3).astype(np.float32)
ROWS = RANDOM.uniform(-4, 4, (20, 6)).astype(np.float32)
SCORES = softmax(ROWS @ WEIGHTS + BIAS)


spec = functools.partial(spec_of, format="tflite")


def test_a_model_answers_as_its_weights_compute_one_by_one_and_in_batches(tmp_path: Path) -> None:
    with open_model(write_classifier(tmp_path / "m.tflite", WEIGHTS, BIAS), spec(labels=["a", "b", "c"])) as model:
        together = model.predict(list(ROWS))
        alone = [model.predict([row])[0] for row in ROWS]
    for answers in (together, alone):
        assert np.allclose([answer.probabilities for answer in answers], SCORES, atol=1e-5)
        assert [answer.label for answer in answers] == ["abc"[i] for i in SCORES.argmax(axis=1)]


def test_a_picture_goes_through_the_steps_of_the_spec(tmp_path: Path) -> None:
    steps = [{"op": "resize", "width": 2, "height": 2}, {"op": "grayscale"}, {"op": "scale", "factor": 1 / 255},
             {"op": "layout", "order": "flat"}]  # fmt: skip
    with open_model(write_weigher(tmp_path / "m.tflite"), spec(labels=["dark", "bright"], preprocess=steps)) as model:
        pictures = [np.full((8, 8, 3), value, np.uint8) for value in (10, 240)]
        assert [model.predict([model.prepare(each)])[0].label for each in pictures] == ["dark", "bright"]


@pytest.mark.parametrize(("batch", "shape"), [(-1, (-1, 6)), (1, (1, 6))])
def test_tensors_are_as_the_file_declares_them_and_only_an_open_axis_is_batched(
    tmp_path: Path, batch: int, shape: tuple[int, ...]
) -> None:
    model = open_tensors(write_classifier(tmp_path / "m.tflite", WEIGHTS, BIAS, batch=batch), "tflite")
    assert [(p.name, p.datatype, p.shape) for p in model.inputs.values()] == [("x", "FP32", shape)]
    assert [(p.name, p.datatype, p.shape) for p in model.outputs.values()] == [("y", "FP32", (shape[0], 3))]
    assert model.batched == (batch == -1)
    with open_model(tmp_path / "m.tflite", spec()) as answering:
        found = [answer.probabilities for answer in answering.predict(list(ROWS))]
    assert np.allclose(found, SCORES, atol=1e-5)


def test_a_signature_names_the_tensors(tmp_path: Path) -> None:
    model = open_tensors(write_classifier(tmp_path / "m.tflite", WEIGHTS, BIAS, signed=True), "tflite")
    assert (list(model.inputs), list(model.outputs)) == (["picture"], ["scores"])
    (found,) = model.run({"picture": ROWS}, ["scores"])
    assert np.allclose(found, SCORES, atol=1e-5)


def test_a_quantized_model_takes_and_gives_the_numbers_of_the_model_it_was_made_from(tmp_path: Path) -> None:
    path = write_classifier(tmp_path / "m.tflite", WEIGHTS, BIAS, quantized=True)
    model = open_tensors(path, "tflite")
    assert [p.datatype for p in [*model.inputs.values(), *model.outputs.values()]] == ["FP32", "FP32"]
    whole = np.clip(np.rint(ROWS * 16), 0, 255) / 16  # its steps, and its range from 0 to 16
    (found,) = model.run({"x": ROWS}, ["y"])
    assert np.abs(found - softmax(whole @ WEIGHTS + BIAS)).max() <= 1 / 256
    with open_model(path, spec(labels=["a", "b", "c"])) as answering:
        assert sum(answering.predict([ROWS[0]])[0].probabilities or ()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("bad", [ROWS[:2, :4], ROWS[:1, :3]], ids=["two rows", "a short row"])
def test_a_failed_call_leaves_the_next_one_right(tmp_path: Path, bad: np.ndarray) -> None:
    model = open_tensors(write_fixed(tmp_path / "m.tflite"), "tflite")
    assert not model.batched
    row = ROWS[:1, :4]
    for _ in range(2):
        assert np.allclose(model.run({"x": row}, ["y"])[0], softmax(row), atol=1e-5)
        with pytest.raises(SampleError, match="LiteRT failed"):
            model.run({"x": bad}, ["y"])


def test_an_axis_that_is_only_declared_open_is_answered_row_by_row(tmp_path: Path) -> None:
    with open_model(write_fixed(tmp_path / "m.tflite"), spec()) as model:
        found = [answer.probabilities for answer in model.predict(list(ROWS[:, :4]))]
    assert np.allclose(found, softmax(ROWS[:, :4]), atol=1e-5)


def test_many_threads_get_each_their_own_answers(tmp_path: Path) -> None:
    # large enough that a call lasts: the interpreter works without Python's lock
    weights = RANDOM.standard_normal((512, 64)).astype(np.float32) / 8
    model = open_tensors(write_classifier(tmp_path / "m.tflite", weights, np.zeros(64, np.float32)), "tflite")
    parts = [RANDOM.standard_normal((1 + i % 7, 512)).astype(np.float32) for i in range(400)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda part: model.run({"x": part}, ["y"])[0], parts))
    assert all(np.allclose(a, softmax(part @ weights), atol=1e-4) for a, part in zip(found, parts, strict=True))


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda path: write_external(path, "/etc/passwd"), "weights in other files: convert it"),
        (write_library_operator, "an operator that comes in a library"),
    ],
    ids=["weights in other files", "an operator of a library"],
)
def test_what_reaches_for_other_files_is_refused(tmp_path: Path, write: Callable[[Path], Path], text: str) -> None:
    with pytest.raises(UnsafeModelError, match=text):
        open_tensors(write(tmp_path / "m.tflite"), "tflite")


@pytest.mark.parametrize("keep", [slice(0, 40), slice(0, -200), slice(0, 8)])
def test_a_cut_file_is_refused(tmp_path: Path, keep: slice) -> None:
    path = write_weigher(tmp_path / "m.tflite")
    path.write_bytes(path.read_bytes()[keep])
    with pytest.raises(ModelError, match=r"m\.tflite is (not|a damaged) "):
        open_tensors(path, "tflite")


@pytest.mark.parametrize("content", [b"\x08\x08", b"PK\x03\x04 a zip", b"\x80\x04pickled"])
def test_what_is_no_such_file_is_told_what_to_give(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.tflite").write_bytes(content)
    with pytest.raises(ModelError, match=r"not a TensorFlow Lite model: give the \.tflite file"):
        open_tensors(tmp_path / "m.tflite", "tflite")


@given(st.binary(max_size=300), st.integers(0, 600))
def test_no_bytes_break_the_check(tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int) -> None:
    path = write_weigher(tmp_path_factory.getbasetemp() / "junk.tflite")
    whole = path.read_bytes()
    path.write_bytes(whole[: max(8, at)] + junk + whole[at + len(junk) :])
    try:
        check_file(path)
    except ModelError as error:
        assert str(path) in str(error)  # noqa: PT017 - most files pass


@pytest.mark.parametrize(("form", "package"), [("tflite", "ai_edge_litert"), ("tensorflow", "tensorflow")])
def test_without_its_package_the_error_is_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, package: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for module in ("tflite", "saved_model"):
        monkeypatch.delitem(sys.modules, f"halimede.inference.runtimes.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=rf"run pip install 'halimede\[{form}\]'"):
        open_tensors(write_weigher(tmp_path / "m.tflite") if form != "tflite" else tmp_path / "m", form)


async def test_scripts_of_its_archive_make_its_input_and_read_its_output_and_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "m/faces").mkdir(parents=True)
    write_weigher(tmp_path / "m/faces/net.tflite")
    code = "def preprocess(image):\n    return image.reshape(4).astype('float32') / 255\n"
    code += "def postprocess(outputs, size):\n    if size == (4, 1):\n        open('{0}', 'w')\n"
    code += "    return 'dark' if outputs['y'][0, 0] > 0.5 else 'bright'\n"
    (tmp_path / "m/faces/both.py").write_text(code.format(tmp_path / "written"))
    scripts = {"preprocess": [{"op": "script", "file": "both.py"}], "postprocess": {"script": {"file": "both.py"}}}
    desired = DesiredModel(name="m", path=str(tmp_path / "m"), spec={"format": "tflite", **scripts})
    loaded = await ModelOpener().open(desired)
    pictures = [np.full((2, 2), value, np.uint8) for value in (10, 240)]
    answers = await loaded.thread.call(lambda: loaded.model.predict([loaded.model.prepare(each) for each in pictures]))
    assert [each.label for each in answers] == ["dark", "bright"]
    with pytest.raises(SampleError, match="raised PermissionError"):
        await loaded.thread.call(lambda: loaded.model.predict([loaded.model.prepare(pictures[0].reshape(4, 1))]))
    assert not (tmp_path / "written").exists()
    await loaded.close()
