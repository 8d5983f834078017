"""Steps of characters and blanks become a line of text with its score; an alphabet that does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede.api.model import check
from halimede.errors import InvalidFieldError
from halimede.inference import ModelError, SampleError, open_model
from tests.unit.inference.world import add_metadata, spec_of, write_constant

#: classes of the steps: a a blank a b b
STEPS = [1, 1, 0, 1, 2, 2]


def write_reader(folder: Path, steps: np.ndarray, metadata: dict[str, str] | None = None, *, first: str = "N") -> Path:
    """Write a model that gives these steps. ``first``: which axis stands first, of samples or of steps."""
    shape = [1, *steps.shape] if first == "N" else [len(steps), 1, steps.shape[1]]
    path = write_constant(folder / "model.onnx", [1, 1, 48, "W"], y=steps.reshape(shape))
    return add_metadata(path, metadata or {})


def probabilities(steps: list[int], classes: int, sure: float = 0.9) -> np.ndarray:
    rows = np.full((len(steps), classes), (1 - sure) / (classes - 1))
    rows[np.arange(len(steps)), steps] = sure
    return rows


def read(path: Path, **fields: Any) -> Any:
    preprocess = [{"op": "grayscale"}, {"op": "fit", "height": 48}, {"op": "layout", "order": "chw"}]
    with open_model(path, spec_of(preprocess=preprocess, postprocess={"task": "text", **fields})) as model:
        (answer,) = model.predict([model.prepare(np.zeros((24, 100, 3), np.uint8))])
    return answer


@pytest.mark.parametrize("first", ["N", "T"])
def test_repeats_are_one_character_unless_a_blank_is_between(tmp_path, first):
    answer = read(write_reader(tmp_path, probabilities(STEPS, 3), first=first), text={"alphabet": "ab"})
    assert (answer.label, answer.score) == ("aab", pytest.approx(0.9))


def test_the_alphabet_is_that_of_the_files_metadata_whose_last_class_may_be_the_space(tmp_path):
    path = write_reader(tmp_path, probabilities([1, 3, 2], 4), {"character": "a\nß\n"})
    assert read(path).label == "a ß"


def test_the_blank_may_be_last(tmp_path):
    path = write_reader(tmp_path, probabilities([0, 2, 0, 1], 3))
    assert read(path, text={"alphabet": "ab", "blank": "last"}).label == "aab"


def test_no_character_is_an_empty_text_with_the_score_of_its_blanks(tmp_path):
    answer = read(write_reader(tmp_path, probabilities([0, 0], 3)), text={"alphabet": "ab"})
    assert (answer.label, answer.score) == ("", pytest.approx(0.9))


def test_logits_need_softmax(tmp_path):
    path = write_reader(tmp_path, np.array([[-9.0, 9, 0]]))
    with pytest.raises(SampleError, match=r"which are no probabilities: set spec\.postprocess\.activation to softmax"):
        read(path, text={"alphabet": "ab"})
    assert read(path, text={"alphabet": "ab"}, activation="softmax").label == "a"


@pytest.mark.parametrize("metadata", [{}, {"character": ""}, {"characters": "ab"}], ids=["none", "empty", "another"])
def test_an_empty_alphabet_names_field_metadata_and_remedy(tmp_path, metadata):
    with pytest.raises(ModelError) as caught:
        read(write_reader(tmp_path, probabilities(STEPS, 3), metadata))
    assert str(caught.value) == (
        "spec.postprocess.text.alphabet: '' is empty, and the file has no metadata 'character': write the characters "
        "that the model was trained on, in its order and without the blank"
    )


def test_an_alphabet_of_another_length_names_both_counts(tmp_path):
    with pytest.raises((ModelError, SampleError), match=r"alphabet has 5 characters and the model 3 classes: give 2"):
        read(write_reader(tmp_path, probabilities(STEPS, 3)), text={"alphabet": "abcde"})


def test_nan_and_a_line_without_end_are_the_samples_error(tmp_path):
    steps = probabilities(STEPS, 3)
    steps[2, 1] = np.nan
    with pytest.raises(SampleError, match="NaN, infinity or no step"):
        read(write_reader(tmp_path, steps), text={"alphabet": "ab"})
    endless = probabilities([1, 2] * 520, 3)
    with pytest.raises(SampleError, match="reads 1040 characters, more than 1024: send a line at a time"):
        read(write_reader(tmp_path, endless), text={"alphabet": "ab"})


def test_text_needs_its_task_and_no_sigmoid(tmp_path):
    with pytest.raises(InvalidFieldError, match="text needs task text"):
        check(spec_of(postprocess={"text": {"alphabet": "ab"}}))
    with pytest.raises(InvalidFieldError, match="use softmax or none"):
        read(write_reader(tmp_path, probabilities(STEPS, 3)), activation="sigmoid")
