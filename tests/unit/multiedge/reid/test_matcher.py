"""Objects keep their identity across cameras, restarts and workers, whatever a sender makes up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from halimede import codec, topics
from halimede.messages import Box, Prediction
from halimede.multiedge.reid.evaluation import idf1, rank
from halimede.multiedge.reid.matcher import NEW_LENGTH_FRAMES, Matcher
from tests.unit.multiedge.reid.scene import LENGTH, Scene, finding, looks, matcher, who

A, B, C = looks(3)


@pytest.fixture
def decides(tmp_path: Path) -> Matcher:
    return matcher(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "threshold"), [(0.3, 0.7), (0.5, 0.7), (0.7, 0.55)])
def test_three_overlapping_views_of_a_dozen_objects(tmp_path: Path, noise: float, threshold: float) -> None:
    scene, decides = Scene(noise=noise), matcher(tmp_path, threshold=threshold)
    asked, cameras = [], []
    for number in range(60):
        for found, objects in scene.picture(number):
            scene.told(found, objects, decides.take([found], number / 10))
            asked += objects
            cameras += [found.camera] * len(objects)
        decides.due(number / 10)
    assert idf1(scene.truth, scene.found).idf1 >= 0.95
    assert rank(np.concatenate(scene.vectors), asked, cameras) >= 0.95


def test_an_object_is_the_same_before_another_camera_and_another_is_not(decides: Matcher) -> None:
    (first,) = who(decides.take([finding(A, [(50, 50)], camera="door")], 0.0))
    asked = finding(np.stack([B, A]), [(30, 30), (90, 90)], camera="yard")
    outcome = decides.take([asked], 1.0)
    other, same = who(outcome)
    assert same == first != other
    answer = outcome.answers[asked.key]
    assert answer is not None
    assert (answer.boxes, answer.embeddings) == (asked.prediction.boxes, None)
    new, seen = outcome.tracks
    assert (new.new, new.identity, new.count) == (True, other, 1)
    assert (seen.new, seen.identity, seen.cameras, seen.count) == (False, first, ["door", "yard"], 2)
    assert (seen.sighting.camera, seen.sighting.worker) == ("yard", "lobby-yard")
    for track in outcome.tracks:
        assert codec.decode(topics.TRACK, codec.encode(topics.TRACK, track)) == track


def test_a_frame_that_comes_again_after_a_takeover_gets_the_same_answer_and_counts_once(decides: Matcher) -> None:
    found = finding(A, [(50, 50)])
    first = decides.take([found], 0.0)
    again = decides.take([replace(found, key=found.key[:16] + b"another", worker="lobby-yard")], 1.0)
    assert who(again) == who(first)
    assert not again.tracks


def test_one_identity_appears_once_in_a_frame(decides: Matcher) -> None:
    decides.take([finding(A, [(50, 50)])], 0.0)
    twins = np.stack([A + 0.02 * B, A, A + 0.01 * C])
    found = who(decides.take([finding(twins, [(20, 20), (90, 90), (160, 160)], camera="yard")], 1.0))
    assert len(set(found)) == 3


def test_two_boxes_of_one_object_make_no_second_one(tmp_path: Path) -> None:
    found = who(matcher(tmp_path).take([finding(np.stack([A, B]), [(50, 50), (52, 51)])], 0.0))
    assert [one is None for one in found] == [False, True]


def test_a_turn_that_changes_looks_is_followed_by_where_it_happens(decides: Matcher) -> None:
    """Half turned it looks like nobody known; its place tells who it is, and so the new look is learnt."""
    identity = None
    for number, turn in enumerate(np.radians([0, 50, 100])):
        look = np.cos(turn) * A + np.sin(turn) * B
        seen = finding(look, [(50 + 8 * number, 50)], number=number, ms=300 * number)
        (now,) = who(decides.take([seen], number / 3))
        identity = identity or now
        assert now == identity
    assert who(decides.take([finding(B, [(90, 90)], camera="yard", ms=5000)], 5.0)) == [identity]


def test_who_looks_the_same_cannot_be_far_away_a_moment_later(decides: Matcher) -> None:
    (first,) = who(decides.take([finding(A, [(50, 50)], number=1)], 0.0))
    (twin,) = who(decides.take([finding(A, [(900, 50)], number=2, ms=100)], 0.1))
    assert twin != first
    (later,) = who(decides.take([finding(A, [(55, 50)], number=3, ms=200)], 0.2))
    assert later == first


def test_nobody_travels_faster_than_the_way_between_cameras(tmp_path: Path) -> None:
    decides = matcher(tmp_path, travelMs=2000)
    (first,) = who(decides.take([finding(A, [(50, 50)], camera="door")], 0.0))
    assert who(decides.take([finding(A, [(50, 50)], camera="yard", ms=1000)], 1.0)) != [first]
    decides = matcher(tmp_path / "b", travelMs=2000)
    (first,) = who(decides.take([finding(A, [(50, 50)], camera="door")], 0.0))
    assert who(decides.take([finding(A, [(50, 50)], camera="yard", ms=3000)], 3.0)) == [first]


def test_what_is_cut_off_by_the_rim_is_nobody_new(decides: Matcher) -> None:

    def at(x: float, number: int) -> list[str | None]:
        found = finding(A if number else B, [(x, 50)], number=number, ms=3000.0 * number)
        found.prediction.value = {"width": 200, "height": 200}
        return who(decides.take([found], float(number)))

    assert at(14, 0) == [None]
    (first,) = at(100, 1)
    assert first is not None
    assert at(186, 2) == [first]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_restart_goes_on_with_the_same_identities(tmp_path: Path, decides: Matcher, how: str) -> None:
    before = who(decides.take([finding(np.stack([A, B]), [(50, 50), (90, 90)])], 0.0))
    if how == "stopped":
        decides.close()
    again = matcher(tmp_path)
    assert who(again.take([finding(np.stack([B, A]), [(50, 50), (90, 90)], camera="yard")], 7.0)) == before[::-1]


def test_a_standby_goes_on_with_the_same_identities(tmp_path: Path) -> None:
    decides, standby = matcher(tmp_path / "a"), matcher(tmp_path / "b")
    (before,) = who(decides.take([finding(A, [(50, 50)])], 0.0))
    standby.follow(list(decides.snapshot()))
    outcome = decides.take([finding(B, [(90, 90)], number=1, ms=100)], 0.1)
    standby.follow(outcome.tracks)
    assert standby.next_due() == 0.0
    standby.due(0.0)
    found = who(standby.take([finding(np.stack([B, A]), [(50, 50), (90, 90)], camera="yard", ms=500)], 0.5))
    assert found == [*who(outcome), before]


def test_a_whole_picture_is_one_object(decides: Matcher) -> None:
    first, second = finding(A, [(0, 0)], number=1), finding(A, [(0, 0)], number=2, ms=40)
    first.prediction.boxes = second.prediction.boxes = None
    (identity,) = who(decides.take([first], 0.0))
    assert identity is not None
    assert who(decides.take([second], 1.0)) == [identity]


HOSTILE = {
    "too few bytes": Prediction(boxes=[Box(0, 0, 9, 9, 1)] * 3, embeddings=b"\0\x3c" * 7),
    "NaN": Prediction(boxes=[Box(0, 0, 9, 9, 1)], embeddings=b"\xff\x7f" * LENGTH),
    "infinity": Prediction(boxes=[Box(0, 0, 9, 9, 1)], embeddings=b"\0\x7c" * LENGTH),
    "zero": Prediction(boxes=[Box(0, 0, 9, 9, 1)], embeddings=bytes(2 * LENGTH)),
    "no boxes for them": Prediction(boxes=[], embeddings=b"\0\x3c" * LENGTH),
    "nothing": Prediction(),
    "too many": Prediction(boxes=[Box(0, 0, 9, 9, 1)] * 300, embeddings=b"\0\x3c" * 300),
    "another length": Prediction(boxes=[Box(0, 0, 9, 9, 1)], embeddings=b"\0\x3c" * (LENGTH + 1)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_finding_that_cannot_be_read_stands_and_the_others_are_answered(decides: Matcher, name: str) -> None:
    decides.take([finding(A, [(50, 50)])], 0.0)
    bad = replace(finding(A, [(50, 50)], number=1), prediction=HOSTILE[name])
    good = finding(A, [(50, 50)], number=2, camera="yard")
    answers = decides.take([bad, good], 1.0).answers
    assert answers[bad.key] is None
    assert answers[good.key] is not None


@pytest.mark.filterwarnings("error")
def test_boxes_that_a_sender_makes_up_do_no_harm(decides: Matcher) -> None:
    huge = 1.7e308
    for number in range(3):
        found = finding(A, [(50, 50)], number=number, ms=100.0 * number)
        found.prediction.boxes = [Box(huge, -huge, -huge, huge, huge)]
        found.prediction.value = {"width": "a", "height": None}
        assert len(who(decides.take([found], number / 10))) == 1


def test_a_camera_whose_clock_stands_or_is_put_back_keeps_its_identities(decides: Matcher) -> None:
    identities = {
        who(decides.take([finding(A, [(50 + 10 * n, 50)], number=n, ms=ms)], n / 10))[0]
        for n, ms in enumerate((100_000, 100_000, 100_000, 0, 100, 200, 100, 86_400_000, 0))
    }
    assert len(identities) == 1


def test_a_model_that_was_changed_begins_a_new_gallery_and_a_single_stranger_does_not(decides: Matcher) -> None:
    decides.take([finding(A, [(50, 50)])], 0.0)
    other = np.concatenate([A, B])
    for number in range(NEW_LENGTH_FRAMES - 1):
        assert decides.take([finding(other, [(50, 50)], number=number + 2)], 0.0).answers.popitem()[1] is None  # type: ignore[attr-defined]
    assert len(who(decides.take([finding(A, [(50, 50)], number=1)], 0.0))) == 1
    assert decides.metrics()["reid_identities"] == 1
    for number in range(NEW_LENGTH_FRAMES - 1):
        assert decides.take([finding(other, [(50, 50)], number=number + 2)], 0.0).answers.popitem()[1] is None  # type: ignore[attr-defined]
    assert who(decides.take([finding(other, [(50, 50)], number=999)], 0.0))[0]
    assert decides.metrics()["reid_identities"] == 1


def test_the_next_look_comes_sooner_when_something_waits_to_be_written(decides: Matcher) -> None:
    decides.due(100.0)
    assert decides.next_due() == 110.0
    decides.take([finding(A, [(50, 50)])], 101.0)
    assert decides.next_due() == 102.0
    decides.take([finding(A, [(50, 50)], number=1)], 101.5)
    assert decides.next_due() == 102.0
    decides.due(102.0)
    assert decides.next_due() == 112.0


def test_noise_does_not_grow_without_bound(tmp_path: Path) -> None:
    decides: Matcher = matcher(tmp_path, identities=100)
    for number, vectors in enumerate(np.split(looks(600, seed=3), 60)):
        decides.take([finding(vectors, [(60.0 * i, 50) for i in range(10)], number=number, ms=9000 * number)], number)
    metrics = decides.metrics()
    assert metrics["reid_identities"] <= 100
    assert metrics["reid_evicted"] >= 400
