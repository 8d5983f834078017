"""The metadata of a model file: an entry that means nothing takes no other entry with it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from halimede.inference.file_metadata import MAX_TEXT, class_names, read_metadata
from tests.graphs import FLOAT, write_graph
from tests.unit.inference.world import add_metadata

#: a number of more digits than Python turns into text
HUGE = "0x" + "f" * 5000


def described(path: Path, **texts: str) -> Path:
    write_graph(path, [("Identity", ["x"], ["y"], {})], {"x": (FLOAT, [1])}, {"y": (FLOAT, [1])})
    return add_metadata(path, texts)


@pytest.mark.parametrize("names", [f"[{HUGE}]", f"{{{HUGE}: 'a'}}", "9" * 5000, "{[]: 1}", "(" * 2000, "[", "", "7"])
def test_names_that_cannot_be_read_leave_all_other_metadata(tmp_path: Path, names: str) -> None:
    metadata = read_metadata(described(tmp_path / "model.onnx", names=names, character="a\nb"), "onnx")
    assert metadata.labels == ()
    assert metadata.texts["character"] == "a\nb"


def test_names_of_classes_are_a_list_or_a_dict_by_index(tmp_path: Path) -> None:
    assert class_names("['cat', 'dog']") == class_names("{1: 'dog', 0: 'cat'}") == ("cat", "dog")
    metadata = read_metadata(described(tmp_path / "model.onnx", names="{0: 'cat'}"), "onnx")
    assert metadata.labels == ("cat",)


def test_a_long_description_is_cut(tmp_path: Path) -> None:
    path = described(tmp_path / "model.onnx")
    model = onnx.load(path)
    model.doc_string = "d" * (MAX_TEXT + 1)
    onnx.save(model, path)
    assert read_metadata(path, "onnx").texts["description"] == "d" * MAX_TEXT
