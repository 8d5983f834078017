"""Encodes calls of a Sedna script for the bus: a frame for the request, a prediction for the answer.

An array of numbers travels as a raw frame, so that any cloud worker of halimede can answer it, and a script can answer
frames of any edge worker. Other data (text, bytes, numbers, None, lists and dicts of these and of arrays) travel as
msgpack in the frame's bytes; only a script's cloud worker reads those, and calls with further arguments. The header of
a call is in ``frame.edge.value`` under CALL_KEY. There are no pickles, so decoding runs no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from halimede.api.base import convert
from halimede.errors import DecodeError, InvalidFieldError
from halimede.frames.encodings import DTYPES, decode
from halimede.frames.payloads import new_frame
from halimede.inference.user_answers import as_prediction
from halimede.messages import Frame, Prediction

#: the only key of the value that marks calls and answers of scripts
CALL_KEY = "sedna"
#: msgpack's extension code for an array inside of other data
ARRAY_CODE = 1
#: most axes of a raw frame, and most elements of one axis
MAX_AXES, MAX_AXIS = 4, 65_535
#: bytes per row of the picture that contains other data
ROW_BYTES = 4096
#: kinds of elements that are plain numbers, little endian or of one byte
NUMBER_KINDS = "biufc"
#: the correction of data that cannot be encoded
DATA_FIX = "give an array of numbers, or text, bytes, numbers, lists and dicts (of these, and of arrays)"


class CallHeader(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The header of a call of ``inference``.

    ``v``: version of the form. ``size``: bytes of msgpack in the frame; None: the frame is an array. ``post_process``:
    the alias of a registered function, or None. ``arguments``: further arguments by name.
    """

    v: Literal[1] = 1
    size: int | None = None
    post_process: str | None = None
    arguments: dict[str, Any] = {}


def write_call(data: Any, arguments: Mapping[str, Any], post_process: str | None = None) -> Frame:
    """Return the frame that requests an answer to ``data`` with these arguments of ``inference``.

    Raises InvalidFieldError for unsupported data.
    """
    plain = _encode("arguments", dict(arguments))
    call = CallHeader(post_process=post_process, arguments=msgspec.msgpack.decode(plain, ext_hook=_refuse_array))
    if isinstance(data, np.ndarray) and _is_raw(data):
        frame = new_frame(data)
    else:
        encoded = _encode("data", data)
        call.size = len(encoded)
        rows = max(1, -(-len(encoded) // ROW_BYTES))
        frame = new_frame(np.frombuffer(encoded.ljust(rows * ROW_BYTES, b"\0"), np.uint8).reshape(rows, ROW_BYTES))
    frame.edge = Prediction(value={CALL_KEY: msgspec.to_builtins(call)})
    return frame


def read_call(frame: Frame) -> tuple[Any, CallHeader] | None:
    """Return the data of a call and its header; None for a frame that is not from a script.

    Arrays are writable copies. Raises DecodeError for an invalid call.
    """
    value = frame.edge.value if frame.edge else None
    if not (isinstance(value, dict) and set(value) == {CALL_KEY}):
        return None
    try:
        call = convert(value[CALL_KEY], CallHeader, CALL_KEY)
    except InvalidFieldError as error:
        raise DecodeError(str(error)) from error
    array = decode(frame)
    if call.size is None:
        return array.copy(), call
    if not 0 <= call.size <= array.nbytes:
        raise DecodeError(f"{call.size} bytes of data are said to be in {array.nbytes}")
    try:
        return msgspec.msgpack.decode(memoryview(array.tobytes())[: call.size], ext_hook=_decode_array), call
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise DecodeError(f"the data cannot be read: {error}") from error


def write_answer(answer: Any) -> Prediction:
    """Return the answer of a script's cloud worker as a prediction. Raises SampleError if JSON cannot represent it."""
    return as_prediction({CALL_KEY: answer})


def read_answer(prediction: Prediction) -> Any:
    """Return the answer in a prediction as a Python value: that of a script's cloud worker, or of halimede's.

    Of halimede's, boxes are rows of x1, y1, x2, y2, score, label; probabilities are a list; a label is text.
    """
    value = prediction.value
    if isinstance(value, dict) and set(value) == {CALL_KEY}:
        return value[CALL_KEY]
    if prediction.boxes is not None:
        return [[box.x1, box.y1, box.x2, box.y2, box.score, box.label] for box in prediction.boxes]
    if prediction.probabilities is not None:
        return prediction.probabilities
    return prediction.label if value is None else value


def _is_raw(array: NDArray[Any]) -> bool:
    """Whether a raw frame can represent the array, by type and shape."""
    fits = all(1 <= size <= MAX_AXIS for size in array.shape)
    return array.dtype.name in DTYPES and 1 <= array.ndim <= MAX_AXES and fits


def _encode(field: str, value: Any) -> bytes:
    """Return a value as msgpack, arrays included. Raises InvalidFieldError, which names ``field``."""
    try:
        return msgspec.msgpack.encode(value, enc_hook=_encode_item)
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise InvalidFieldError(field, f"{type(value).__name__} ({error})", DATA_FIX) from error


def _encode_item(item: Any) -> Any:
    """Return what msgpack has for a number or array of NumPy. Raises NotImplementedError for other types."""
    if isinstance(item, np.generic):
        return item.item()
    if isinstance(item, np.ndarray) and item.dtype.kind in NUMBER_KINDS:
        data = item.astype(item.dtype.newbyteorder("<"), copy=False)
        return msgspec.msgpack.Ext(ARRAY_CODE, msgspec.msgpack.encode((data.dtype.str, data.shape, data.tobytes())))
    raise NotImplementedError(f"a value of type {type(item).__name__}")


def _decode_array(code: int, data: memoryview) -> NDArray[Any]:
    """Return the array in an extension of msgpack. Raises ValueError for anything else."""
    if code != ARRAY_CODE:
        raise ValueError(f"an extension {code} is not known")
    name, shape, content = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], bytes])
    dtype = np.dtype(name)
    if dtype.kind not in NUMBER_KINDS or any(size < 0 for size in shape):
        raise ValueError(f"{name} {shape} is no array of numbers")
    return np.frombuffer(bytearray(content), dtype).reshape(shape)


def _refuse_array(_: int, __: memoryview) -> Any:
    """Raise InvalidFieldError for an array among the arguments."""
    raise InvalidFieldError("arguments", "an array", "give it inside of the data: arguments are plain values")
