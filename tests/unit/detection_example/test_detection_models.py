"""The trained detectors, opened as a worker opens them: the big one is worth asking, and rules say when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.detection import train
from examples.detection.scenes import LABELS, scenes, write
from halimede.evaluation.data import read_labelled
from halimede.evaluation.detection import Detection
from halimede.evaluation.service import answer_all, read_chain
from halimede.mining import create, hardness_of

FOLDER = Path(train.__file__).parent
SCENES = 120


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """What both say of some of the test scenes."""
    if not all((FOLDER / f"models/{name}.onnx").is_file() for name in ("small", "big")):
        train.main()
    data = tmp_path_factory.mktemp("scenes")
    write(data, scenes("test", SCENES))
    labelled = read_labelled(data, LABELS)
    chain = read_chain([FOLDER / "1-models.yaml", FOLDER / "2-service.yaml"])
    small, big = (answer_all(tier, labelled) for tier in chain.tiers)
    return Detection(labelled.boxes, small, big), small


def test_the_big_one_finds_more_and_is_more_often_right(answered):
    measured, _ = answered
    small, _, small_recall = measured.measure(np.zeros(SCENES, bool))
    big, _, big_recall = measured.measure(np.ones(SCENES, bool))
    assert 0.5 < small < big - 0.15
    assert big_recall > small_recall + 0.05


def test_what_full_scenes_gain_is_more_than_what_any_gain(answered):
    measured, small = answered
    hardness = hardness_of(create("BoxCount", {"empty": "easy"}), small)
    half = np.zeros(SCENES, bool)
    half[np.argsort(-hardness, kind="stable")[: SCENES // 2]] = True
    assert measured.measure(half)[0] > measured.measure(~half)[0]
