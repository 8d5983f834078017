"""The index finds what is nearest, says nothing false of strangers, and outlives its process or is made anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halimede.multiedge.reid import vector_index as room
from halimede.multiedge.reid.vector_index import VectorIndex, remove_saved
from tests.programs import run_python
from tests.unit.multiedge.reid.scene import LENGTH, looks

COUNT = 3000


def filled(exact: int) -> tuple[VectorIndex, np.ndarray]:
    vectors = looks(COUNT).astype(np.float32)
    index = VectorIndex(LENGTH, max_exact=exact)
    index.add(range(COUNT), vectors, threads=0)
    return index, vectors


@pytest.mark.parametrize("exact", [0, 10**9])
def test_the_nearest_come_first_with_their_cosine(exact: int) -> None:
    index, vectors = filled(exact)
    asked = vectors[[7, 2900]] + 0.01
    for i, (keys, near) in zip((7, 2900), index.nearest(asked, 5, 0.7), strict=True):
        assert keys[0] == i
        assert len(keys) == 5
        assert near[0] == pytest.approx(float(vectors[i] @ asked[0 if i == 7 else 1] / 1.0), abs=0.02)
        assert (np.diff(near) <= 0).all()


def test_a_stranger_is_looked_for_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph may miss the nearest. Before somebody is called new, everything is looked through."""
    monkeypatch.setattr(room, "SEARCH_WIDTH", 2)  # a graph that misses most
    index, vectors = filled(exact=0)
    strangers = looks(50, seed=99).astype(np.float32)
    for stranger, (keys, near) in zip(strangers, index.nearest(strangers, 3, 0.95), strict=True):
        assert keys[0] == np.argmax(vectors @ stranger)
        assert near[0] == pytest.approx((vectors @ stranger).max(), abs=2e-3)


def test_an_empty_index_and_one_with_a_single_vector() -> None:
    index = VectorIndex(LENGTH)
    (nothing,) = index.nearest(looks(1).astype(np.float32), 5, 0.7)
    assert not len(nothing[0])
    index.add([5], looks(1).astype(np.float32))
    (one,) = index.nearest(looks(1).astype(np.float32), 5, 0.7)
    assert one[0].tolist() == [5]


def test_what_is_removed_is_not_found_and_its_room_is_used_again() -> None:
    index, vectors = filled(exact=0)
    before = index.memory
    for turn in range(4):
        gone = np.arange(turn * 700, turn * 700 + 700)
        index.remove(gone)
        index.add(gone + COUNT, vectors[gone])
        (keys, _), *_ = index.nearest(vectors[gone[:1]], 5, 0.7)
        assert keys[0] == gone[0] + COUNT
    assert index.memory == before
    assert len(index) == COUNT
    assert 0 not in index


def test_a_saved_graph_is_read_again_and_brought_up_to_date(tmp_path: Path) -> None:
    index, vectors = filled(exact=0)
    index.save(tmp_path)
    index.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    again = VectorIndex(LENGTH, max_exact=0)
    assert again.load(tmp_path)
    wanted = (set(range(COUNT)) - {1, 2}) | {9000}
    added = again.reconcile(wanted, lambda keys: vectors[[key % COUNT for key in keys]])
    assert added == 1
    assert set(again.keys.tolist()) == wanted
    (keys, _), *_ = again.nearest(vectors[[5]], 1, 0.7)
    assert keys[0] == 5


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "changed", "renamed", "empty"])
def test_a_damaged_file_is_never_given_to_the_library(tmp_path: Path, damage: str) -> None:
    index, _ = filled(exact=0)
    index.save(tmp_path)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "changed":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif damage == "renamed":
        path.rename(tmp_path / "index-0123.usearch")
    else:
        path.write_bytes(b"")
    assert not VectorIndex(LENGTH).load(tmp_path)
    remove_saved(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_graph_of_other_vectors_is_not_read(tmp_path: Path) -> None:
    index, _ = filled(exact=0)
    index.save(tmp_path)
    assert not VectorIndex(LENGTH * 2).load(tmp_path)


def test_onnx_runtime_may_be_imported_after_the_index() -> None:
    """With usearch's library loaded first, ONNX Runtime's import crashes the process (signal 11)."""
    code = "import halimede.multiedge.reid.vector_index, threading, importlib\n"
    code += "late = threading.Thread(target=importlib.import_module, args=('onnxruntime',))\nlate.start(), late.join()"
    assert run_python("-c", code).returncode == 0
