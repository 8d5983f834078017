"""Read texts: exact match, the character error rate, and the pictures with texts that they are measured on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from halimede.api.model import ModelSpec
from halimede.api.processing import Postprocess
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import read_labelled
from halimede.evaluation.quality import Reading, edits, has_text_labels
from halimede.messages import Box, Prediction


def by_table(text: str, truth: str) -> int:
    """The textbook's table, cell by cell."""
    row = list(range(len(truth) + 1))
    for i, letter in enumerate(text, 1):
        above, row = row, [i]
        for j, wanted in enumerate(truth, 1):
            row.append(min(row[-1] + 1, above[j] + 1, above[j - 1] + (letter != wanted)))
    return row[-1]


@given(st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_edits_are_those_of_the_textbook(text: str, truth: str) -> None:
    assert edits(text, truth) == by_table(text, truth)


def test_a_point_has_exact_matches_and_wrong_characters_of_all_true_ones() -> None:
    low, up = ([Prediction(label=text) for text in texts] for texts in (("house", "", "sea"), ("house", "moon", "sae")))
    measure = Reading(["house", "moon", "sea"], low, up)
    assert measure.metric == "exact match"
    alone = {"upload_ratio": 0.0, "accuracy": 0.666667, "character_error_rate": 0.333333}
    assert measure.point(np.zeros(3, bool)) == alone
    assert measure.point(np.array([False, True, False]))["character_error_rate"] == 0.0


def test_labels_are_texts_where_a_script_answers_them_without_a_list_of_classes() -> None:
    plain, reader = ModelSpec(format="onnx"), ModelSpec(format="onnx", postprocess=Postprocess(task="text"))
    assert has_text_labels(plain, [Prediction(label="EXIT 12"), Prediction(label="")])
    assert has_text_labels(reader, [Prediction(label="7")])
    assert not has_text_labels(ModelSpec(format="onnx", labels=["EXIT"]), [Prediction(label="EXIT")])
    probable, boxed = Prediction(label="a", probabilities=[0.5, 0.5]), Prediction(boxes=[Box(0, 0, 1, 1, 1.0, "a")])
    assert not any(has_text_labels(plain, [answer]) for answer in (Prediction(label="7"), probable, boxed))


def signs(folder: Path, table: str) -> Path:
    for name in ("a", "b"):
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / f"{name}.png")
    (folder / "metadata.csv").write_text(table)
    return folder


def test_pictures_with_texts_are_read_by_metadata_csv(tmp_path: Path) -> None:
    data = read_labelled(signs(tmp_path, 'file_name,text\nb.png,"EXIT, left"\na.png,007\n'), ["0", "1"])
    assert (data.names, data.truths, data.is_text) == (["b.png", "a.png"], ["EXIT, left", "007"], True)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("file_name,text\n../b.png,x\n", "line 2: its picture is not in this folder"),
        ("file_name,text\nc.png,x\n", "line 2: its picture is not in this folder"),
        ("file_name,text\na.png\n", "line 2: it has 1 columns where the header has 2"),
        (f"file_name,text\na.png,{'x' * 10_000}\n", "field larger than field limit"),
    ],
)
def test_a_broken_table_of_texts_is_refused_with_its_line(tmp_path: Path, table: str, text: str) -> None:
    with pytest.raises(InvalidFieldError, match=text):
        read_labelled(signs(tmp_path, table))


def test_another_metadata_csv_leaves_pictures_as_they_are(tmp_path: Path) -> None:
    data = read_labelled(signs(tmp_path, "file,author\na.png,me\n"))
    assert (len(data), data.truths, data.is_text) == (2, None, False)
