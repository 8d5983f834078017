"""Opens TensorFlow SavedModels with TensorFlow, on the CPU: the runtime of their format (``session.RUNTIMES``).

A SavedModel is a program, and TensorFlow has operators that read and write files, use the network, or call Python. A
model with such an operator in any function that loading or serving can call is refused before it is loaded. The
functions that save or restore a whole model, which nearly every SavedModel has, are not checked: nothing calls them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# TensorFlow reads this when it is imported. It raises its errors; its own log lines would miss halimede's log
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.client import pywrap_tf_session

from halimede.api.model_formats import SAVED_MODEL
from halimede.inference.model import Array, ModelError, UnsafeModelError
from halimede.inference.session import DeclaredTensor, reason, type_name

#: the function that is called where a model has several
SERVING_SIGNATURE = "serving_default"
#: part of errors about a file or folder that is no SavedModel
EXPORT_ADVICE = "give an archive (tar.gz, zip) of its folder, with saved_model.pb and variables"
#: stateful operators that are allowed, because their state stays within the process: variables, tables, random numbers,
#: calls of functions
ALLOWED_STATEFUL = re.compile(
    r"(Assign(Add|Sub)?VariableOp|DisableCopyOnRead|DestroyResourceOp|IsResourceHandleRefCounting|ReadVariableOp"
    r"|ResourceGather(Nd)?|ResourceScatter(Nd)?(Add|Div|Max|Min|Mul|Sub|Update)|ResourceStridedSliceAssign"
    r"|Var(Handle|IsInitialized)Op|VariableShape"
    r"|(Anonymous)?(Mutable(Dense)?)?HashTable(OfTensors)?(V2)?|InitializeTableV2"
    r"|LookupTable(Export|Find|Import|Insert|Remove|Size)V2"
    r"|(If|While|Case|StatefulPartitionedCall|Assert|CheckNumerics(V2)?|Empty|GuaranteeConst|_Arg|_Retval|DeviceIndex)"
    r"|Random(Crop|Gamma|PoissonV2|Shuffle|StandardNormal|Uniform|UniformInt)|TruncatedNormal|Multinomial"
    r"|StatelessRandomGetAlg|Stateful(StandardNormalV2|TruncatedNormal|Uniform|UniformFullInt|UniformInt)|Rng\w+"
    r"|(Stack|StackPush|StackPop|StackClose)(V2)?|TensorArray(Close|Concat|Gather|Read|Scatter|Size|Split|Write)?V3)"
)
#: operators that TensorFlow does not count as stateful, and that read files, call foreign code or end the process
REFUSED = re.compile(
    r"ReadFile|MatchingFiles|ImmutableConst|InitializeTableFromTextFile|GenerateVocabRemapping|PyFunc\w*|Debug\w*|Abort"
    r"|\w*Dataset\w*|Snapshot\w*|Copy(Host|Op)?|XlaCustomCall\w*|XlaLaunch\w*|TPU\w*|Reader\w*|Sharded\w*"
)


class TensorFlowSession:
    """A ``RuntimeSession`` (session) that calls one signature (a named function) of a loaded SavedModel.

    ``loaded``: TensorFlow's object of the whole model. ``signature``: one of its ``signatures``.
    """

    runtime = "TensorFlow"

    def __init__(self, loaded: Any, signature: Any) -> None:
        self._loaded = loaded  # it owns the variables
        self._signature = signature
        self._inputs = signature.structured_input_signature[1]
        self._outputs = signature.structured_outputs

    def get_inputs(self) -> list[DeclaredTensor]:
        """Return the inputs as the file declares them."""
        return [_declared_tensor(*item) for item in self._inputs.items()]

    def get_outputs(self) -> list[DeclaredTensor]:
        """Return the outputs as the file declares them."""
        return [_declared_tensor(*item) for item in self._outputs.items()]

    def run(self, output_names: Sequence[str], input_feed: Mapping[str, Any]) -> list[Array]:
        """Return the named outputs, in that order, as arrays. Raises TensorFlow's errors."""
        feeds = {name: tf.constant(array, self._inputs[name].dtype) for name, array in input_feed.items()}
        outputs = self._signature(**feeds)
        return [outputs[name].numpy() for name in output_names]


def open_session(path: Path, threads: int) -> TensorFlowSession:
    """Load the SavedModel in the folder ``path``. Raises ModelError, OSError.

    ``threads``: of one call; 0: one for each core. TensorFlow keeps the number of the process's first model.
    """
    check_folder(path)
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        pass  # TensorFlow has started, and no longer changes the settings of the process
    try:
        loaded = tf.saved_model.load(str(path))
    except Exception as error:
        raise ModelError(f"the model {path} is not a SavedModel that can run here: {reason(error)}") from error
    return TensorFlowSession(loaded, _signature(path, loaded.signatures))


def check_folder(path: Path) -> None:
    """Check that TensorFlow may load a folder. Raises ModelError, UnsafeModelError for a refused operator, OSError."""
    if not path.is_dir():
        raise ModelError(f"the model {path} is a file, and a SavedModel is a folder: {EXPORT_ADVICE}")
    file = path / SAVED_MODEL.preferred
    if not file.is_file():
        raise ModelError(f"the model {path} has no {SAVED_MODEL.preferred}: {EXPORT_ADVICE}")
    model = saved_model_pb2.SavedModel()
    try:
        model.ParseFromString(file.read_bytes())
    except DecodeError as error:
        raise ModelError(f"the model file {file} is damaged: {reason(error)}") from error
    # with several graphs, or without objects, TensorFlow would run the graph around the functions
    if len(model.meta_graphs) != 1 or not model.meta_graphs[0].HasField("object_graph_def"):
        raise ModelError(f"the model {path} is of TensorFlow 1: save it with TensorFlow 2 (tf.saved_model.save)")
    _check_graph(path, model.meta_graphs[0])


def _check_graph(path: Path, graph: Any) -> None:
    """Raise UnsafeModelError if a function that the model's objects can call has a refused operator.

    ``graph``: a MetaGraphDef. Its nodes outside of functions are not checked, because nothing runs them.
    """
    library = {function.signature.name: function for function in graph.graph_def.library.function}
    pending, checked = list(graph.object_graph_def.concrete_functions), set[str]()
    stateful_by_name = _stateful_by_name()
    while pending:
        name = pending.pop()
        if name in checked or name not in library:
            continue
        checked.add(name)
        for node in library[name].node_def:
            pending += _called_functions(node)
            if node.op in library:
                continue
            if REFUSED.fullmatch(node.op) or (
                stateful_by_name.get(node.op, True) and not ALLOWED_STATEFUL.fullmatch(node.op)
            ):
                raise UnsafeModelError(
                    f"the model {path} has the operator {node.op[:100]!r}, which is not known to stay away from "
                    "files, the network and other code: save it without that operator"
                )


def _called_functions(node: Any) -> Iterator[str]:
    """Yield the names of functions that a node of a graph may call: its operator, and those in its attributes."""
    yield node.op
    pending = list(node.attr.values())
    while pending:
        value = pending.pop()
        for function in (value.func, *value.list.func):
            yield function.name
            pending += function.attr.values()


def _stateful_by_name() -> dict[str, bool]:
    """Return for each operator of TensorFlow whether it counts as stateful, by the operator's name."""
    operators = op_def_pb2.OpList()
    operators.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {operator.name: operator.is_stateful for operator in operators.op}


def _signature(path: Path, signatures: Mapping[str, Any]) -> Any:
    """Return the signature ``serving_default``, or the only one. Raises ModelError."""
    if SERVING_SIGNATURE in signatures:
        return signatures[SERVING_SIGNATURE]
    if len(signatures) == 1:
        return next(iter(signatures.values()))
    names = ", ".join(sorted(signatures)) or "none"
    raise ModelError(f"the model {path} has the signatures {names}: save it with one named {SERVING_SIGNATURE}")


def _declared_tensor(name: str, tensor: Any) -> DeclaredTensor:
    """Return TensorFlow's declaration of a tensor in ONNX Runtime's words."""
    kind = "tensor(string)" if tensor.dtype == tf.string else type_name(tensor.dtype.name)
    return DeclaredTensor(name, kind, tuple(tensor.shape) if tensor.shape.rank is not None else ())
