"""Requests against real models: several inputs, shared calls, and what is refused before it runs."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from halimede.api.model import ModelSpec
from halimede.inference import ModelError
from halimede.inference.tensor_model import open_tensors
from halimede.serving.errors import ModelFailedError, ServeError
from halimede.serving.loaded_model import Loaded, open_loaded
from halimede.serving.tensors import DTYPES, Tensor
from tests.graphs import FLOAT, Node, write_graph
from tests.lite_files import write_weigher
from tests.serving_world import adds, echo, floats

SPEC = ModelSpec(url="/none", format="onnx")
KINDS = {
    "BOOL": TensorProto.BOOL, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16, "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "FP16": TensorProto.FLOAT16, "FP32": FLOAT, "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
}  # fmt: skip


@contextlib.asynccontextmanager
async def opened(path: Path, spec: ModelSpec = SPEC, ran=None, **more) -> AsyncIterator[Loaded]:
    made = open_loaded(path, spec, **more)
    made.start("m", ran=ran)
    yield made
    await made.retire()


@pytest.mark.parametrize("kind", KINDS)
async def test_every_element_type_goes_in_and_out(tmp_path: Path, kind: str) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(DTYPES[kind])
    async with opened(echo(tmp_path / "m.onnx", KINDS[kind])) as loaded:
        (answer,) = await loaded.infer([Tensor("x", kind, array)], ())
    assert (answer.name, answer.datatype, answer.array.tolist()) == ("y", kind, array.tolist())
    assert loaded.batched


async def test_text_goes_in_and_out_however_it_came(tmp_path: Path) -> None:
    async with opened(echo(tmp_path / "m.onnx", TensorProto.STRING, ["N"])) as loaded:
        (answer,) = await loaded.infer([Tensor("x", "BYTES", np.array([b"a", "\u00fc".encode(), "c"], object))], ())
        assert answer.array.tolist() == ["a", "ü", "c"]
        with pytest.raises(ServeError, match="not UTF-8"):
            await loaded.infer([Tensor("x", "BYTES", np.array([b"\xff"], object))], ())


async def test_several_inputs_and_outputs_and_a_choice_of_them(tmp_path: Path) -> None:
    rows = (FLOAT, ["N", 2])
    nodes = [("Add", ["a", "b"], ["sum"], {}), ("Sub", ["a", "b"], ["difference"], {})]
    path = write_graph(tmp_path / "m.onnx", nodes, {"a": rows, "b": rows}, {"sum": rows, "difference": rows})
    given = [floats([[5, 6]], "a"), floats([[1, 2]], "b")]
    async with opened(path) as loaded:
        assert [t.array.tolist() for t in await loaded.infer(given, ())] == [[[6, 8]], [[4, 4]]]
        (only,) = await loaded.infer(given[::-1], ["difference"])
    assert (only.name, only.array.tolist()) == ("difference", [[4, 4]])


async def test_a_lite_model_is_served_like_an_onnx_model(tmp_path: Path) -> None:
    async with opened(write_weigher(tmp_path / "m.tflite"), ModelSpec(url="/none", format="TFLite")) as loaded:
        (answer,) = await loaded.infer([Tensor("x", "FP32", np.float32([[1, 1, 1, 1], [0, 0, 0, 0]]))], ())
        assert (answer.name, answer.datatype, answer.array.argmax(axis=1).tolist()) == ("y", "FP32", [1, 0])
        assert (loaded.platform, loaded.batched) == ("tensorflow_lite", True)
        with pytest.raises(ServeError, match=r"input x has shape \[-1, 4\], not \[1, 3\]"):
            await loaded.infer([Tensor("x", "FP32", np.zeros((1, 3), np.float32))], ())


@pytest.mark.parametrize(
    ("given", "wanted", "what"),
    [
        ([], (), "give each input once: this model takes x (FP32 [-1, 2])"),
        ([floats([[1, 2]], "z")], (), "there is no input 'z'"),
        ([floats([[1, 2]]), floats([[1, 2]])], (), "give each input once"),
        ([floats([[1, 2, 3]])], (), "has shape [-1, 2], not [1, 3]"),
        ([Tensor("x", "INT64", np.zeros((1, 2), np.int64))], (), "is FP32, not INT64"),
        ([floats([[1, 2]])], ("z",), "there is no output 'z': this model has y"),
    ],
)
async def test_what_the_model_does_not_take_is_refused(tmp_path: Path, given, wanted, what: str) -> None:
    async with opened(adds(tmp_path / "m.onnx", 1)) as loaded:
        with pytest.raises(ServeError, match=re.escape(what)) as refused:
            await loaded.infer(given, wanted)
    assert refused.value.status == 400


async def test_requests_that_wait_share_a_call_and_get_their_own_rows(tmp_path: Path) -> None:
    calls: list[int] = []
    async with opened(adds(tmp_path / "m.onnx", 1), ran=lambda _, rows, *__: calls.append(rows), most=8) as loaded:
        loaded._engine.policy = None  # no request is answered at once
        answers = await asyncio.gather(*(loaded.infer([floats([[n, n]] * (n % 3 + 1))], ()) for n in range(12)))
    for n, (answer,) in enumerate(answers):
        assert answer.array.tolist() == [[n + 1, n + 1]] * (n % 3 + 1)
    assert len(calls) < 12


def normalizes(path: Path) -> Path:
    """Write a model whose rows look at one another: a softmax along the first axis."""
    rows = (FLOAT, ["N", 2])
    return write_graph(path, [("Softmax", ["x"], ["y"], {"axis": 0})], {"x": rows}, {"y": rows})


def from_x(node: Node, shape: list[Any], y_shape: list[Any], constants: Any = None) -> Callable[[Path], Path]:
    """Return a function that writes a model of one node."""
    ports = {"x": (FLOAT, shape)}, {"y": (FLOAT, y_shape)}
    return lambda path: write_graph(path, [node], *ports, constants)


@pytest.mark.parametrize(
    ("make", "batched"),
    [
        (lambda p: adds(p, 1), True),
        (normalizes, False),
        (lambda p: echo(p, FLOAT, [1, 2]), False),
        (
            from_x(("CumSum", ["x", "c"], ["y"], {}), ["T", 2], ["T", 2], {"c": np.array(0, np.int64)}),
            False,
        ),
        (from_x(("ReduceSum", ["x"], ["y"], {}), ["N", 2], [1, 1]), False),
        (
            from_x(
                ("Conv", ["x", "w"], ["y"], {}),
                ["N", 1, "h", "w_"],
                ["N", 1, "i", "j"],
                {"w": np.ones((1, 1, 5, 5), np.float32)},
            ),
            True,
        ),
    ],
)
def test_rows_go_together_only_where_they_have_shown_to_stand_alone(tmp_path: Path, make, batched: bool) -> None:
    assert open_tensors(make(tmp_path / "m.onnx")).batched is batched


async def test_rows_that_look_at_one_another_are_never_mixed(tmp_path: Path) -> None:
    async with opened(normalizes(tmp_path / "m.onnx")) as loaded:
        answers = await asyncio.gather(*[loaded.infer([floats([[n, n], [n, n]])], ()) for n in range(6)])
    assert all(answer.array.tolist() == [[0.5, 0.5]] * 2 for (answer,) in answers)


async def test_what_the_model_fails_on_is_its_own_requests_alone(tmp_path: Path) -> None:
    ints = (TensorProto.INT64, ["N"])
    nodes = [("Gather", ["table", "i"], ["y"], {})]
    table = {"table": np.array([10.0, 20.0], np.float32)}
    async with opened(write_graph(tmp_path / "m.onnx", nodes, {"i": ints}, {"y": (FLOAT, ["N"])}, table)) as loaded:
        assert loaded.batched
        loaded._engine.policy = None
        asked = [loaded.infer([Tensor("i", "INT64", np.array([n]))], ()) for n in (0, 7, 1)]
        good, bad, also = await asyncio.gather(*asked, return_exceptions=True)
    assert (type(bad), bad.status) == (ModelFailedError, 500)
    assert (good[0].array.tolist(), also[0].array.tolist()) == ([10.0], [20.0])


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match="not an ONNX model"):
        open_loaded(path, SPEC)
