"""The user-made applications in examples/stages, from their manifest to their answers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

from halimede.cli.manifests import load
from halimede.errors import InvalidFieldError
from halimede.inference import Model
from halimede.messages import Frame, Prediction
from halimede.multiedge import Finding, Item, JointTools, Parameters, Tools, create
from halimede.multiedge.application import StagesModel
from tests.staged import a_picture

STAGES = Path(__file__).parents[3] / "examples" / "stages"
SECOND_NS = 1_000_000_000
LEFT, RIGHT = (4, 8, 20, 24), (40, 10, 60, 40)


@functools.cache
def spec_of(name: str):
    (manifest,) = load([str(STAGES / f"{name}.yaml")])
    return manifest.resource.spec


def make(name: str, models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, **changed: str):
    """Make the application as its manifest asks for it, with the folder that it names on the path."""
    spec = spec_of(name)
    monkeypatch.syspath_prepend(spec.edge_workers[0].template["spec"]["containers"][0]["workingDir"])
    parameters = Parameters({**{each.key: each.value for each in spec.application.parameters}, **changed})
    application = create(spec.application.name, spec.application.entry, parameters)
    return application, StagesModel.make(application, models, parameters, worker="west", node="edge0"), parameters


def answer(model: StagesModel, *pictures: np.ndarray, camera: str = "cam0") -> list[Prediction]:
    frames = [Frame(id=bytes(16), camera=camera, encoding="jpeg", data=memoryview(b"")) for _ in pictures]
    samples = [model.prepare_frame(frame, picture) for frame, picture in zip(frames, pictures, strict=True)]
    return model.predict(samples)


@pytest.fixture(scope="module")
def models(models: Mapping[str, Model]) -> dict[str, Model]:
    return {"model": models["weigher"], "detector": models["spotter"]}


class TestCount:
    @pytest.fixture
    def made(self, models, monkeypatch, tmp_path):
        application, stages, parameters = make("count", models, monkeypatch, find="model", waitMs="200")
        joint = application.joint(JointTools(parameters, tmp_path, cameras=("cam0", "cam1", "cam2")))
        joint.open()
        return stages, joint

    def finding(self, stages, camera: str, picture: np.ndarray, at: float, worker: str = "west") -> Finding:
        self.number = getattr(self, "number", 0) + 1
        (prediction,) = answer(stages, picture, camera=camera)
        travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(prediction), type=Prediction)
        return Finding(bytes([self.number]), camera, worker, "edge0", self.number, int(at * SECOND_NS), travelled)

    def test_objects_are_named_and_counted(self, made):
        empty, one = answer(made[0], a_picture(), a_picture(RIGHT))
        assert (empty.value, one.value) == ({"count": {}}, {"count": {"bright": 1}})
        assert one.boxes[0].label == "bright"

    def test_all_cameras_make_one_total_a_second_whatever_their_number_of_frames(self, made):
        stages, joint = made
        first = self.finding(stages, "cam0", a_picture(LEFT), 7.1)
        again = self.finding(stages, "cam0", a_picture(LEFT), 7.5)
        gone = self.finding(stages, "cam0", a_picture(), 7.9)
        other = self.finding(stages, "cam1", a_picture(RIGHT), 7.2, worker="east")
        outcome = joint.take([first, again, gone, other], now=100.0)
        totals = [outcome.answers[f.key].value["total"] for f in (first, again, gone, other)]
        assert totals == [{"bright": 1}, {"bright": 1}, {"bright": 1}, {"bright": 2}]
        assert joint.next_due() == pytest.approx(101.2)
        assert not joint.due(101.1).fused
        (told,) = joint.due(joint.next_due()).fused
        assert (told.instant, told.label, told.value, told.missing) == (7.0, "2", {"bright": 2}, ["cam2"])
        sources = [(each.camera, each.worker, each.label) for each in told.sources]
        assert sources == [("cam0", "west", "1"), ("cam1", "east", "1")]
        assert joint.next_due() is None

    def test_a_frame_that_comes_too_late_is_answered_and_changes_nothing(self, made):
        stages, joint = made
        joint.take([self.finding(stages, "cam0", a_picture(LEFT), 7.1)], now=100.0)
        joint.due(102.0)
        late = self.finding(stages, "cam1", a_picture(LEFT), 7.9)
        outcome = joint.take([late], now=103.0)
        assert outcome.answers[late.key].value["total"] == {"bright": 1}
        assert not outcome.fused
        assert joint.next_due() is None

    def test_clocks_that_differ_wildly_are_bounded(self, made):
        stages, joint = made
        findings = [self.finding(stages, "cam0", a_picture(LEFT), float(i)) for i in range(40)]
        outcome = joint.take(findings, now=100.0)
        assert len(outcome.answers) == 40
        assert [told.instant for told in outcome.fused] == [float(i) for i in range(24)]
        assert [told.instant for told in joint.due(102.0).fused] == [float(i) for i in range(24, 40)]


class TestBlur:
    def test_boxes_are_unrecognisable_to_the_stages_after_and_the_rest_is_untouched(self, models, monkeypatch):
        application, _, parameters = make("blur", models, monkeypatch, find="model", cells="2", grow="0")
        random = np.random.default_rng(1)
        picture = a_picture()
        picture[10:40, 40:60] = random.integers(150, 256, (30, 20, 3), np.uint8)
        picture.setflags(write=False)
        item = Item(picture)
        for stage in application.stages:
            stage(Tools(models, parameters)).run([item])
        said, after = item.prediction, item.image
        inside = after[10:40, 40:60]
        assert [(box.x1, box.y1, box.x2, box.y2) for box in said.boxes] == [RIGHT]
        assert said.label == "dark"
        assert len(np.unique(inside.reshape(-1, 3), axis=0)) == 6  # 2 x 3 cells
        np.testing.assert_allclose(inside.mean((0, 1)), picture[10:40, 40:60].mean((0, 1)), atol=1)
        changed, original = (np.delete(each, range(40, 60), axis=1) for each in (after, picture))
        np.testing.assert_array_equal(changed, original)

    @pytest.mark.parametrize("size", [(1, 1), (7, 5), (5, 7), (6, 100)])
    @pytest.mark.parametrize("channels", [(), (1,), (3,)])
    def test_any_part_becomes_coarse(self, models, monkeypatch, size, channels):
        make("blur", models, monkeypatch)
        from blur import coarse  # type: ignore[import-not-found]

        part = np.random.default_rng(1).integers(0, 256, (*size, *channels), np.uint8)
        blurred = coarse(part, 2)
        assert (blurred.shape, blurred.dtype) == (part.shape, np.uint8)
        assert len(np.unique(blurred.ravel())) <= 2 * -(-max(size) // -(-min(size) // 2)) * (channels or (1,))[0]

    def test_a_parameter_that_means_nothing_is_refused(self, models, monkeypatch):
        with pytest.raises(InvalidFieldError, match=r"spec\.application\.parameters\.cells"):
            make("blur", models, monkeypatch, cells="0")
        with pytest.raises(InvalidFieldError, match="use one of motion, model"):
            make("blur", models, monkeypatch, find="luck")


@pytest.mark.parametrize("name", ["count", "blur"])
def test_what_moves_is_found_without_a_detector(name, models, monkeypatch):
    _, stages, _ = make(name, models, monkeypatch)
    random = np.random.default_rng(2)
    for i in range(16):
        things = [(4 * i, 10, 4 * i + 16, 26)] if i >= 8 else []
        picture = a_picture(*things, size=(96, 128)) // 2 + random.integers(40, 60, (96, 128, 3), np.uint8)
        (said,) = stages.predict([picture])
        assert len(said.boxes) == len(things)
