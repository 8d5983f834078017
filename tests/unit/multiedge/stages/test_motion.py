from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.datasets import load_sample_image

from halimede.errors import InvalidFieldError
from halimede.inference import Array, SampleError
from halimede.messages import Box
from halimede.multiedge import Item, Parameters, Tools
from halimede.multiedge.stages import Motion

SIZE = (240, 320)
Light = Callable[[Array, int], Array]
ACROSS = np.linspace(0, 1, SIZE[1])[np.newaxis, :, np.newaxis]


@pytest.fixture(scope="module")
def scene() -> Array:
    return load_sample_image("china.jpg")[100:340, 100:420].astype(np.float64)


@pytest.fixture(scope="module")
def thing() -> Array:
    return load_sample_image("flower.jpg")[150:190, 200:230].astype(np.float64)


class Camera:
    """Films a scene: noise is drawn anew for each picture."""

    def __init__(self, scene: Array, light: Light = lambda picture, _: picture, noise: float = 5.0) -> None:
        self.scene, self.light, self.noise = scene, light, noise
        self.random = np.random.default_rng(3)
        self.taken = 0

    def take(self, *things: tuple[int, int, Array], name: str = "cam0") -> Item:
        picture = self.scene.copy()
        for x, y, texture in things:
            picture[y : y + len(texture), x : x + texture.shape[1]] = texture
        picture = self.light(picture, self.taken)
        picture = picture + self.random.normal(0, self.noise, picture.shape)
        self.taken += 1
        return Item(np.clip(picture, 0, 255).astype(np.uint8), camera=name, id=self.taken.to_bytes(16, "big"))


def a_stage(**parameters: str) -> Motion:
    return Motion(Tools(models={}, parameters=Parameters(parameters)))


def look(stage: Motion, item: Item) -> list[Box]:
    stage.run([item])
    return item.prediction.boxes


def learn(stage: Motion, camera: Camera, times: int) -> list[list[Box]]:
    """Let the stage see the scene alone so many times; return what it takes for motion."""
    return [look(stage, camera.take()) for _ in range(times)]


def overlap(box: Box, place: tuple[int, int, int, int]) -> float:
    width = max(0, min(box.x2, place[2]) - max(box.x1, place[0]))
    height = max(0, min(box.y2, place[3]) - max(box.y1, place[1]))
    areas = (box.x2 - box.x1) * (box.y2 - box.y1) + (place[2] - place[0]) * (place[3] - place[1])
    return width * height / (areas - width * height)


LIGHTS: dict[str, Light] = {
    "steady": lambda picture, _: picture,
    "brighter and darker": lambda picture, i: picture * (1 + 0.35 * np.sin(i / 9)),
    "switched": lambda picture, i: picture * 0.6 + 20 if i > 20 else picture,
    "from one side": lambda picture, i: picture * (1 + 0.4 * np.sin(i / 9) * ACROSS) - 10 * np.sin(i / 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("light", LIGHTS.values(), ids=LIGHTS)
def test_what_moves_is_boxed_and_light_and_noise_are_not(scene, thing, light):
    camera, stage = Camera(scene, light), a_stage()
    assert learn(stage, camera, 12) == [[]] * 12
    for i in range(30):
        place = (10 + 8 * i, 60 + 3 * i, 40 + 8 * i, 100 + 3 * i)
        boxes = look(stage, camera.take((*place[:2], thing)))
        assert len(boxes) == 1, f"picture {i}: {boxes}"
        assert overlap(boxes[0], place) > 0.7
        assert boxes[0].label == "motion"
        assert 0.5 < boxes[0].score <= 1


def test_a_camera_that_sees_badly_has_no_motion_of_its_own_and_what_stands_out_is_seen(scene):
    camera, stage = Camera(scene, noise=45.0), a_stage()
    assert learn(stage, camera, 15) == [[]] * 15
    level = 0.0 if scene[100:140, 100:140].mean() > 128 else 255.0
    assert len(look(stage, camera.take((100, 100, np.full((40, 40, 3), level))))) == 1


def test_what_covers_more_than_the_most_is_no_motion(scene, thing):
    camera, limited, free = Camera(scene), a_stage(motionMost="0.05"), a_stage()
    large = np.tile(thing, (2, 4, 1))  # 80 x 120 of 240 x 320 pixels
    for _ in range(8):
        picture = camera.take()
        assert look(limited, picture) == look(free, picture) == []
    picture = camera.take((100, 100, large))
    assert look(limited, picture) == []
    assert look(free, picture)


def test_a_scene_without_contrast_will_do(thing):
    camera, stage = Camera(np.full((*SIZE, 3), 110.0)), a_stage()
    assert learn(stage, camera, 12) == [[]] * 12
    assert all(len(look(stage, camera.take((20 + 8 * i, 50, thing)))) == 1 for i in range(20))


def test_each_of_several_has_a_box_and_so_many_of_the_largest_stay(scene, thing):
    camera, stage = Camera(scene), a_stage(maxBoxes="2")
    learn(stage, camera, 8)
    boxes = look(stage, camera.take((20, 20, thing[:20, :20]), (100, 100, thing), (200, 20, thing)))
    assert sorted(box.x1 // 10 for box in boxes) == [10, 20]


@pytest.mark.slow
def test_what_comes_to_a_stand_becomes_background_and_leaves_no_ghost(scene, thing):
    camera, stage = Camera(scene), a_stage(motionMemory="18")
    learn(stage, camera, 20)
    assert look(stage, camera.take((100, 100, thing)))
    assert [look(stage, camera.take((100, 100, thing))) for _ in range(40)][-10:] == [[]] * 10
    assert look(stage, camera.take())  # it is gone: where it stood is motion for a while
    assert learn(stage, camera, 40)[-10:] == [[]] * 10


def test_what_was_there_at_first_and_left_is_forgotten(scene, thing):
    camera, stage = Camera(scene), a_stage()
    for i in range(60):
        boxes = look(stage, camera.take((10 + 12 * i, 60, thing[:, : max(0, 310 - 12 * i)]))) if i < 25 else None
        boxes = look(stage, camera.take()) if boxes is None else boxes
    assert boxes == []


def test_a_flash_is_no_motion_and_a_camera_that_was_moved_learns_anew(scene, thing):
    camera, stage = Camera(scene), a_stage()
    learn(stage, camera, 12)
    camera.light = lambda picture, _: np.full_like(picture, 250)
    assert look(stage, camera.take()) == []
    camera.light = lambda picture, _: picture[::-1, ::-1]
    assert learn(stage, camera, 12) == [[]] * 12
    assert len(look(stage, camera.take((100, 100, thing)))) == 1


def test_another_resolution_is_learnt_anew(scene, thing):
    stage = a_stage()
    for picture in (scene, scene[:120, :160]):
        camera = Camera(picture)
        camera.taken = len(picture) * 100
        assert learn(stage, camera, 8) == [[]] * 8
        assert len(look(stage, camera.take((100, 50, thing)))) == 1


def test_large_pictures_are_looked_at_smaller_and_boxed_in_their_own_pixels(scene, thing):
    camera, stage = Camera(scene, lambda picture, _: picture.repeat(3, 0).repeat(3, 1)), a_stage(motionSide="160")
    learn(stage, camera, 8)
    (box,) = look(stage, camera.take((100, 100, thing)))
    assert overlap(box, (300, 300, 390, 420)) > 0.7


def test_cameras_are_kept_apart_and_no_more_than_so_many_remembered(scene, thing, monkeypatch):
    monkeypatch.setattr("halimede.multiedge.stages.motion.MAX_CAMERAS", 2)
    first, second, stage = Camera(scene), Camera(scene[::-1]), a_stage()
    for _ in range(8):
        look(stage, first.take(name="a"))
        look(stage, second.take(name="b"))
    assert len(look(stage, first.take((100, 100, thing), name="a"))) == 1
    look(stage, second.take(name="c"))
    assert look(stage, second.take((100, 100, thing), name="b")) == []  # forgotten, and learns again


def test_a_frame_that_is_asked_about_again_gets_the_same_answer_and_teaches_nothing(scene, thing):
    camera, stage = Camera(scene), a_stage()
    learn(stage, camera, 8)
    item = camera.take((100, 100, thing))
    once = look(stage, item)
    again = [look(stage, Item(item.image, camera="cam0", id=item.id)) for _ in range(200)]
    assert once
    assert again == [once] * 200


@pytest.mark.parametrize("shape", [(1, 1), (2, 700, 3), (48, 64, 1), (40, 40, 4)])
def test_pictures_of_any_size_are_looked_at(shape):
    stage, random = a_stage(), np.random.default_rng(1)
    for _ in range(12):
        image = random.integers(0, 256, shape, np.uint8)
        assert isinstance(look(stage, Item(image, camera="c")), list)


def test_what_is_no_picture_of_8_bits_is_an_error_of_the_sample():
    with pytest.raises(SampleError, match="8 bits"):
        look(a_stage(), Item(np.zeros((8, 8, 3), np.float32)))
    with pytest.raises(SampleError, match="grayscale"):
        look(a_stage(), Item(np.zeros((8, 8, 2), np.uint8)))


@pytest.mark.parametrize("given", [{"motionThreshold": "0"}, {"motionMemory": "2"}, {"motionSide": "x"}])
def test_parameters_that_mean_nothing_are_refused(given):
    with pytest.raises(InvalidFieldError, match=rf"spec\.application\.parameters\.{next(iter(given))}"):
        a_stage(**given)
