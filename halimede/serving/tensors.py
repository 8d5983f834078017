"""Tensors of the Open Inference Protocol: conversion between JSON or bytes and NumPy arrays.

Every size is checked before an array is made. The element type BYTES, which stands for text and files, becomes an array
of objects: ``bytes`` if it arrived as bytes, ``str`` if it arrived as JSON.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from halimede.inference import Array
from halimede.inference.tensor_model import BF16, TYPES, as_float
from halimede.serving.errors import ServeError, TooMuchError

#: the protocol's element type of text and files
BYTES = "BYTES"
#: NumPy's types by all other element types, in little endian; BF16 is uint16
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(dtype).newbyteorder("<") for name, dtype in TYPES.values() if name != BYTES
}
#: most axes and elements of one tensor
MAX_AXES, MAX_ELEMENTS = 16, 2**31
#: most tensors of one request, and elements of BYTES in all of them
MAX_TENSORS, MAX_TEXTS = 256, 65_536
#: most elements of one tensor that are Python objects at a time, as in typed contents of gRPC and in an answer's
#: JSON; callers check it with ``check_count``
MAX_VALUES = 1024 * 1024
#: bytes from which a tensor is written without a copy
LARGE = 64 * 1024
#: characters of JSON that are read at a time
PART = 64 * 1024
#: types of numbers in JSON
NUMBERS = {int, float, bool}
#: the length in bytes before each element of BYTES
_length = struct.Struct("<I")


@dataclass(slots=True)
class Tensor:
    """One input or output: its name, its element type in the protocol (such as ``FP32``), and its values.

    The type of ``array`` is that of DTYPES, or object for BYTES.
    """

    name: str
    datatype: str
    array: Array


def count_of(name: str, shape: Sequence[int]) -> int:
    """Return the number of elements of a shape. ``name``: of its tensor. Raises ServeError for invalid sizes."""
    if len(shape) <= MAX_AXES and min(shape, default=1) > 0 and (count := math.prod(shape)) <= MAX_ELEMENTS:
        return count  # as nearly always
    if len(shape) > MAX_AXES or min(shape, default=0) < 0 or max(shape, default=0) > MAX_ELEMENTS:
        shown = ", ".join(str(size) if abs(size) < 2**64 else "..." for size in shape[:MAX_AXES])
        fix = f"give up to {MAX_AXES} sizes from 0 to {MAX_ELEMENTS}"
        raise ServeError(f"tensor {name[:80]}: shape [{shown}] is invalid: {fix}")
    # NumPy refuses an empty array whose other sizes are as large
    if math.prod(size or 1 for size in shape) > MAX_ELEMENTS:
        raise TooMuchError(f"tensor {name[:80]}: shape {list(shape)} has more than {MAX_ELEMENTS} elements")
    return math.prod(shape)


def check_inputs(inputs: Sequence[Any]) -> None:
    """Raise ServeError if a request has too many inputs, or too many elements of BYTES, before they are decoded.

    ``inputs``: have the attributes ``name``, ``datatype`` and ``shape``.
    """
    if len(inputs) > MAX_TENSORS:
        raise TooMuchError(f"more than {MAX_TENSORS} tensors")
    texts = 0
    for header in inputs:
        if header.datatype == BYTES:
            texts += count_of(header.name, header.shape)
    if texts > MAX_TEXTS:
        raise TooMuchError(f"{texts} elements of {BYTES} are more than {MAX_TEXTS} in a request")


def check_count(name: str, count: int) -> None:
    """Raise TooMuchError if a tensor has more elements than may be Python objects at a time."""
    if count > MAX_VALUES:
        raise TooMuchError(f"tensor {name[:80]}: {count} values are more than {MAX_VALUES}: use its binary (raw) form")


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
    """Return the tensor that ``data`` holds in binary form: little endian, C order.

    In BYTES each element comes after four bytes with its length. Raises ServeError.
    """
    count = count_of(name, shape)
    if datatype == BYTES:
        return Tensor(name, BYTES, objects(_split(name, count, memoryview(data)), shape))
    dtype = _dtype(name, datatype)
    if count * dtype.itemsize != len(data):
        size = f"{datatype} {list(shape)} takes {count * dtype.itemsize} bytes"
        raise ServeError(f"tensor {name}: {size}, and there are {len(data)}")
    return Tensor(name, datatype, _array(data, dtype, shape))


def from_values(name: str, datatype: str, shape: Sequence[int], values: Any) -> Tensor:
    """Return the tensor of values from JSON or typed gRPC contents: a list, flat or nested, in C order.

    Raises ServeError.
    """
    count = count_of(name, shape)
    if not isinstance(values, list):
        raise ServeError(f"tensor {name}: data is a {type(values).__name__}: give a list of {count} values")
    flat = _flat(name, values) if values and isinstance(values[0], list) else values
    if len(flat) != count:
        raise ServeError(f"tensor {name}: shape {list(shape)} has {count} elements, and data has {len(flat)}")
    kinds = set(map(type, flat))
    if datatype == BYTES:
        if not kinds <= {str, bytes}:
            raise ServeError(f"tensor {name}: data of BYTES is text: give strings, or send it as binary data")
        return Tensor(name, BYTES, objects(flat, shape))
    dtype = _dtype(name, datatype)
    if not kinds <= NUMBERS:
        raise ServeError(f"tensor {name}: data has elements that are not {datatype}")
    # convert without the target type first: a cast would wrap numbers that are too large for it; but whole numbers on
    # both sides of 2**63 would become doubles
    wide = kinds == {int} and dtype == np.uint64 and min(flat) >= 0 and max(flat) < 2**64
    try:
        array = np.array(flat, np.uint64 if wide else None) if flat else np.zeros(0, dtype)
    except OverflowError:
        raise ServeError(f"tensor {name}: a number of its data is too large for {datatype}") from None
    return Tensor(name, datatype, _cast(name, datatype, dtype, array).reshape(shape))


def from_json(name: str, datatype: str, shape: Sequence[int], data: msgspec.Raw) -> Tensor:
    """Return the tensor of a long list in JSON, decoded in parts: few values are Python objects at a time.

    Texts (BYTES) are few, and decoded at once.

    Nested lists are flattened: numbers are in C order however they are nested. Raises ServeError.
    """
    count, text = count_of(name, shape), bytes(data)
    if datatype == BYTES:
        return from_values(name, BYTES, shape, _texts(name, text))
    dtype = _dtype(name, datatype)
    if not text.startswith(b"["):
        raise ServeError(f"tensor {name}: data is not a list: give a list of {count} values")
    flat = text.translate(None, b"[] \t\r\n")
    if (has := flat.count(b",") + bool(flat)) != count:
        raise ServeError(f"tensor {name}: shape {list(shape)} has {count} elements, and data has {has}")
    array = np.empty(count, dtype)
    at = filled = 0
    while at < len(flat):
        end = flat.find(b",", at + PART)
        end = len(flat) if end < 0 else end
        try:
            values = msgspec.json.decode(b"[%b]" % flat[at:end])
        except msgspec.DecodeError:
            raise ServeError(f"tensor {name}: data has elements that are not {datatype}") from None
        array[filled : filled + len(values)] = from_values(name, datatype, [len(values)], values).array
        at, filled = end + 1, filled + len(values)
    return Tensor(name, datatype, array.reshape(shape))


def _texts(name: str, data: bytes) -> Any:
    """Return a long list of texts in JSON, nested as deep as its first element. Raises ServeError for other values."""
    # a text has two quotes and perhaps some in it, and may be in a list of its own
    if data.count(b'"') > 8 * MAX_TEXTS or data.count(b"[") > 2 * MAX_TEXTS:
        raise TooMuchError(f"tensor {name}: its data has too many texts or quotes: send it as binary data")
    start = data[: 64 * MAX_AXES].translate(None, b" \t\r\n")  # 64: a bracket with white space around it
    depth = len(start) - len(start.lstrip(b"["))
    kind: Any = str
    for _ in range(min(depth, MAX_AXES)):
        kind = list[kind]
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServeError(f"tensor {name}: data of BYTES is text: {error}") from error


def to_bytes(tensor: Tensor) -> bytes | memoryview:
    """Return the binary form of a tensor, as ``from_bytes`` reads it; of a large array a view of its memory."""
    if tensor.datatype != BYTES:
        array = np.ascontiguousarray(tensor.array, DTYPES[tensor.datatype])
        return array.reshape(-1).view(np.uint8).data if array.nbytes > LARGE else array.tobytes()
    parts = []
    for item in tensor.array.ravel():
        data = item if isinstance(item, bytes) else str(item).encode()
        parts += [_length.pack(len(data)), data]
    return b"".join(parts)


def to_values(tensor: Tensor) -> list[Any]:
    """Return the values of a tensor as a flat list for JSON, in C order; characters that are not UTF-8 are replaced."""
    if tensor.datatype == BYTES:
        return [
            item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in tensor.array.ravel()
        ]
    array = as_float(tensor.array) if tensor.datatype == BF16 else tensor.array
    values: list[Any] = array.ravel().tolist()
    return values


def bits_of(array: Array) -> Array:
    """Return float32 numbers as the bits of bfloat16, in uint16, rounded to nearest even."""
    wide = np.ascontiguousarray(array, np.float32)
    bits = wide.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    # 0x7FC0 is NaN: rounding would turn the bits of another NaN into infinity or zero
    return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded)


def _array(data: bytes | memoryview, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Return the array that ``data`` holds in the binary form of numbers; only BOOL is copied."""
    array = np.frombuffer(data, dtype) if data else np.zeros(0, dtype)
    if dtype.kind == "b":
        array = array.view(np.uint8) != 0  # any byte but 0 is true; a bool of 2 would be neither true nor false
    return array.reshape(shape)


def _dtype(name: str, datatype: str) -> np.dtype[Any]:
    """Return NumPy's type of an element type. Raises ServeError for an unknown one."""
    dtype = DTYPES.get(datatype)
    if dtype is None:
        fix = f"use one of {', '.join([*DTYPES, BYTES])}"
        raise ServeError(f"tensor {name}: datatype {datatype[:32]!r} is unknown: {fix}")
    return dtype


def _cast(name: str, datatype: str, dtype: np.dtype[Any], array: Array) -> Array:
    """Return numbers in their declared type. Raises ServeError if more than precision would be lost.

    But a number that is too large for a type of floats becomes infinity.
    """
    kind = array.dtype.kind
    if dtype.kind == "b":
        if kind == "b" or (kind in "iu" and array.size and array.min() >= 0 and array.max() <= 1) or not array.size:
            return array.astype(np.bool_)
    elif kind in "iuf" and (dtype.kind == "f" or datatype == BF16):
        with np.errstate(over="ignore"):
            return bits_of(array) if datatype == BF16 else array.astype(dtype)
    elif kind in "iu" or not array.size:
        bounds = np.iinfo(dtype)
        if not array.size or (int(array.min()) >= bounds.min and int(array.max()) <= bounds.max):
            return array.astype(dtype)
        raise ServeError(f"tensor {name}: {datatype} holds {bounds.min} to {bounds.max}, and data goes beyond")
    raise ServeError(f"tensor {name}: data has elements that are not {datatype}")


def _flat(name: str, values: list[Any]) -> list[Any]:
    """Return the elements of nested lists of equal depth. Raises ServeError if they are nested too deeply."""
    for _ in range(MAX_AXES):
        if set(map(type, values)) != {list}:
            return values
        values = list(chain.from_iterable(values))
    raise ServeError(f"tensor {name}: data is nested more than {MAX_AXES} levels deep")


def objects(items: list[Any], shape: Sequence[int]) -> Array:
    """Return an array of objects with this shape: texts or bytes in C order."""
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def _split(name: str, count: int, data: memoryview) -> list[bytes]:
    """Return the ``count`` elements that ``data`` holds in the binary form of BYTES. Raises ServeError."""
    items, at = [], 0
    if count * _length.size > len(data):
        raise ServeError(f"tensor {name}: {len(data)} bytes do not hold {count} elements with their lengths")
    for _ in range(count):
        if at + _length.size > len(data):
            raise ServeError(f"tensor {name}: its binary data ends inside the length of an element")
        (length,) = _length.unpack_from(data, at)
        at += _length.size
        if at + length > len(data):
            raise ServeError(f"tensor {name}: its binary data ends inside an element")
        items.append(bytes(data[at : at + length]))
        at += length
    if at != len(data):
        raise ServeError(f"tensor {name}: its binary data has {len(data) - at} bytes too many")
    return items
