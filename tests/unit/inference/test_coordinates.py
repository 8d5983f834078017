"""Coordinates of a prediction, of every kind, move together."""

import numpy as np

from halimede.inference.coordinates import map_coordinates
from halimede.inference.geometry import Axis, Geometry
from halimede.messages import Box, PicturePoint, Prediction, TextLine


def points(*coordinates: tuple[float, float]) -> list[PicturePoint]:
    return [PicturePoint(x, y) for x, y in coordinates]


WHOLE = Prediction(
    label="page",
    boxes=[Box(10, 20, 30, 40, 0.5, "face"), Box(0, 0, 1, 1, 0.25, 7)],
    landmarks=[points((12, 22), (14, 24)), []],
    lines=[TextLine(text="EXIT", score=0.5, corners=points((0, 0), (8, 0), (8, 4), (0, 4))), TextLine()],
)


def test_boxes_landmarks_and_corners_of_lines_are_scaled_and_all_other_fields_stay() -> None:
    scaled = map_coordinates(WHOLE, lambda coordinates: coordinates * (2, 10))
    assert scaled.boxes == [Box(20, 200, 60, 400, 0.5, "face"), Box(0, 0, 2, 10, 0.25, 7)]
    assert scaled.landmarks == [points((24, 220), (28, 240)), []]
    corners = points((0, 0), (16, 0), (16, 40), (0, 40))
    assert (scaled.label, scaled.lines) == ("page", [TextLine(text="EXIT", score=0.5, corners=corners), TextLine()])
    assert WHOLE.boxes[0].x1 == 10  # the prediction itself is as it was


def test_a_prediction_without_coordinates_stays_the_same_object() -> None:
    for plain in (Prediction(label="x"), Prediction(boxes=[]), Prediction(embeddings=b"\0\0")):
        assert map_coordinates(plain, np.negative) is plain


def test_points_of_a_letterbox_go_back_into_the_frame() -> None:
    geometry = Geometry(Axis(200, 100, 0.5, 0.0), Axis(100, 100, 0.5, 25.0))
    back = map_coordinates(Prediction(landmarks=[points((50, 50), (500, 0))]), geometry.back)
    assert back.landmarks == [points((100, 50), (200, 0))]
