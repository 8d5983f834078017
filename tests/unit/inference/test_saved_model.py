"""SavedModels, answered by the real TensorFlow where it is installed.

TensorFlow is 1.3 GB, so the packages of `make setup` lack it, and these tests are skipped. To run them:
`pip install -c constraints.txt -e '.[tensorflow]'`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.api.base import convert
from halimede.api.model import ModelSpec
from halimede.inference import ModelError, UnsafeModelError, open_model
from halimede.inference.tensor_model import open_tensors
from halimede.models.model_trial import try_model
from tests.lite_files import softmax

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
tf = pytest.importorskip("tensorflow")

WEIGHTS = np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)
ROWS = np.random.default_rng(2).standard_normal((9, 6)).astype(np.float32)
Body = Callable[[Any, Any], Any]


def saved(folder: Path, body: Body, *, kind: Any = tf.float32, shape: tuple[int | None, ...] = (None, 6)) -> Path:
    """Save a module whose serving signature is ``body``."""
    module = tf.Module()
    module.weights = tf.Variable(WEIGHTS)
    module.table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1)
    module.answer = tf.function(lambda x: body(module, x), input_signature=[tf.TensorSpec(shape, kind, name="x")])
    tf.saved_model.save(module, str(folder), signatures=module.answer)
    return folder


def classify(module: Any, x: Any) -> Any:
    return {"scores": tf.nn.softmax(x @ module.weights)}


def test_a_model_answers_as_its_variables_compute_one_by_one_and_in_batches(tmp_path: Path) -> None:
    spec = convert({"url": "/m", "format": "tensorflow", "labels": ["a", "b", "c"]}, ModelSpec, "spec")
    with open_model(saved(tmp_path / "m", classify), spec) as model:
        together = model.predict(list(ROWS))
        alone = [model.predict([row])[0] for row in ROWS]
    for answers in (together, alone):
        assert np.allclose([answer.probabilities for answer in answers], softmax(ROWS @ WEIGHTS), atol=1e-5)


def test_tensors_are_as_the_signature_declares_them(tmp_path: Path) -> None:
    model = open_tensors(saved(tmp_path / "m", classify), "tensorflow")
    assert [(p.name, p.datatype, p.shape) for p in model.inputs.values()] == [("x", "FP32", (-1, 6))]
    assert [(p.name, p.datatype, p.shape) for p in model.outputs.values()] == [("scores", "FP32", (-1, 3))]
    assert model.batched


def test_text_goes_in_and_out_and_a_table_is_initialized(tmp_path: Path) -> None:
    path = saved(tmp_path / "m", lambda m, x: {"id": m.table.lookup(x), "text": x}, kind=tf.string, shape=(None,))
    found = open_tensors(path, "tensorflow").run({"x": np.array(["b", "c"], object)}, ["id", "text"])
    assert [each.tolist() for each in found] == [[2, -1], [b"b", b"c"]]


@pytest.mark.slow
async def test_it_stands_its_trial_in_a_child_process(tmp_path: Path) -> None:
    trial = await try_model(saved(tmp_path / "m", classify), '{"format": "tensorflow"}')
    assert (trial.ok, trial.skipped, [each.name for each in trial.outputs]) == (True, False, ["scores"])


#: opens a model as a worker does, in a process that has not imported TensorFlow yet
WORKER = """
import asyncio, sys
import numpy as np
from halimede.models.desired_state import DesiredModel
from halimede.worker.model_reload import ModelOpener

async def main():
    given = {"format": "tensorflow", "postprocess": {"script": {"file": "post.py"}}}
    loaded = await ModelOpener().open(DesiredModel(name="m", path=sys.argv[1], spec=given))
    for answer in await loaded.thread.call(lambda: loaded.model.predict([np.ones(6, np.float32)] * 2)):
        print(answer.label)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_script_next_to_its_file_reads_its_output_in_a_worker_and_cannot_write(tmp_path: Path) -> None:
    path = saved(tmp_path / "m" / "faces", classify)
    code = "def postprocess(outputs, size):\n    try:\n        open('{0}', 'w')\n"
    code += "    except PermissionError:\n        return 'abc'[outputs['scores'][0].argmax()]\n"
    (path / "post.py").write_text(code.format(tmp_path / "written"))
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path / "m")], capture_output=True, text=True, check=False
    )
    best = "abc"[(np.ones(6) @ WEIGHTS).argmax()]
    assert done.stdout.split() == [best, best], done.stderr
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("body", "operator"),
    [
        (lambda _, x: (tf.io.write_file("/dev/null", "x"), x)[1], "WriteFile"),
        (lambda _, x: {"x": x, "file": tf.io.read_file("/etc/hostname")}, "ReadFile"),
        (lambda _, x: tf.cond(tf.reduce_sum(x) > 0, lambda: (tf.io.write_file("/dev/null", "x"), x)[1], lambda: x),
         "WriteFile"),
        (lambda _, x: tf.map_fn(lambda row: (tf.io.write_file("/dev/null", "x"), row)[1], x), "WriteFile"),
        (lambda _, x: (tf.print("x", output_stream="file:///dev/null"), x)[1], "PrintV2"),
        (lambda _, x: tf.py_function(lambda each: each, [x], tf.float32), "EagerPyFunc"),
        (lambda _, x: (tf.raw_ops.SaveV2(prefix="/x", tensor_names=[b"x"], shape_and_slices=[b""], tensors=[x]), x)[1],
         "SaveV2"),
        (lambda _, x: (tf.raw_ops.Abort(error_msg="x"), x)[1], "Abort"),
    ],
)  # fmt: skip
def test_an_operator_that_reaches_out_of_the_process_is_refused_wherever_it_is(
    tmp_path: Path, body: Body, operator: str
) -> None:
    path = saved(tmp_path / "m", body)
    with pytest.raises(UnsafeModelError, match=f"the operator '{operator}'.*save it without"):
        open_tensors(path, "tensorflow")


def test_what_loading_would_run_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\nb\n")
    whole, number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    file = tf.lookup.TextFileInitializer(str(tmp_path / "words.txt"), tf.string, whole, tf.int64, number)
    module = tf.Module()
    module.table = tf.lookup.StaticHashTable(file, -1)
    module.answer = tf.function(module.table.lookup, input_signature=[tf.TensorSpec([None], tf.string, name="x")])
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.answer)
    with pytest.raises(UnsafeModelError, match="InitializeTableFromTextFileV2"):
        open_tensors(tmp_path / "m", "tensorflow")


def test_a_model_of_tensorflow_1_is_told_how_to_be_saved(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2])
        tf.compat.v1.saved_model.simple_save(session, str(tmp_path / "m"), {"x": x}, {"y": x * 2})
    with pytest.raises(ModelError, match=r"of TensorFlow 1: save it with TensorFlow 2"):
        open_tensors(tmp_path / "m", "tensorflow")


def test_what_is_no_saved_model_is_told_what_to_give(tmp_path: Path) -> None:
    path = saved(tmp_path / "m", classify)
    with pytest.raises(ModelError, match="is a file, and a SavedModel is a folder: give an archive"):
        open_tensors(path / "saved_model.pb", "tensorflow")
    (path / "saved_model.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(ModelError, match=r"saved_model\.pb is damaged"):
        open_tensors(path, "tensorflow")
    (path / "saved_model.pb").unlink()
    with pytest.raises(ModelError, match=r"has no saved_model\.pb"):
        open_tensors(path, "tensorflow")
