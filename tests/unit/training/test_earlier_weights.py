"""Weights of earlier trainings: those of the present version begin the next one, if they fit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from halimede.training.earlier_weights import DIGEST_CHARACTERS, FOLDER, EarlierWeights
from halimede.training.tensor_file import encode
from halimede.training.weights import specs_of

WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
SPECS = specs_of(WEIGHTS)
DIGEST = "0123456789ab" + "c" * 52


def test_a_training_begins_with_the_weights_of_the_present_version(tmp_path: Path) -> None:
    earlier = EarlierWeights(tmp_path / FOLDER)
    earlier.keep(DIGEST, encode(WEIGHTS))
    weights = EarlierWeights(tmp_path / FOLDER).read(f"again-{DIGEST[:DIGEST_CHARACTERS]}", SPECS)
    assert np.array_equal(weights["w"], WEIGHTS["w"])


def test_weights_that_are_not_there_or_do_not_fit_are_not_used(tmp_path: Path) -> None:
    earlier = EarlierWeights(tmp_path / FOLDER)
    assert earlier.read("", SPECS) is None
    assert earlier.read(f"again-{DIGEST[:DIGEST_CHARACTERS]}", SPECS) is None
    earlier.keep(DIGEST, encode({"w": np.zeros((3, 3), np.float32)}))
    assert earlier.read(f"again-{DIGEST[:DIGEST_CHARACTERS]}", SPECS) is None
    (tmp_path / FOLDER / DIGEST[:DIGEST_CHARACTERS]).write_bytes(b"no tensors")
    assert earlier.read(f"again-{DIGEST[:DIGEST_CHARACTERS]}", SPECS) is None


def test_the_oldest_weights_go_first(tmp_path: Path) -> None:
    earlier = EarlierWeights(tmp_path / FOLDER)
    for i in range(11):
        earlier.keep(f"{i:012d}", encode(WEIGHTS))
        os.utime(tmp_path / FOLDER / f"{i:012d}", (i, i))
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} == {f"{i:012d}" for i in range(3, 11)}


def test_a_folder_that_cannot_be_written_costs_only_the_weights(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("")
    earlier = EarlierWeights(tmp_path / FOLDER)
    earlier.keep(DIGEST, encode(WEIGHTS))
    assert earlier.read(DIGEST[:DIGEST_CHARACTERS], SPECS) is None
