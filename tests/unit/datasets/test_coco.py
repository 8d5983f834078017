"""COCO: read entry by entry in any order of its parts, with what is wrong in it named."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.datasets import DatasetError
from halimede.sample_files import json_lists
from tests.properties import examples
from tests.unit.datasets.counted import broken, classes
from tests.unit.datasets.counted import facts as of_form


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows end in the middle of numbers and of characters."""
    monkeypatch.setattr(json_lists, "MIN_WINDOW", 13)
    monkeypatch.setattr(json_lists, "MAX_WINDOW", 200)
    monkeypatch.setattr(json_lists, "BLOCK", 13)


facts = partial(of_form, form="coco")


def document(**parts: Any) -> dict[str, Any]:
    return {
        "info": {"year": 2026, "nested": [[1, 2], {"a": "]"}]}, "licenses": [{"id": 1}],
        "images": [{"id": n, "file_name": f"{n}.jpg"} for n in (1, 2, 300)], "annotations": [],
        "categories": [{"id": 1, "name": "h\u00e9lmet"}, {"id": 7, "name": "person"}], **parts,
    }  # fmt: skip


def annotation(number: int, **fields: Any) -> dict[str, Any]:
    box = [1, 2.5, 3, 4]
    return {"id": number, "image_id": 1, "category_id": 7, "bbox": box, "segmentation": [[1, 2, 3]], **fields}


@examples(100)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 300]), st.sampled_from([1, 7])), max_size=20),
    st.permutations(["info", "licenses", "images", "annotations", "categories"]),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_images_are_samples_and_annotations_are_counted_by_category(
    tmp_path_factory: Any, pairs: list[tuple[int, int]], order: list[str], indent: int | None, ascii_: bool
) -> None:
    path = tmp_path_factory.mktemp("coco") / "instances.json"
    made = [annotation(n, image_id=image, category_id=category) for n, (image, category) in enumerate(pairs)]
    body = document(annotations=made)
    path.write_text(json.dumps({part: body[part] for part in order}, indent=indent, ensure_ascii=ascii_), "utf-8")
    said = facts(path)
    assert (said.number_of_samples, said.number_broken) == (3, 0)
    assert classes(said) == Counter({1: "h\u00e9lmet", 7: "person"}[category] for _, category in pairs)


@pytest.mark.parametrize("first", ["annotations", "images"])
def test_entries_that_cannot_be_used_are_named(tmp_path: Path, first: str) -> None:
    path = tmp_path / "a.json"
    body = document(
        images=[{"id": 1, "file_name": "1.jpg"}, {"id": 1, "file_name": "2.jpg"}, {"file_name": "3.jpg"}, {"id": 4}, 5],
        categories=[{"id": 7, "name": "person"}, {"id": 8, "name": ""}],
        annotations=[
            annotation(10),
            annotation(11, image_id=99),
            annotation(12, category_id=8),
            annotation(13, bbox=[1, 2, 0, 4]),
            annotation(14, bbox=[1, 2, "3", 4]),
            annotation(15, bbox=[1, 2, float("nan"), 4]),
            [],
            {key: value for key, value in annotation(16).items() if key != "bbox"},
        ],
    )
    path.write_text(json.dumps({first: body[first]} | body))
    said = facts(path)
    assert (said.number_of_samples, classes(said), said.number_broken) == (1, {"person": 2}, 11)
    assert broken(said) == {
        "a.json: images[1]": "image 1 is there twice",
        "a.json: images[2]": "it has no id",
        "a.json: images[3]": "image 4 has no file_name",
        "a.json: images[4]": "no object",
        "a.json: categories[1]": "category 8 has no name",
        "a.json: annotations[1] (id 11)": "its image_id 99 is no image of this file",
        "a.json: annotations[2] (id 12)": "its category_id 8 is no category of this file",
        "a.json: annotations[3] (id 13)": "its bbox is empty: width 0, height 4",
        "a.json: annotations[4] (id 14)": "its bbox is not four numbers: x, y, width, height",
        "a.json: annotations[5] (id 15)": "its bbox is not four numbers: x, y, width, height",
        "a.json: annotations[6]": "no object",
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is no JSON object"),
        ("[]", "it is no JSON object"),
        ("{}", "neither images nor categories"),
        ('{"images": [{"id": 1, "file_name": "a"}, {"id": 2,', r"images\[1\]: no JSON"),
        ('{"images": [{"id": 1} {"id": 2}]}', r"a comma is expected after images\[0\]"),
        ('{"images": [' + "[" * 100_000, r"images\[0\] is nested too deep"),
        ('{"images": [' + "9" * 10_000 + "]}", r"images\[0\]: no JSON: a number that is too long"),
        ('{"images" [1]}', "a name and a colon are expected"),
        ('{"images": [{"id": 1, "file_name": "\xff"}]}', "it is not UTF-8"),
    ],
)
def test_a_file_that_is_no_coco_says_where_and_why(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DatasetError, match=reason) as raised:
        facts(path)
    assert raised.value.reason == "DatasetUnreadable"
    # among others, it costs none of them
    (tmp_path / "b.json").write_text(json.dumps(document()))
    said = facts(tmp_path)
    assert (said.number_of_samples, [each.name for each in said.broken]) == (3, ["a.json"])


def test_an_entry_without_end_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.sample_files.json_lists.MAX_ENTRY", 1000)
    path = tmp_path / "a.json"
    path.write_text('{"images": ["' + "x" * 100_000)
    with pytest.raises(DatasetError, match=r"images\[0\]: no JSON, or over"):
        facts(path)
