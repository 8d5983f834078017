"""Labelled data in every form, and what is refused before it is read."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from halimede.errors import InvalidFieldError
from halimede.evaluation import data as room
from halimede.evaluation.data import read_labelled
from halimede.messages import Box


def picture(path: Path, value: int, size: tuple[int, int] = (4, 3)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0]), value, np.uint8)).save(path)
    return path


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(InvalidFieldError) as caught:
        read_labelled(path, **options)  # type: ignore[arg-type]
    assert caught.value.field == "--data"
    return str(caught.value)


def coco(folder: Path, **changes: object) -> Path:
    picture(folder / "a.png", 1)
    picture(folder / "inner" / "b.png", 2)
    whole = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "inner/b.png"}],
        "categories": [{"id": 7, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 7, "bbox": [1, 0, 2, 3]},
            {"id": 2, "image_id": 1, "category_id": 7, "bbox": [0, 0, 4, 3], "iscrowd": 1},
        ],
    }
    (folder / "annotations.json").write_text(json.dumps(whole | changes))
    return folder


class TestFoldersOfPictures:
    def test_the_class_is_the_folder_whatever_split_it_is_below(self, tmp_path: Path) -> None:
        first = picture(tmp_path / "test" / "cat" / "1.png", 10)
        picture(tmp_path / "dog" / "inner" / "2.png", 20)
        (tmp_path / "readme.txt").write_text("no picture")
        told: list[tuple[int, int]] = []
        found = read_labelled(tmp_path, progress=lambda done, all_: told.append((done, all_)))
        assert found.truths == ["dog", "cat"]
        assert [int(found.image(i)[0, 0]) for i in range(len(found))] == [20, 10]
        assert (found.sizes[1], found.boxes, told) == (first.stat().st_size, None, [(1, 2), (2, 2)])

    def test_folders_named_by_index_are_the_models_classes(self, tmp_path: Path) -> None:
        picture(tmp_path / "0" / "1.png", 10)
        picture(tmp_path / "1" / "1.png", 10)
        assert read_labelled(tmp_path, ["cat", "dog"]).truths == ["cat", "dog"]
        assert read_labelled(tmp_path, ["1", "0"]).truths == ["0", "1"]

    def test_pictures_alone_have_no_truth(self, tmp_path: Path) -> None:
        picture(tmp_path / "1.png", 10)
        assert read_labelled(tmp_path).truths is None

    def test_a_picture_beside_class_folders_is_refused(self, tmp_path: Path) -> None:
        picture(tmp_path / "cat" / "1.png", 10)
        picture(tmp_path / "2.png", 10)
        assert "2.png" in refusal(tmp_path)

    def test_data_of_another_task_are_refused(self, tmp_path: Path) -> None:
        picture(tmp_path / "cat" / "1.png", 10)
        assert "knows none of its classes (cat" in refusal(tmp_path, labels=["car", "bus"])

    def test_what_is_broken_or_too_large_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = picture(tmp_path / "cat" / "1.png", 10)
        whole = broken.read_bytes()
        limits = {
            "MAX_PICTURE": (10, "more than 10"),
            "MAX_BYTES": (10, "pictures have over"),
            "MAX_SAMPLES": (0, "over 0"),
        }
        for limit, (value, said) in limits.items():
            with monkeypatch.context() as patch:
                patch.setattr(room, limit, value)
                assert said in refusal(tmp_path)
        broken.write_bytes(whole[:40])
        assert "1.png" in refusal(tmp_path)
        # measured before it is decoded
        broken.write_bytes(whole[:16] + (60_000).to_bytes(4) * 2 + whole[24:])
        assert "60000 x 60000" in refusal(tmp_path)

    def test_what_is_not_there_or_empty(self, tmp_path: Path) -> None:
        assert "no such file" in refusal(tmp_path / "nowhere")
        assert "no sample" in refusal(tmp_path)
        (tmp_path / "x.txt").write_text("")
        assert "class folders" in refusal(tmp_path / "x.txt")


class TestAnnotations:
    def test_boxes_by_corners_without_crowds(self, tmp_path: Path) -> None:
        found = read_labelled(coco(tmp_path), ["cat"])
        assert (found.names, found.boxes) == (["a.png", "inner/b.png"], [[Box(1, 0, 3, 3, 1.0, "cat")], []])
        assert found.truths is None

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"images": [{"id": 1, "file_name": "../a.png"}]}, "not in this folder"),
            ({"images": [{"id": 1, "file_name": "/etc/passwd"}]}, "not in this folder"),
            ({"images": [{"id": 1, "file_name": "a.png"}, {"id": 1, "file_name": "b.png"}]}, "twice"),
            ({"images": [{"id": 1}]}, "file_name"),
            ({"annotations": [{"image_id": 9, "category_id": 7, "bbox": [0, 0, 1, 1]}]}, "image_id 9"),
            ({"annotations": [{"image_id": 1, "category_id": 8, "bbox": [0, 0, 1, 1]}]}, "category_id 8"),
            ({"annotations": [{"image_id": 1, "category_id": 7, "bbox": [0, 0, 1]}]}, "not four numbers"),
            ({"categories": 3}, "categories"),
        ],
    )
    def test_what_does_not_fit_is_named(self, tmp_path: Path, changes: dict[str, object], said: str) -> None:
        assert said in refusal(coco(tmp_path, **changes))

    def test_a_link_out_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        outside = picture(tmp_path / "secret.png", 1)
        folder = coco(tmp_path / "data")
        (folder / "a.png").unlink()
        (folder / "a.png").symlink_to(outside)
        assert "not in this folder" in refusal(folder)

    def test_no_json(self, tmp_path: Path) -> None:
        (tmp_path / "annotations.json").write_bytes(b"[" * 100_000)
        assert "annotations.json" in refusal(tmp_path)


class TestTables:
    @pytest.mark.parametrize(
        ("text", "truths", "first"),
        [
            ("label,a,b\ncat,1,2\ndog,3,4\n", ["cat", "dog"], [1, 2]),
            ("a,b,class\n1,2,cat\n\n3,4,dog\n", ["cat", "dog"], [1, 2]),
            ("1,2,cat\n3,4,dog\n", ["cat", "dog"], [1, 2]),
            ("1,2,0\n3,4,1\n", ["cat", "dog"], [1, 2]),
            ("0,1,label\n1,2,0\n3,4,1\n", ["cat", "dog"], [1, 2]),
            ("\ufeffa,b,c\n1,2,0\n3,4,1\n", None, [1, 2, 0]),
        ],
    )
    def test_columns_and_classes(self, tmp_path: Path, text: str, truths: list[str] | None, first: list[float]) -> None:
        path = tmp_path / "d.csv"
        path.write_text(text)
        found = read_labelled(path, ["cat", "dog"])
        assert (found.truths, found.sizes) == (truths, [4 * len(first)] * 2)
        assert (found.image(0).tolist(), found.image(0).dtype) == (first, np.float32)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (b"a,label\nx,cat\n", "line 2"),
            (b"a,label\n1,cat,3\n", "3 columns"),
            (b"a,label\nnan,cat\n", "NaN"),
            (b"\xff\xfe\x00\x01", "UTF-8"),
            (b"a,label\n", "no sample"),
            (b"", "no sample"),
            (b'a,label\n"' + b"x" * 200_000 + b'",cat\n', "no csv"),
        ],
    )
    def test_what_is_no_table_of_numbers(self, tmp_path: Path, text: bytes, said: str) -> None:
        path = tmp_path / "d.csv"
        path.write_bytes(text)
        assert said in refusal(path)

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.text(max_size=200))
    def test_any_text_is_read_or_refused_in_one_line(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "d.csv"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(InvalidFieldError):
            assert len(read_labelled(path))


def npz(path: Path, **arrays: object) -> Path:
    np.savez_compressed(path, **{name: np.asarray(array) for name, array in arrays.items()})
    return path


class TestArrays:
    def test_samples_of_any_shape_and_their_classes(self, tmp_path: Path) -> None:
        found = read_labelled(npz(tmp_path / "d.npz", x=np.zeros((2, 8, 8), np.uint8), y=[1, 0]), ["cat", "dog"])
        assert (found.truths, found.sizes, found.image(0).shape) == (["dog", "cat"], [64, 64], (8, 8))
        assert read_labelled(npz(tmp_path / "t.npz", x=[[1.0], [2.0]], y=["a", "b"])).truths == ["a", "b"]
        assert read_labelled(npz(tmp_path / "u.npz", x=[[1.0], [2.0]])).truths is None

    @pytest.mark.parametrize(
        ("arrays", "said"),
        [
            ({"z": [1]}, "no array x"),
            ({"x": [1, 2]}, "first axis"),
            ({"x": [[1.0]], "y": [1, 2]}, "one class for each"),
            ({"x": [[np.nan]]}, "NaN"),
            ({"x": [["text"]]}, "where numbers belong"),
            ({"x": [[1.0]], "y": [1.5]}, "where whole numbers or text belong"),
            ({"x": np.zeros((0, 4))}, "no sample"),
            # pickles are never opened
            ({"x": np.array([[{"a": 1}]], dtype=object)}, "holds object"),
            ({"x": np.zeros((2, 2)), "y": np.array([{"a": 1}, 2], dtype=object)}, "holds object"),
        ],
    )
    def test_what_does_not_fit(self, tmp_path: Path, arrays: dict[str, object], said: str) -> None:
        assert said in refusal(npz(tmp_path / "d.npz", **arrays))

    def test_a_header_that_claims_more_than_is_there(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        np.lib.format.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": (1 << 40, 4)})
        with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
            archive.writestr("x.npy", out.getvalue())
        assert "claims more" in refusal(tmp_path / "d.npz")

    def test_one_that_inflates_beyond_the_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(room, "MAX_BYTES", 1000)
        assert "over 1000" in refusal(npz(tmp_path / "d.npz", x=np.zeros((100, 100), np.uint8)))

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00"])
    def test_no_archive(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "d.npz").write_bytes(content)
        assert "no readable .npz" in refusal(tmp_path / "d.npz")
