"""Occupancy: what frames must show, and for how long, until it is an event; simulated by the times of frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.api.occupancy import Occupancy, Zone
from halimede.messages import Box, OccupancyEvent, Prediction, PresentObjects
from halimede.occupancy import DetectedObject, OccupancyChange, OccupancyTracker, detected_objects
from halimede.occupancy.tracker import CLOCK_SET_NS, MAX_BOXES, MAX_CAMERAS, MAX_PAIRS

SECOND = 10**9
LEFT_HALF = [[0.0, 0.0], [0.5, 0.0], [0.5, 1.0], [0.0, 1.0]]
DOOR = Zone(name="door", camera="cam0", polygon=LEFT_HALF)


def boxes(*feet: float, label: str = "person", score: float = 0.9) -> Prediction:
    """Return an answer with persons whose feet are at these fractions of the width; pictures have 200 x 100 pixels."""
    return Prediction(boxes=[Box(200 * x - 10, 20, 200 * x + 10, 80, score, label) for x in feet])


def objects_at(*feet: float, **fields: Any) -> list[DetectedObject]:
    """Return the objects of such an answer."""
    return detected_objects(boxes(*feet, **fields), (200, 100)) or []


class Film:
    """Frames of a camera, ten a second, and the changes that they cause as text."""

    def __init__(self, **rules: object) -> None:
        self.rules = Occupancy(**{"min_frames": 3, "hold_s": 1.0, **rules})
        self.tracker = OccupancyTracker(self.rules)
        self.number = 0
        self.present: tuple[PresentObjects, ...] = ()
        self.changes: list[str] = []

    def show(self, answer: Prediction, frames: int = 1, period_s: float = 0.1) -> None:
        for _ in range(frames):
            self.number += 1
            time = round(self.number * period_s * SECOND)
            objects = detected_objects(answer, (200, 100), min_score=0.5, labels=self.rules.labels)
            self.note(self.tracker.observe("cam0", time, f"f{self.number}", objects or []))

    def note(self, changes: Sequence[OccupancyChange]) -> None:
        for change in changes:
            where = change.zone or "picture"
            self.changes.append(f"{self.number} {change.kind} {where} {change.before}>{change.count}")
            self.present = change.present

    def continue_from(self, other: Film) -> None:
        """Continue as another worker's tracker that knows only the last event."""
        self.number = other.number
        self.note(self.tracker.adopt("cam0", other.number * SECOND // 10, other.present))

    def there(self) -> dict[str, int]:
        return {f"{objects.label} {objects.zone or 'picture'}": objects.count for objects in self.present}


def test_an_object_enters_with_the_last_of_min_frames_and_leaves_after_hold_s() -> None:
    film = Film()
    film.show(boxes(), 5)
    film.show(boxes(0.7), 10)
    film.show(boxes(), 20)
    assert film.changes == ["8 entered picture 0>1", "25 left picture 1>0"]
    assert film.there() == {}


def test_frames_in_which_a_detector_overlooks_or_invents_an_object_are_no_events() -> None:
    film = Film()
    for _ in range(20):
        film.show(boxes(0.7), 4)
        film.show(boxes(), 2)
    assert film.changes == ["3 entered picture 0>1"]
    film.show(boxes(0.3, 0.7), 2)
    film.show(boxes(0.7))
    film.show(boxes(0.3, 0.7), 2)
    assert film.changes == ["3 entered picture 0>1"]


def test_who_stands_on_the_border_of_a_zone_enters_it_once() -> None:
    film = Film(zones=[DOOR])
    for i in range(100):
        film.show(boxes(0.49 if i // 3 % 2 else 0.51))
    assert film.changes == ["3 entered picture 0>1", "6 entered door 0>1"]


def test_more_and_fewer_objects_are_changes_of_their_zone_and_of_the_picture() -> None:
    film = Film(zones=[DOOR, Zone(name="door", camera="another", polygon=LEFT_HALF)])
    film.show(boxes(0.2), 5)
    film.show(boxes(0.2, 0.3, 0.8), 5)
    film.show(boxes(0.8), 20)
    assert film.changes == [
        "3 entered picture 0>1", "3 entered door 0>1", "8 changed picture 1>3", "8 changed door 1>2",
        "20 changed picture 3>1", "20 left door 2>0",
    ]  # fmt: skip


def test_fewer_frames_than_min_frames_do_not_empty_a_picture_however_long_they_take() -> None:
    film = Film(hold_s=0.5)
    film.show(boxes(0.7), 3, period_s=10)
    film.show(boxes(), 2, period_s=10)
    film.show(boxes(0.7), 3, period_s=10)
    assert film.changes == ["3 entered picture 0>1"]


def test_only_sure_objects_with_a_wanted_label_count() -> None:
    film = Film(labels=["person"])
    film.show(boxes(0.2, label="dog"), 5)
    film.show(boxes(0.2, score=0.4), 5)
    assert film.changes == []


def test_a_class_of_a_whole_picture_is_one_object_and_no_answer_is_unknown() -> None:
    film = Film(zones=[DOOR])
    film.show(Prediction(label="fire", score=0.9), 3)
    assert film.changes == ["3 entered picture 0>1"]
    assert detected_objects(Prediction(), (1, 1)) is None


def test_an_event_names_the_frame_with_the_best_object_and_its_boxes() -> None:
    tracker = OccupancyTracker(Occupancy(min_frames=2, hold_s=0))
    scores = [0.6, 0.9, 0.7, 0.8, 0.6]
    for i, score in enumerate(scores):
        if changes := tracker.observe("cam0", i * SECOND, f"f{i}", objects_at(0.5, score=score)):
            (entered,) = changes
    assert (entered.time, entered.since) == (SECOND, SECOND)
    assert entered.best is not None
    assert (entered.best.frame, entered.best.score) == ("f1", 0.9)
    assert entered.best.boxes == (Box(0.45, 0.2, 0.55, 0.8, 0.9, "person"),)
    tracker.observe("cam0", 6 * SECOND, "f6", [])
    (change,) = tracker.observe("cam0", 7 * SECOND, "f7", [])
    assert (change.kind, change.since, change.best and change.best.frame) == ("left", SECOND, "f3")


@pytest.mark.parametrize("overlooked", [0, 9], ids=["sees the object", "overlooks it at first"])
def test_a_tracker_continues_from_the_last_event_of_another_worker(overlooked: int) -> None:
    film = Film(zones=[DOOR])
    film.show(boxes(0.2), 5)
    assert film.there() == {"person picture": 1, "person door": 1}
    after = Film(zones=[DOOR])
    after.continue_from(film)
    after.show(boxes(), overlooked)
    after.show(boxes(0.2), 10 - overlooked)
    assert after.changes == []
    after.show(boxes(), 12)
    assert after.changes == ["25 left picture 1>0", "25 left door 1>0"]


def test_objects_whose_zone_or_label_is_no_longer_configured_have_left() -> None:
    film = Film(zones=[DOOR])
    film.show(boxes(0.2), 5)
    film.show(Prediction(boxes=[*(boxes(0.2).boxes or []), *(boxes(0.7, label="dog").boxes or [])]), 5)
    after = Film(labels=["person"])
    after.continue_from(film)
    assert after.changes == ["10 left door 1>0", "10 left picture 1>0"]
    assert after.there() == {"person picture": 1}


def test_a_tracker_adopts_what_another_one_has_reported_and_keeps_its_progress_of_the_same() -> None:
    film, rival = Film(), Film()
    film.show(boxes(0.2), 5)
    film.show(boxes(0.2, 0.4), 2)
    rival.show(boxes(0.2), 5)
    film.continue_from(rival)
    film.number += 2
    film.show(boxes(0.2, 0.4))
    assert film.changes == ["3 entered picture 0>1", "8 changed picture 1>2"]
    film.note(film.tracker.adopt("cam0", 10, ()))
    film.show(boxes(0.2), 3)
    assert film.changes[2:] == ["11 entered picture 0>1"]


def test_frames_that_arrive_in_another_order_cause_no_further_events() -> None:
    tracker = OccupancyTracker(Occupancy(min_frames=3, hold_s=1.0))
    order = [number ^ 1 for number in range(80)]
    order[20:30] = [*order[23:30], *order[20:23]]
    kinds = []
    for number in order:
        objects = objects_at(0.2) if 10 <= number < 40 else []
        changes = tracker.observe("cam0", (number + 1) * SECOND // 10, f"f{number}", objects)
        kinds += [change.kind for change in changes]
    assert kinds == ["entered", "left"]


@pytest.mark.parametrize("step", [-CLOCK_SET_NS - SECOND, 10**18])
def test_a_camera_whose_clock_is_set_neither_loses_nor_keeps_an_object_for_ever(step: int) -> None:
    tracker = OccupancyTracker(Occupancy(min_frames=1, hold_s=1))
    person, start = objects_at(0.5), 10**18
    kinds = []
    for i in range(40):
        time = start + i * SECOND // 10 + (step if i >= 10 else 0)
        kinds += [change.kind for change in tracker.observe("cam0", time, "f", person if i < 20 else [])]
    assert kinds == ["entered", "left"]


@pytest.mark.parametrize("min_frames", [1, 3])
def test_late_frames_among_those_of_now_do_not_shorten_the_time_after_which_an_object_has_left(min_frames: int) -> None:
    tracker = OccupancyTracker(Occupancy(min_frames=min_frames, hold_s=2))
    person, start = objects_at(0.5), 10**18
    lefts = []
    for i in range(40):
        is_late = i in {5, 12, 14, 15, 16}
        time = start + i * SECOND // 10 - (120 * SECOND if is_late else 0)
        changes = tracker.observe("cam0", time, "f", person if i < 10 else [])
        lefts += [i for change in changes if change.kind == "left"]
    assert lefts == [29]


def test_a_camera_without_objects_makes_room_for_a_new_one_and_one_with_objects_stays() -> None:
    tracker = OccupancyTracker(Occupancy(min_frames=2, hold_s=1))

    def observe(camera: str, seconds: int) -> list[str]:
        return [change.kind for change in tracker.observe(camera, seconds * SECOND, "f", objects_at(0.5))]

    assert observe("gate", 1) + observe("gate", 2) == ["entered"]
    for i in range(MAX_CAMERAS):
        observe(f"cam{i}", 3)
    assert observe("cam0", 4) == []  # dropped, and tracked anew
    assert observe("cam0", 5) == ["entered"]
    assert observe("gate", 5) == []
    for i in range(MAX_CAMERAS):
        observe(f"cam{i}", 6)
        observe(f"cam{i}", 7)
    ignored = tracker.ignored
    assert observe("late", 8) + observe("late", 9) == []
    assert tracker.ignored == ignored + 2
    assert not tracker.has_frames_of("late")


def test_hostile_labels_are_bounded_in_number_and_length_and_fit_into_an_event() -> None:
    tracker = OccupancyTracker(Occupancy(min_frames=1, hold_s=3600))
    present: tuple[PresentObjects, ...] = ()
    for i in range(MAX_PAIRS // 100 + 2):
        labels = [f"{i}-{j}" + "<b>\N{PILE OF POO}" * 3000 for j in range(100)]
        objects = detected_objects(Prediction(boxes=[Box(0, 0, 1, 1, 1.0, label) for label in labels]), (1, 1)) or []
        assert max(len(detected.label) for detected in objects) <= 128
        assert max(len(str(detected.box.label)) for detected in objects if detected.box) <= 128
        for change in tracker.observe("cam0", SECOND, "f", objects):
            present = change.present
            assert change.best is not None
            assert len(change.best.boxes) <= MAX_BOXES
    assert len(present) == MAX_PAIRS
    assert tracker.ignored > 0
    tracker.adopt("cam0", SECOND, [PresentObjects(label=f"x{i}", count=1, since_ns=1) for i in range(MAX_PAIRS)])
    (changed, *_) = tracker.observe("cam0", 2 * SECOND, "g", objects_at(0.5, 0.6, label="x0"))
    event = OccupancyEvent(
        id="0" * 32, sequence=1, type=changed.kind, service="yard", camera="cam0", count=1, before=0, time_ns=1,
        since_ns=1, present=list(changed.present),
    )  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(event), type=OccupancyEvent) == event


@given(st.lists(st.integers(0, 4), max_size=200), st.integers(1, 5), st.floats(0, 3))
def test_counts_of_events_follow_one_another_and_are_counts_that_frames_have_shown(
    counts: Sequence[int], min_frames: int, hold_s: float
) -> None:
    tracker = OccupancyTracker(Occupancy(min_frames=min_frames, hold_s=hold_s))
    last = 0
    for i, count in enumerate(counts):
        for change in tracker.observe("cam0", i * SECOND // 10, f"f{i}", objects_at(*[0.5] * count)):
            assert change.before == last != change.count
            assert change.count in counts[max(0, i - 40) : i + 1]
            assert change.kind == ("left" if not change.count else "changed" if last else "entered")
            last = change.count
