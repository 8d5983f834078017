"""The file form of tensors: a msgpack header that lists them, then their values.

A reader knows the specs (names, types and shapes) of the tensors, and checks the header against them before it
allocates memory. Only plain numbers are read: there are no pickles and no arrays of objects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from halimede.messages import Compression, TensorSpec
from halimede.messages.training import MOST_TENSORS
from halimede.training.weights import Weights, WeightsError, bytes_of, check_finite, check_specs, specs_of

#: the first bytes of a file
MAGIC = b"HALTENS1"
#: bytes, after MAGIC, of a big-endian integer: the header's length in bytes
PREFIX = 4
#: most bytes of the header for one tensor
MAX_ENTRY = 320
#: type of indices
INDEX = np.dtype("<u4")
#: the largest float16
FLOAT16_MAX = float(np.finfo(np.float16).max)


class TensorEntry(Struct, array_like=True):
    """One tensor in the header of a file.

    Attributes:
        name: the tensor's name.
        form: what follows in the file. ``all``: all values in C order. ``top``: the indices of some values in the flat
            tensor, then these values. ``mask``: a bit for each value of the tensor (the first one is the lowest bit of
            the first byte), then the values whose bit is set. Values that are not in the file are 0.
        dtype: type of the values in the file; it may be float16 for a tensor of a larger float type.
        count: the number of values in the file.

    """

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    form: Literal["all", "top", "mask"]
    dtype: Annotated[str, Meta(max_length=16)]
    count: Annotated[int, Meta(ge=0, le=2**32 - 1)]


_Header = Annotated[list[TensorEntry], Meta(max_length=MOST_TENSORS)]
_decoder = msgspec.msgpack.Decoder(_Header)


def encode(weights: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the content of a file with all values of the weights. Raises WeightsError as ``specs_of``."""
    specs_of(weights)
    return _file([(TensorEntry(name, "all", t.dtype.name, t.size), (t,)) for name, t in weights.items()])


def encode_update(delta: Mapping[str, NDArray[Any]], compression: Compression) -> bytes:
    """Return the content of a file with an update, compressed as described. Raises WeightsError as ``encode``."""
    specs_of(delta)
    entries: list[tuple[TensorEntry, Sequence[NDArray[Any]]]] = []
    for name, tensor in delta.items():
        dtype = _sent_dtype(tensor.dtype, compression)
        if dtype.itemsize < tensor.dtype.itemsize:
            # what float16 cannot hold is sent in later rounds, by error feedback
            tensor = np.clip(tensor, -FLOAT16_MAX, FLOAT16_MAX)  # noqa: PLW2901
        count = value_count(tensor.size, compression)
        if count == tensor.size or tensor.dtype.kind != "f":
            entries.append((TensorEntry(name, "all", dtype.name, tensor.size), (tensor.astype(dtype),)))
        else:
            flat = tensor.ravel()
            largest = np.sort(np.argpartition(np.abs(flat), tensor.size - count)[tensor.size - count :])
            form, positions = _encode_positions(largest, tensor.size)
            entries.append((TensorEntry(name, form, dtype.name, count), (positions, flat[largest].astype(dtype))))
    return _file(entries)


def value_count(size: int, compression: Compression) -> int:
    """Return how many values of a tensor with ``size`` values a compressed file has: at least one, if there are any."""
    return min(size, max(1, math.ceil(size * compression.top_k)))


def _encode_positions(positions: NDArray[Any], size: int) -> tuple[Literal["top", "mask"], NDArray[Any]]:
    """Return the positions of values in a tensor of ``size`` values, in the smaller form: as indices, or as a mask."""
    if len(positions) * INDEX.itemsize <= _mask_bytes(size):
        return "top", positions.astype(INDEX)
    bits = np.zeros(size, bool)
    bits[positions] = True
    return "mask", np.packbits(bits, bitorder="little")


def _mask_bytes(size: int) -> int:
    """Return the bytes of a mask with ``size`` bits."""
    return -(-size // 8)


def size_limit(specs: Sequence[TensorSpec]) -> int:
    """Return the most bytes of a file with tensors of these specs, in any form."""
    # a value and its index can be more than the value alone; a mask is smaller than indices
    return len(MAGIC) + PREFIX + sum(MAX_ENTRY + bytes_of(s) + math.prod(s.shape) * INDEX.itemsize for s in specs)


def decode(content: bytes | memoryview, specs: Sequence[TensorSpec]) -> Weights:
    """Return the tensors in a file's content, in the types and shapes of ``specs``; values not in it are 0.

    Raises WeightsError if the file has other tensors, values or bytes than the specs allow.
    """
    check_specs(specs)
    view = memoryview(content)
    if len(view) > size_limit(specs):
        raise WeightsError("TooLarge", f"{len(view)} bytes: these tensors take at most {size_limit(specs)}")
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise WeightsError("Unreadable", "it is no file of tensors")
    start = len(MAGIC) + PREFIX
    length = int.from_bytes(view[len(MAGIC) : start])
    try:
        entries = _decoder.decode(view[start : start + length])
    except (msgspec.DecodeError, ValueError) as error:
        raise WeightsError("Unreadable", f"its header cannot be read: {error}") from error
    if [entry.name for entry in entries] != [spec.name for spec in specs]:
        raise WeightsError("Shape", "it has other tensors than those of the round")
    weights: Weights = {}
    at = start + length
    for entry, spec in zip(entries, specs, strict=True):
        weights[spec.name], at = _tensor(view, at, entry, spec)
    if at != len(view):
        raise WeightsError("Unreadable", f"it has {len(view) - at} bytes more than its tensors")
    return weights


def decode_finite(content: bytes | memoryview, specs: Sequence[TensorSpec]) -> Weights:
    """Return what ``decode`` returns. Raises WeightsError also for values that are not finite."""
    weights = decode(content, specs)
    check_finite(weights)
    return weights


def _tensor(view: memoryview, at: int, entry: TensorEntry, spec: TensorSpec) -> tuple[NDArray[Any], int]:
    """Return the tensor at the offset ``at``, and the offset after it. Raises WeightsError."""
    target_dtype, size = np.dtype(spec.dtype), math.prod(spec.shape)
    if entry.dtype != spec.dtype and not (entry.dtype == "float16" and target_dtype.kind == "f"):
        raise WeightsError("Shape", f"tensor {spec.name!r} holds {entry.dtype}, not {spec.dtype}")
    if entry.count > size or (entry.form == "all" and entry.count < size):
        raise WeightsError("Shape", f"tensor {spec.name!r} has {entry.count} values, not {size}")
    dtype = np.dtype(entry.dtype).newbyteorder("<")
    if entry.form == "all":
        values, at = _values(view, at, entry.count, dtype, spec.name)
        return values.astype(target_dtype).reshape(spec.shape), at
    positions, at = _positions(view, at, entry, size)
    values, at = _values(view, at, entry.count, dtype, spec.name)
    flat = np.zeros(size, target_dtype)
    flat[positions] = values
    return flat.reshape(spec.shape), at


def _positions(view: memoryview, at: int, entry: TensorEntry, size: int) -> tuple[NDArray[Any], int]:
    """Return the positions, at the offset ``at``, of an entry's values, and the offset after them.

    Raises WeightsError.
    """
    if entry.form == "mask":
        mask, at = _values(view, at, _mask_bytes(size), np.dtype(np.uint8), entry.name)
        positions: NDArray[Any] = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if len(positions) != entry.count:
            text = f"tensor {entry.name!r} has a mask of {len(positions)} values, not {entry.count}"
            raise WeightsError("Shape", text)
    else:
        positions, at = _values(view, at, entry.count, INDEX, entry.name)
    if entry.count and (int(positions[-1]) >= size or (np.diff(positions.astype(np.int64)) <= 0).any()):
        raise WeightsError("Shape", f"tensor {entry.name!r} has values outside of it, or not in order")
    return positions, at


def _values(view: memoryview, at: int, count: int, dtype: np.dtype[Any], name: str) -> tuple[NDArray[Any], int]:
    """Return ``count`` numbers at the offset ``at``, and the offset after them. Raises WeightsError."""
    end = at + count * dtype.itemsize
    if end > len(view):
        raise WeightsError("Unreadable", f"it ends within tensor {name!r}")
    return np.frombuffer(view[at:end], dtype), end


def _sent_dtype(dtype: np.dtype[Any], compression: Compression) -> np.dtype[Any]:
    """Return the type in which the values of a tensor are sent."""
    return np.dtype(np.float16) if dtype.kind == "f" and compression.dtype == "float16" else dtype


def _file(entries: Sequence[tuple[TensorEntry, Sequence[NDArray[Any]]]]) -> bytes:
    """Return the content of a file: the header, then the arrays of each entry."""
    header = msgspec.msgpack.encode([entry for entry, _ in entries])
    parts = [MAGIC, len(header).to_bytes(PREFIX), header]
    for _, arrays in entries:
        parts += [np.ascontiguousarray(a, a.dtype.newbyteorder("<")).tobytes() for a in arrays]
    return b"".join(parts)
