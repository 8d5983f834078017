"""The figures of the demo: each says what it is called, on runs whose figures are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from examples.multi_edge import boards, measure, scene
from examples.multi_edge.measure import NS
from halimede.inference import Array, pack
from halimede.messages import Fused, FusedFrom, Prediction
from tests.unit.frames.clouds import Brightness
from tests.unit.multi_edge_demo.runs import START, Made, found

SECONDS = 24.0
THINGS = [str(i) for i in range(12)]


class Alike(Brightness):
    def prepare(self, image: Array) -> Array:
        return image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        return [Prediction(embeddings=pack(np.array([0.6, 0.8]))) for _ in batch]


def street(*, wrong: bool = False, rim: bool = False) -> measure.Street:
    """Answer a whole film with the truth; ``wrong``: with other names from its middle on."""
    made = Made()
    for index in range(int(SECONDS * made.fps)):
        for camera in scene.CAMERAS:
            there = scene.truths(camera, index / made.fps, SECONDS)
            late = "late" if wrong and index > SECONDS * made.fps / 2 else ""
            seen = [(t.box, f"{t.thing}{late}") for t in there if rim or t.visible >= scene.VISIBLE]
            made.frame(f"street-{camera.name}", index, prediction=found(*seen))
    return measure.street(made.run(), SECONDS, Alike(), THINGS)


@pytest.mark.slow
def test_who_is_always_right_has_an_idf1_of_one() -> None:
    right = street()
    assert (right.idf1, right.identities) == (pytest.approx(1.0), 12)


@pytest.mark.slow
def test_objects_at_the_rim_are_neither_right_nor_wrong() -> None:
    assert street(rim=True).idf1 == pytest.approx(1.0)


@pytest.mark.slow
def test_who_changes_all_names_half_way_has_about_half() -> None:
    assert 0.4 < street(wrong=True).idf1 < 0.8


def test_fusion_is_compared_with_the_best_camera_alone() -> None:
    shown = boards.show(4)
    truth = [str(label) for label in shown.labels]
    fused = []
    for i, label in enumerate(truth):
        said = {"west": label, "mid": label if i else "?", "east": "?"}
        sources = [FusedFrom(camera=f"board-{camera}", label=word) for camera, word in said.items()]
        fused.append(Fused(instant=(START + i / 8 * NS + 3e6) / NS, rule="product", label=label, sources=sources))
    found_ = measure.board(Made(fps=8.0).run(), fused, shown)
    assert found_.alone == {"west": 1.0, "mid": 0.75, "east": 0.0}
    assert (found_.best, found_.fused, found_.incomplete) == (1.0, 1.0, 0)


def test_a_node_s_share_is_that_of_the_answers_it_gave_while_frames_came() -> None:
    made = Made(fps=10.0)
    for index in range(40):
        late = 5000.0 if index in {20, 21} else 50.0  # given when no frames came any more
        made.frame("belt-west", index, node="edge1" if index >= 20 and index % 4 == 0 else "edge0", after_ms=late)
    found_ = measure.shares(made.run(), ("edge0", "edge1", "edge2"), warm_s=1.0)
    assert found_ == pytest.approx({"edge0": 24 / 28, "edge1": 4 / 28, "edge2": 0.0}, abs=0.02)


def test_the_takeover_is_from_the_kill_to_the_first_new_frame_that_another_node_answered() -> None:
    made = Made(fps=10.0)
    for index in range(40):
        node = "edge1" if index >= 9 else "edge0"  # frame 9 was taken a moment before the kill
        made.frame("belt-west", index, node=node, after_ms=900.0 if index in {9, 10} else 50.0)
    seen = measure.takeover(made.run(), START + round(0.95 * NS), "edge0", "belt-west")
    assert (seen.takeover_s, seen.longest_s) == pytest.approx((1.15 - 0.95, 0.9))
    assert (seen.held, seen.back_s) == (1, None)


def test_a_node_that_nobody_takes_over_from_is_said_to_be_so() -> None:
    made = Made(fps=10.0)
    for index in range(20):
        made.frame("belt-west", index, after_ms=50.0 if index < 10 else None)
    assert measure.takeover(made.run(), START + NS, "edge0", "belt-west").takeover_s is None
