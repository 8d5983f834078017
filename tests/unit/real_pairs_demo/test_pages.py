"""Pages of words at known places, and what counts as read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.pages import crops_of, whole_pages, write_service
from examples.real_pairs import pages, words
from examples.real_pairs.pages import Plate
from halimede.evaluation.service import read_resources
from halimede.messages import Box, PicturePoint, Prediction, TextLine

pytestmark = pytest.mark.skipif(not list(words.FONTS.rglob("*.ttf")), reason="this machine has no fonts")


def line(text: str, x: float, y: float) -> TextLine:
    corners = [PicturePoint(x + dx, y + dy) for dx, dy in ((-4, -2), (4, -2), (4, 2), (-4, 2))]
    return TextLine(text=text, score=0.9, corners=corners)


def test_a_page_has_a_word_in_each_cell_and_is_the_same_again(tmp_path: Path) -> None:
    first, second = (pages.write_pages(tmp_path / name, "test", 2) for name in ("a", "b"))
    assert first == second
    assert (tmp_path / "a/0001.jpg").read_bytes() == (tmp_path / "b/0001.jpg").read_bytes()
    assert Image.open(tmp_path / "a/0000.jpg").size == pages.SIZE
    for page in first.values():
        assert len(page) == pages.COLUMNS * pages.ROWS
        assert all(0 <= plate.x1 < plate.x2 <= pages.SIZE[0] for plate in page)
        assert all(0 <= plate.y1 < plate.y2 <= pages.SIZE[1] for plate in page)
    assert pages.write_pages(tmp_path / "c", "calibrate", 1)["0000.jpg"] != first["0000.jpg"]


def test_a_word_is_read_by_a_line_in_its_place_and_to_the_last_letter() -> None:
    page = [Plate("AB", 0, 0, 20, 10), Plate("CD", 30, 0, 50, 10), Plate("EF", 0, 20, 20, 30)]
    answer = Prediction(lines=[line("AB", 10, 5), line("CE", 40, 5), line("EF", 40, 25), TextLine(text="EF")])
    assert pages.read_right(page, answer) == [True, False, False]
    assert pages.read_right(page, Prediction()) == [False] * 3


def test_as_many_pages_are_whole_as_give_so_many_right_words() -> None:
    assert whole_pages([5, 5, 5], [8, 7, 6], 15) == 0
    assert whole_pages([5, 5, 5], [8, 7, 6], 19) == 2
    assert whole_pages([5, 5, 5], [8, 7, 6], 99) == 3


def test_crops_of_a_page_lie_within_it() -> None:
    picture = np.arange(200, dtype=np.uint8).reshape(10, 20)
    assert [crop.shape for crop in crops_of(picture, [Box(-5, 2, 4, 6, 1.0), Box(30, 0, 40, 5, 1.0)])] == [(4, 4)]


def test_the_service_has_the_detector_and_both_readers(tmp_path: Path) -> None:
    models = write_service(tmp_path / "service.yaml", tmp_path)
    names = [body["metadata"]["name"] for body in models]
    assert names == ["text-small", "text-big", "text-detector"]
    service = list(read_resources([tmp_path / "service.yaml"]))[-1]
    assert service.spec.edge_worker.detector.name == "text-detector"
