"""Models that somebody might send: real files, each with something in it that must not come to pass."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ROW: tuple[int, list[Any]] = (FLOAT, ["N", 4])


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto] = (),
    *,
    functions: Sequence[onnx.FunctionProto] = (),
    sparse: Sequence[onnx.SparseTensorProto] = (),
) -> Path:
    """Write a model from ``x`` to ``y``, rows of four floats each."""
    x, y = (helper.make_tensor_value_info(name, *ROW) for name in ("x", "y"))
    graph = helper.make_graph(nodes, "hostile", [x], [y], weights, sparse_initializer=sparse)
    domains = dict.fromkeys([*(n.domain for n in nodes), *(f.domain for f in functions)], 1) | {"": 17}
    imports = [helper.make_opsetid(name, version) for name, version in domains.items()]
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def harmless(path: Path) -> Path:
    """Write a model that answers with its input."""
    return save(path, [helper.make_node("Identity", ["x"], ["y"])])


def outside(location: str, name: str = "w", count: int = 4, **said: str) -> onnx.TensorProto:
    """Return a tensor of floats whose data are said to be in another file."""
    tensor = TensorProto(name=name, data_type=FLOAT, dims=[count], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **said}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def adding(path: Path, tensor: onnx.TensorProto) -> Path:
    """Write a model that adds a tensor to its input."""
    return save(path, [helper.make_node("Add", ["x", tensor.name], ["y"])], [tensor])


def in_attribute(path: Path, tensor: onnx.TensorProto) -> Path:
    """Likewise, with the tensor in an attribute of a node."""
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    return save(path, [constant, helper.make_node("Add", ["x", "w"], ["y"])])


def in_subgraph(path: Path, tensor: onnx.TensorProto) -> Path:
    """Likewise, with the tensor in a branch of a branch."""
    value = helper.make_tensor_value_info("out", *ROW)
    inner = helper.make_graph([helper.make_node("Add", ["x", "w"], ["out"])], "inner", [], [value], [tensor])
    branch = helper.make_node("If", ["c"], ["out"], then_branch=inner, else_branch=inner)
    middle = helper.make_graph([branch], "middle", [], [value])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=middle, else_branch=middle)
    return save(path, [choice], [numpy_helper.from_array(np.array(True), "c")])


def in_function(path: Path, tensor: onnx.TensorProto) -> Path:
    """Likewise, with the tensor in a function of the model's own."""
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    add = helper.make_node("Add", ["a", "w"], ["b"])
    mine = helper.make_function("mine", "Shift", ["a"], ["b"], [constant, add], [helper.make_opsetid("", 17)])
    call = helper.make_node("Shift", ["x"], ["y"], domain="mine")
    return save(path, [call], functions=[mine])


def in_sparse(path: Path, tensor: onnx.TensorProto) -> Path:
    """Likewise, with the tensor as the values of a sparse one."""
    indices = numpy_helper.from_array(np.arange(4, dtype=np.int64), "i")
    sparse = onnx.SparseTensorProto(values=tensor, indices=indices, dims=[4])
    return save(path, [helper.make_node("Add", ["x", "w"], ["y"])], sparse=[sparse])


def huge(path: Path, *, folded: bool) -> Path:
    """Write a model of a few bytes that wants a gigabyte: when it is loaded (``folded``), or when it answers."""
    one = helper.make_tensor("v", FLOAT, [1], [1.0])
    size = numpy_helper.from_array(np.array([1 << 28], np.int64), "size")
    shape = helper.make_node("Shape", ["x"], ["n"], start=0, end=1)
    nodes = [
        *([] if folded else [shape, helper.make_node("Mul", ["n", "size"], ["shape"])]),
        helper.make_node("ConstantOfShape", ["size" if folded else "shape"], ["big"], value=one),
        helper.make_node("ReduceMax", ["big"], ["most"], keepdims=0),
        helper.make_node("Add", ["x", "most"], ["y"]),
    ]
    return save(path, nodes, [size])


def endless(path: Path) -> Path:
    value, row = helper.make_tensor_value_info, [None, 4]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Add", ["a", "one"], ["b"])],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), value("a", FLOAT, row)],
        [value("goes", BOOL, []), value("b", FLOAT, row)],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    loop = helper.make_node("Loop", ["", "ever", "x"], ["y"], body=body)
    return save(path, [loop], [numpy_helper.from_array(np.array(True), "ever")])


class Touches:
    """Whoever reads the pickle of it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def strangers(trap: Path) -> dict[str, bytes]:
    """Return files in which code waits, or that are no ONNX at all, by what they are."""
    found = {f"pickle {protocol}": pickle.dumps(Touches(trap), protocol) for protocol in range(6)}
    found["pt"] = zipped({"archive/data.pkl": found["pickle 2"], "archive/data/0": bytes(16)})
    array = io.BytesIO()
    np.save(array, np.array([Touches(trap)], object), allow_pickle=True)
    found["npy"] = array.getvalue()
    arrays = io.BytesIO()
    np.savez(arrays, a=np.zeros(3), b=np.array([Touches(trap)], object), allow_pickle=True)
    found["npz"] = arrays.getvalue()
    return found


def zipped(members: dict[str, bytes]) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return whole.getvalue()
