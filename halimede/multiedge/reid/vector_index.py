"""Nearest-neighbor search of vectors: the only module that imports usearch.

A graph (HNSW) finds near vectors in about a millisecond, however many there are, but it may miss the nearest. So a
small index is searched exhaustively, and a large one when its graph finds nothing near enough: an object counts as new
only after an exhaustive search. The memory of removed vectors is used again for new ones.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence, Set
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# isort: off
# before usearch: both carry a C++ library of their own, and ONNX Runtime crashes at import when usearch's came first
import halimede.inference.runtimes.onnx  # noqa: F401
from usearch.index import Index as _Usearch
from usearch.index import Matches
# isort: on

#: vectors or similarities
Floats = NDArray[np.float32]
#: keys of vectors
Keys = NDArray[np.uint64]

#: vectors times their length, up to which an index is small: an exhaustive search takes about half a millisecond
MAX_EXACT = 4_000_000
#: edges of a node in the graph, and the width of the search when a vector is added and when one is searched
CONNECTIVITY, ADD_WIDTH, SEARCH_WIDTH = 16, 96, 256
#: ending of the names of saved graphs
SUFFIX = ".usearch"
#: vectors that are added in one call
BLOCK = 2000


class VectorIndex:
    """Unit vectors with ``length`` numbers each, by key.

    ``max_exact``: number of vectors times their length, up to which every search is exhaustive.
    """

    def __init__(self, length: int, *, max_exact: int = MAX_EXACT) -> None:
        self.length = length
        self._max_exact = max_exact
        self._index = _Usearch(
            ndim=length,
            metric="cos",
            dtype="f16",
            connectivity=CONNECTIVITY,
            expansion_add=ADD_WIDTH,
            expansion_search=SEARCH_WIDTH,
        )

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, key: int) -> bool:
        return bool(self._index.contains(key))

    @property
    def memory(self) -> int:
        """The bytes of the graph and its vectors."""
        return int(self._index.memory_usage)

    @property
    def keys(self) -> Keys:
        """All keys, ``(n,) uint64``, unordered."""
        return np.asarray(self._index.keys[:], np.uint64) if len(self) else np.zeros(0, np.uint64)

    def add(self, keys: Sequence[int] | Keys, vectors: Floats, *, threads: int = 1) -> None:
        """Add ``(keys, length) float32`` vectors with new keys. ``threads`` 0: one for each processor."""
        if len(keys):
            self._index.add(np.asarray(keys, np.uint64), vectors, threads=threads)

    def remove(self, keys: Sequence[int] | Keys) -> None:
        """Remove the vectors of keys; missing keys are ignored."""
        if len(keys):
            self._index.remove(np.asarray(keys, np.uint64), threads=1)

    def get(self, keys: Sequence[int]) -> Floats:
        """Return the vectors of existing keys, of which there is at least one, as ``(keys, length) float32``."""
        return np.asarray(self._index.get(np.asarray(keys, np.uint64), dtype="f32"), np.float32)

    def nearest(self, vectors: Floats, count: int, floor: float) -> list[tuple[Keys, Floats]]:
        """Return for each vector the ``count`` nearest keys and their cosine similarities (-1..1), the nearest first.

        ``vectors``: ``(n, length) float32``. ``floor``: the similarity that is near enough. In a large index, the graph
        is searched first, which may miss keys. If it finds none with at least ``floor``, all vectors are searched.
        """
        if not len(self) or not len(vectors):
            return [(np.zeros(0, np.uint64), np.zeros(0, np.float32)) for _ in vectors]
        if len(self) * self.length <= self._max_exact:
            return self._search(vectors, count, exact=True)
        results = self._search(vectors, count, exact=False)
        distant = [i for i, (_, near) in enumerate(results) if not len(near) or near[0] < floor]
        if distant:
            for i, exact in zip(distant, self._search(vectors[distant], count, exact=True), strict=True):
                results[i] = exact
        return results

    def reconcile(self, keys: Set[int], read_vectors: Callable[[Sequence[int]], Floats]) -> int:
        """Remove all keys but ``keys``, and add the missing ones; return how many were added.

        ``read_vectors``: returns the vectors of keys, ``(keys, length) float32``.
        """
        present = set(self.keys.tolist())
        self.remove(sorted(present - keys))
        missing = sorted(keys - present)
        for start in range(0, len(missing), BLOCK):
            block = missing[start : start + BLOCK]
            self.add(block, read_vectors(block), threads=0)
        return len(missing)

    def save(self, folder: Path) -> None:
        """Write the graph to a file named by its digest, then remove the earlier one. Raises OSError, RuntimeError."""
        unnamed = folder / f"index.part{SUFFIX}"
        self._index.save(str(unnamed))
        path = folder / f"index-{_digest(unnamed)}{SUFFIX}"
        unnamed.replace(path)
        remove_saved(folder, path)

    def load(self, folder: Path) -> bool:
        """Load a saved graph; return False, and load nothing, if it is missing, damaged or of another length.

        The library parses files in native code, so it receives only files that it has written itself. Raises OSError
        if a file cannot be read.
        """
        for path in sorted(folder.glob(f"index-*{SUFFIX}")):
            if path.name != f"index-{_digest(path)}{SUFFIX}":
                continue
            with contextlib.suppress(RuntimeError):  # written by another version of the library
                meta = _Usearch.metadata(str(path)) or {}
                if meta.get("dimensions") == self.length and str(meta.get("kind_scalar")) == str(self._index.dtype):
                    self._index.load(str(path))
                    return True
        return False

    def _search(self, vectors: Floats, count: int, *, exact: bool) -> list[tuple[Keys, Floats]]:
        """Return what ``nearest`` returns, by the graph or, if ``exact``, by an exhaustive search."""
        result = self._index.search(np.ascontiguousarray(vectors), min(count, len(self)), exact=exact, threads=1)
        matches = [result] if isinstance(result, Matches) else [result[i] for i in range(len(result))]
        return [(np.asarray(match.keys, np.uint64), 1.0 - np.asarray(match.distances, np.float32)) for match in matches]


def remove_saved(folder: Path, keep: Path | None = None) -> None:
    """Remove all saved graphs of a folder except ``keep``; files that cannot be removed stay."""
    for path in folder.glob(f"index*{SUFFIX}"):
        if path != keep:
            with contextlib.suppress(OSError):
                path.unlink()


def _digest(path: Path) -> str:
    """Return the first 32 hexadecimal digits of a file's BLAKE2b digest. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
