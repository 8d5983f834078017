"""Every finding is answered once, with what all sources of its instant say; and every instant is told of once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halimede import codec, topics
from halimede.errors import InvalidFieldError
from halimede.messages import Box, Prediction
from halimede.multiedge import Finding, JointTools, create
from halimede.multiedge.fusion import Fusion
from halimede.multiedge.stage import Parameters

MS = 1_000_000
NOON = 1_795_262_400_000 * MS
CAMERAS = ("left", "middle", "right")
LABELS = ["cat", "dog", "owl"]


def fusion(tmp_path: Path, cameras: tuple[str, ...] = CAMERAS, **parameters: str) -> Fusion:
    given = Parameters({name.replace("__", "."): value for name, value in parameters.items()})
    made = create("fusion", "", given).joint(JointTools(given, tmp_path, cameras=cameras))
    made.open()
    return made


def seen(camera: str, probabilities: list[float], ms: float = 0, key: str = "", labels: list[str] = LABELS) -> Finding:
    best = max(range(len(labels)), key=probabilities.__getitem__)
    prediction = Prediction(
        label=labels[best], score=probabilities[best], probabilities=probabilities, value={"labels": labels}
    )
    key = key or f"{camera}/{ms}"
    return Finding(key.encode(), camera, f"w-{camera}", "edge0", round(ms), NOON + round(ms * MS), prediction)


def test_all_of_an_instant_get_one_answer_and_everybody_is_told_once(tmp_path):
    joint = fusion(tmp_path)
    assert not joint.take([seen("left", [0.4, 0.6, 0.0], -4)], 0.0).answers
    assert joint.next_due() == 0.5
    said = joint.take([seen("middle", [0.6, 0.4, 0.0]), seen("right", [0.9, 0.1, 0.0], 4)], 0.1)
    assert set(said.answers) == {b"left/-4", b"middle/0", b"right/4"}
    assert {answer.label for answer in said.answers.values()} == {"cat"}
    (fused,) = said.fused
    assert (fused.label, fused.rule, fused.missing, fused.instant) == ("cat", "product", [], NOON / 1e9)
    assert [(s.camera, s.label, s.offset_ms) for s in fused.sources] == [
        ("left", "dog", -4), ("middle", "cat", 0), ("right", "cat", 4)]  # fmt: skip
    assert sum(fused.value.values()) == pytest.approx(1)
    assert joint.next_due() is None
    assert not joint.due(99.0).fused
    counted = {name: number for name, number in joint.metrics().items() if number}
    assert counted == {"fusion_instants": 1, "fusion_complete": 1}
    codec.decode(topics.FUSED, codec.encode(topics.FUSED, fused))
    json.dumps(said.answers[b"left/-4"].value)


def test_what_is_there_is_answered_when_the_time_is_over(tmp_path):
    joint = fusion(tmp_path, waitMs="200")
    joint.take([seen("left", [0.4, 0.6, 0.0]), seen("right", [0.3, 0.7, 0.0])], 0.0)
    assert not joint.due(0.19).answers
    said = joint.due(0.2)
    assert said.answers[b"left/0"].label == "dog"
    assert said.fused[0].missing == said.answers[b"left/0"].value["missing"] == ["middle"]


def test_a_late_finding_is_answered_with_all_that_is_known_and_changes_nothing_for_others(tmp_path):
    joint = fusion(tmp_path, ("left", "right"))
    joint.take([seen("left", [0.4, 0.6, 0.0])], 0.0)
    assert joint.due(0.5).answers[b"left/0"].label == "dog"
    said = joint.take([seen("right", [0.95, 0.05, 0.0], 3)], 0.6)
    assert said.answers[b"right/3"].label == "cat"
    assert said.answers[b"right/3"].value["late"]
    assert not said.fused
    assert joint.metrics()["fusion_late"] == 1


def test_a_finding_that_comes_again_after_a_takeover_counts_once(tmp_path):
    joint = fusion(tmp_path, ("left", "right"), rule="vote")
    joint.take([seen("left", [0.4, 0.6, 0.0], key="a"), seen("left", [0.4, 0.6, 0.0], key="b")], 0.0)
    said = joint.take([seen("right", [0.9, 0.1, 0.0])], 0.0)
    assert (said.answers[b"a"], said.fused[0].score) == (said.answers[b"b"], 0.5)
    assert len(said.fused[0].sources) == 2
    again = joint.take([seen("left", [0.4, 0.6, 0.0], key="c")], 0.1)
    assert again.answers == {b"c": said.answers[b"a"]}
    assert not again.fused
    assert joint.metrics()["fusion_repeated"] == 2


def test_each_model_finds_probabilities_in_its_own_order(tmp_path):
    joint = fusion(tmp_path, ("left", "right"))
    other = ["owl", "cat", "dog"]
    said = joint.take([seen("left", [0.6, 0.4, 0.0]), seen("right", [0.0, 0.7, 0.3], labels=other)], 0.0)
    left, right = said.answers[b"left/0"].probabilities, said.answers[b"right/0"].probabilities
    assert dict(zip(LABELS, left, strict=True)) == dict(zip(other, right, strict=True))
    assert left[0] == said.answers[b"left/0"].score > 0.7


def test_who_names_no_class_keeps_boxes_and_gets_the_others_answer(tmp_path):
    joint = fusion(tmp_path, ("left", "right"))
    boxes = [Box(1, 2, 3, 4, 0.5)]
    blind = Finding(b"x", "right", "w", "n", 0, NOON, Prediction(boxes=boxes))
    said = joint.take([seen("left", [0.6, 0.4, 0.0]), blind], 0.0)
    answer = said.answers[b"x"]
    assert (answer.label, answer.boxes, answer.probabilities) == ("cat", boxes, None)
    later = Finding(b"y", "right", "w", "n", 1, NOON + 99 * MS, Prediction(boxes=boxes))
    joint.take([later], 1.0)
    said = joint.due(2.0)
    assert said.answers == {b"y": None}
    assert said.fused[0].label is None
    assert joint.metrics()["fusion_undecided"] == 1


def test_weights_temperatures_and_offsets_of_single_cameras(tmp_path):
    views = [seen("left", [0.9, 0.1, 0.0]), seen("right", [0.2, 0.8, 0.0], 7_200_000)]
    plain = {"offset__right": "7200000"}
    for parameters, label in [
        (plain, "cat"),
        ({**plain, "weight__right": "3"}, "dog"),
        ({**plain, "weights": '{"right": 3, "left": 1}'}, "dog"),
        ({**plain, "temperatures": '{"left": 9}'}, "dog"),
        ({**plain, "temperatures": '{"left": 9}', "temperature__left": "1"}, "cat"),
        ({**plain, "weight__left": "0", "weight__right": "0"}, "cat"),
        ({**plain, "weight__left": "0", "weight__right": "0", "rule": "vote"}, "cat"),
    ]:
        (fused,) = fusion(tmp_path, ("left", "right"), **parameters).take(views, 0.0).fused
        assert fused.label == label, parameters


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rule": "mean"}, "use one of vote, product, max"),
        ({"windowMs": "-1"}, "windowMs"),
        ({"windowms": "50"}, "fusion knows rule, windowMs"),
        ({"weight.": "1"}, "fusion knows"),
        ({"weight.left": "many"}, "weight.left"),
        ({"weights": '{"left": [1]}'}, "weight.left"),
        ({"weights": "left=1"}, "write JSON"),
        ({"temperature.left": "0"}, "from 0.05 to 20"),
        ({"maxOpen": "1e9"}, "from 1 to 4096"),
        ({"share": "perhaps"}, "true or false"),
    ],
)
def test_a_wrong_parameter_is_named(parameters, message):
    with pytest.raises(InvalidFieldError, match=message):
        create("fusion", "", Parameters(parameters))


def test_a_camera_that_the_service_does_not_have_is_named(tmp_path):
    with pytest.raises(InvalidFieldError, match=r"weight\.rihgt.*left, middle, right"):
        fusion(tmp_path, weight__rihgt="2")
