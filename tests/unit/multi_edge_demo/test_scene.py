"""The films of the demo: what is said to be true of them is what is to be seen in them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from examples.multi_edge import boards, pictures, scene
from halimede.inference import Array

SECONDS = 24.0


@pytest.mark.parametrize("camera", scene.CAMERAS, ids=lambda camera: camera.name)
def test_a_camera_sees_its_corners_in_the_corners_of_its_picture(camera: scene.Camera) -> None:
    width, height = scene.VIEW
    seen = camera.seen(np.array(camera.corners, dtype=float))
    assert np.allclose(seen, [(0, 0), (width, 0), (width, height), (0, height)], atol=1e-6)


def test_neighbouring_views_overlap() -> None:
    spans = [(min(x for x, _ in c.corners), max(x for x, _ in c.corners)) for c in scene.CAMERAS]
    assert all(left[1] > right[0] + pictures.SIDE for left, right in itertools.pairwise(spans))


def test_nobody_is_at_two_places_and_everybody_comes_back() -> None:
    legs = scene.legs(SECONDS)
    for thing in range(len(pictures.objects())):
        own = sorted((leg.start, leg.start + leg.seconds) for leg in legs if leg.thing == thing)
        assert len(own) >= 2, "an object that does not return shows nothing of re-identification"
        assert all(before[1] < after[0] for before, after in itertools.pairwise(own))


@pytest.mark.parametrize("time", [6.0, 11.0, 17.5])
def test_objects_are_where_the_truth_says(time: float, monkeypatch: pytest.MonkeyPatch) -> None:
    above = scene.plane(time, SECONDS)
    monkeypatch.setattr(scene, "present", lambda *_: iter(()))
    ground = scene.plane(time, SECONDS)
    monkeypatch.undo()
    for camera in scene.CAMERAS:
        views = [scene.view(camera, each, 0.5, np.random.default_rng(0)).astype(int) for each in (above, ground)]
        changed = np.abs(views[0] - views[1]).max(axis=2) > 40
        claimed = np.zeros_like(changed)
        for truth in scene.truths(camera, time, SECONDS):
            left, top, right, bottom = (round(value) for value in truth.box)
            claimed[top:bottom, left:right] = True
            assert changed[top:bottom, left:right].mean() > 0.3, "nothing is to be seen where an object should be"
        assert changed[~claimed].mean() < 0.005, "something is to be seen that is no object"


def test_a_film_is_the_same_every_time() -> None:
    def view() -> Array:
        return scene.view(scene.CAMERAS[0], scene.plane(7.0, SECONDS), 0.3, np.random.default_rng((scene.SEED, 42)))

    assert np.array_equal(view(), view())


def test_what_trains_the_models_is_in_no_film() -> None:
    shown, learnt = boards.show(300), boards.show(300, training=True)
    assert not {row.tobytes() for row in shown.images} & {row.tobytes() for row in learnt.images}
    places = [(name, place[1:]) for name, place in pictures.PLACES.items()]
    assert len(places) + len(pictures.CARDS) == len(pictures.objects()) == 12
    objects = {picture.tobytes() for _, picture in pictures.objects()}
    assert not objects & {picture.tobytes() for picture in pictures.training(60, seed=1)}


def test_three_cameras_show_one_digit_each_in_its_own_weather() -> None:
    shown = boards.show(4)
    first = [next(boards.views(camera, shown)) for camera in boards.CAMERAS]
    assert {view.shape for view in first} == {(boards.SIDE, boards.SIDE, 3)}
    assert all(np.abs(a.astype(int) - b).mean() > 10 for a, b in itertools.combinations(first, 2))
