"""Folders of pictures, COCO and Pascal VOC as other programs write them: a Dataset counts what an evaluation reads."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from halimede.datasets import DatasetError, count
from halimede.datasets.counting import Counted
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledSamples, read_labelled
from tests.cameras import jpeg
from tests.unit.sample_files.training import check_training


def put(path: Path, content: bytes | str = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content or jpeg())
    return path


def one(folder: Path, *boxes: tuple[int, int, Any], name: str = "1.jpg") -> None:
    """Write a picture and a COCO file of one picture by this name."""
    put(folder / "1.jpg")
    put(folder / "annotations.json", coco([name], *boxes))


def coco(names: list[str], *boxes: tuple[int, int, Any], **parts: Any) -> str:
    """Return a COCO file: of each box the number of its picture, its category and the rest of its fields."""
    annotations = [
        {"id": i, "image_id": image, "category_id": category, **({"bbox": box} if isinstance(box, list) else box)}
        for i, (image, category, box) in enumerate(boxes)
    ]
    images = [{"id": i, "file_name": name} for i, name in enumerate(names)]
    return json.dumps({"images": images, "annotations": annotations, "categories": PETS} | parts)


def voc(filename: str, *labels: str, difficult: str = "0") -> str:
    objects = "".join(
        f"<object><name>{label}</name><difficult>{difficult}</difficult><bndbox><xmin>5</xmin><ymin>6</ymin>"
        "<xmax>30</xmax><ymax>40</ymax></bndbox></object>"
        for label in labels
    )
    return f"<annotation><filename>{filename}</filename>{objects}</annotation>"


def both(folder: Path, form: str) -> tuple[Counted, LabelledSamples]:
    """Feed one folder to both readers, which must agree on the samples, their classes and their boxes."""
    counted, data = count(folder, form), read_labelled(folder)
    assert (counted.facts.number_of_samples, counted.facts.number_broken) == (len(data), 0)
    labels = data.truths or [box.label for boxes in data.boxes or () for box in boxes]
    assert {named.name: named.count for named in counted.facts.classes} == Counter(labels)
    if data.truths:
        check_training(folder, data.truths)
    return counted, data


class TestFoldersOfPictures:
    @pytest.mark.parametrize(
        "name",
        [
            ".ipynb_checkpoints/1-checkpoint.jpg", "cat/.ipynb_checkpoints/1-checkpoint.jpg", "__MACOSX/cat/._1.jpg",
            "cat/._1.jpg", "cat/Thumbs.db", ".DS_Store", "@eaDir/cat/1.jpg",
        ],
    )  # fmt: skip
    def test_files_that_programs_leave_are_no_samples(self, tmp_path: Path, name: str) -> None:
        """pytorch/vision#2831, open-mmlab/mmpretrain#507, BiaPyX/BiaPy#125, scverse/spatialdata-io#260."""
        for sample in ("cat/1.jpg", "cat/2.jpg", "dog/3.jpg", name):
            put(tmp_path / sample)
        _, data = both(tmp_path, "images")
        assert data.names == ["cat/1.jpg", "cat/2.jpg", "dog/3.jpg"]

    @pytest.mark.parametrize("layout", ["{split}/images/{name}", "images/{split}/{name}", "{split}/JPEGImages/{name}"])
    def test_roboflows_layout_has_no_class_images(self, tmp_path: Path, layout: str) -> None:
        """ultralytics/yolov5#2336: the standard structure is `train/images` and `train/labels`."""
        for split in ("train", "valid", "test"):
            put(tmp_path / layout.format(split=split, name=f"{split}.jpg"))
            put(tmp_path / "labels" / split / "1.txt", "0 0.5 0.5 0.1 0.1\n")
        counted, data = both(tmp_path, "images")
        assert (counted.facts.number_of_samples, data.truths) == (3, None)

    @pytest.mark.parametrize("ending", [".jfif", ".JPE"])
    def test_less_usual_endings_of_a_jpeg(self, tmp_path: Path, ending: str) -> None:
        for name in ("cat/1.jpg", f"cat/2{ending}", "dog/3.jpg"):
            put(tmp_path / name)
        both(tmp_path, "images")

    @pytest.mark.parametrize(
        ("name", "content"), [("w.webp", "RIFF\0\0\0\0WEBP"), ("w.jpg", "RIFF"), ("w.gif", "GIF89a")]
    )
    def test_a_picture_that_no_model_gets_is_not_skipped(self, tmp_path: Path, name: str, content: str) -> None:
        put(tmp_path / "cat/1.jpg")
        put(tmp_path / "dog" / name, content)
        with pytest.raises(InvalidFieldError, match=f"dog/{name}' is not accepted: it is no JPEG or PNG file: convert"):
            read_labelled(tmp_path)

    def test_a_picture_that_is_cut_off_has_one_remedy(self, tmp_path: Path) -> None:
        put(tmp_path / "cat/1.jpg", jpeg()[:-2])
        with pytest.raises(InvalidFieldError, match=r"it is cut off after \d+ bytes: repair or remove it$"):
            read_labelled(tmp_path)

    def test_classes_below_a_folder_of_images(self, tmp_path: Path) -> None:
        put(tmp_path / "images/cat/1.jpg")
        put(tmp_path / "images/dog/2.jpg")
        _, data = both(tmp_path, "images")
        assert data.truths == ["cat", "dog"]


class TestVoc:
    @pytest.mark.parametrize(
        ("annotation", "filename", "picture"),
        [
            ("day/f0.xml", "day/f0.jpg", "day/f0.jpg"),
            ("day/f0.xml", "day\\f0.jpg", "day/f0.jpg"),
            ("day/f0.xml", "f0.jpg", "day/f0.jpg"),
            ("f0.xml", "f0", "f0.jpg"),  # HumanSignal/labelImg#92: names without an ending
            ("BloodImage_00289.xml", "BloodImage_00289", "BloodImage_00289.JPG"),  # experiencor/keras-yolo2#315
            ("f0.xml", "C:\\Users\\me\\JPEGImages\\f0.jpg", "f0.jpg"),
            ("f0.xml", "/home/me/f0.png", "f0.jpg"),
            ("renamed.xml", "before.jpg", "renamed.jpg"),  # HumanSignal/labelImg#408: both files are renamed
            ("f.0.xml", "", "f.0.jpg"),
        ],
    )
    def test_a_picture_by_any_name(self, tmp_path: Path, annotation: str, filename: str, picture: str) -> None:
        put(tmp_path / "Annotations" / annotation, voc(filename, "cat"))
        put(tmp_path / "JPEGImages" / picture)
        _, data = both(tmp_path, "voc")
        assert data.names == [f"JPEGImages/{picture}"]
        assert [[(box.x1, box.y2, box.label) for box in boxes] for boxes in data.boxes or ()] == [[(5, 40, "cat")]]

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
    def test_utf_16_is_named(self, tmp_path: Path, encoding: str) -> None:
        put(tmp_path / "1.xml", voc("1.jpg", "cat").encode(encoding))
        put(tmp_path / "1.jpg")
        assert [entry.reason for entry in count(tmp_path, "voc").facts.broken] == ["1.xml is UTF-16: write it as UTF-8"]
        with pytest.raises(InvalidFieldError, match=r"1\.xml is UTF-16: write it as UTF-8"):
            read_labelled(tmp_path)

    def test_an_export_of_another_form_is_named_with_what_to_do(self, tmp_path: Path) -> None:
        put(tmp_path / "annotations.xml", "<annotations><image name='1.jpg'/></annotations>")
        put(tmp_path / "1.jpg")
        text = "its root is <annotations>, not <annotation>: export it as Pascal VOC"
        assert [entry.reason for entry in count(tmp_path, "voc").facts.broken] == [text]
        with pytest.raises(InvalidFieldError, match=text):
            read_labelled(tmp_path)

    def test_the_layout_in_an_inner_folder(self, tmp_path: Path) -> None:
        put(tmp_path / "VOCdevkit/VOC2007/Annotations/1.xml", voc("1.jpg", "cat"))
        put(tmp_path / "VOCdevkit/VOC2007/JPEGImages/1.jpg")
        _, data = both(tmp_path, "voc")
        assert data.names == ["VOCdevkit/VOC2007/JPEGImages/1.jpg"]

    def test_annotations_beside_their_pictures(self, tmp_path: Path) -> None:
        for split in ("train", "valid"):
            put(tmp_path / split / "1.xml", voc("1.jpg", "cat"))
            put(tmp_path / split / "1.jpg")
        _, data = both(tmp_path, "voc")
        assert data.names == ["train/1.jpg", "valid/1.jpg"]

    def test_difficult_objects_are_left_out_of_an_evaluation(self, tmp_path: Path) -> None:
        put(tmp_path / "Annotations/1.xml", voc("1.jpg", "cat", difficult="1"))
        put(tmp_path / "JPEGImages/1.jpg")
        assert read_labelled(tmp_path).boxes == [[]]
        assert count(tmp_path, "voc").facts.classes[0].count == 1

    def test_no_picture_out_of_the_folder(self, tmp_path: Path) -> None:
        put(tmp_path / "secret.jpg")
        put(tmp_path / "d/Annotations/1.xml", voc("../secret.jpg", "cat"))
        put(tmp_path / "d/JPEGImages/other.jpg")
        (tmp_path / "d/JPEGImages/secret.jpg").symlink_to(tmp_path / "secret.jpg")
        with pytest.raises(InvalidFieldError, match=r"1\.xml: its picture secret\.jpg is not in this folder"):
            read_labelled(tmp_path / "d")


BOX = [1, 2, 3, 4]
PETS = [{"id": 1, "name": "person"}, {"id": 2, "name": "dog"}]
CAPTIONS = json.dumps(
    {
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(3)],
        "annotations": [{"id": i, "image_id": i, "caption": "a picture"} for i in range(3)],
    }
)
THREE = ["0.jpg", "1.jpg", "2.jpg"]
KEY_POINTS = coco(THREE, (0, 1, BOX), categories=[{"id": 1, "name": "person", "keypoints": ["nose"]}])
INSTANCES = coco(THREE, (0, 1, BOX), (1, 2, BOX))


class TestCoco:
    def test_cocos_own_layout_counts_an_image_once(self, tmp_path: Path) -> None:
        for split in ("train2017", "val2017"):
            for kind, text in (("captions", CAPTIONS), ("instances", INSTANCES), ("person_keypoints", KEY_POINTS)):
                put(tmp_path / f"annotations/{kind}_{split}.json", text)
            for i in range(3):
                put(tmp_path / split / f"{i}.jpg")
        counted, data = both(tmp_path, "coco")
        assert (counted.facts.number_of_samples, counted.repeated) == (6, "")
        assert data.names[0] == "train2017/0.jpg"

    def test_captions_alone_are_samples_without_a_class(self, tmp_path: Path) -> None:
        put(tmp_path / "annotations/captions_val2017.json", CAPTIONS)
        facts = count(tmp_path, "coco").facts
        assert (facts.number_of_samples, facts.classes, facts.number_broken) == (3, [], 0)

    def test_files_that_list_the_same_images_are_named(self, tmp_path: Path) -> None:
        put(tmp_path / "all.json", INSTANCES)
        put(tmp_path / "part.json", coco(["1.jpg", "9.jpg"]))
        for i in (0, 1, 2, 9):
            put(tmp_path / f"{i}.jpg")
        counted = count(tmp_path, "coco")
        assert counted.facts.number_of_samples == 5
        assert counted.repeated.startswith("all.json and part.json list 1 of the same samples, which count twice")
        with pytest.raises(InvalidFieldError, match=r"part\.json list 1 of the same samples"):
            read_labelled(tmp_path)

    def test_pictures_of_one_name_in_two_folders_are_two_samples(self, tmp_path: Path) -> None:
        """open-mmlab/mmpose#1643: training and validation with the same ids, in separate folders."""
        for split in ("train", "valid"):
            put(tmp_path / split / "_annotations.coco.json", coco(["1.jpg"], (0, 1, BOX)))
            put(tmp_path / split / "1.jpg")
        counted, data = both(tmp_path, "coco")
        assert (counted.repeated, data.names) == ("", ["train/1.jpg", "valid/1.jpg"])

    @pytest.mark.parametrize("crowd", [True, 1, "1"])
    def test_crowds_by_any_flag_are_left_out_of_an_evaluation(self, tmp_path: Path, crowd: object) -> None:
        """facebookresearch/detectron2#1966: flags of other programs."""
        one(tmp_path, (0, 1, {"bbox": BOX, "iscrowd": crowd}), (0, 2, BOX))
        data = read_labelled(tmp_path)
        assert [[box.label for box in boxes] for boxes in data.boxes or ()] == [["dog"]]

    @pytest.mark.parametrize("crowd", [False, 0, "0", None])
    def test_a_flag_that_is_not_set(self, tmp_path: Path, crowd: object) -> None:
        one(tmp_path, (0, 1, {"bbox": BOX, "iscrowd": crowd}))
        both(tmp_path, "coco")

    def test_the_empty_box_of_cocos_own_file_costs_no_other(self, tmp_path: Path) -> None:
        """visionml/pytracking#18: annotation 2206849 of train2014 has no height."""
        one(tmp_path, (0, 1, {"bbox": [9.98, 188.56, 5.54, 0.0], "area": 0.0, "iscrowd": 0}), (0, 2, BOX))
        assert [len(boxes) for boxes in read_labelled(tmp_path).boxes or ()] == [1]
        facts = count(tmp_path, "coco").facts
        assert [entry.reason for entry in facts.broken] == ["its bbox is empty: width 5.54, height 0"]

    @pytest.mark.parametrize("fields", [{}, {"bbox": None}, {"bbox": []}])
    def test_an_annotation_without_a_box_is_a_class_and_no_object(self, tmp_path: Path, fields: dict[str, Any]) -> None:
        one(tmp_path, (0, 1, fields), (0, 2, BOX))
        facts = count(tmp_path, "coco").facts
        assert (facts.number_of_samples, facts.number_broken, facts.classes[0].count) == (1, 0, 1)
        assert [[box.label for box in boxes] for boxes in read_labelled(tmp_path).boxes or ()] == [["dog"]]

    def test_a_file_whose_annotations_have_outlines_alone_is_refused(self, tmp_path: Path) -> None:
        one(tmp_path, (0, 1, {"segmentation": [[1, 1, 20, 1, 20, 20]]}))
        assert count(tmp_path, "coco").facts.classes[0].count == 1
        with pytest.raises(InvalidFieldError, match=r"its annotations have no bbox: write one for each: \[x, y, width"):
            read_labelled(tmp_path)

    def test_whole_numbers_as_pandas_writes_them_are_ids(self, tmp_path: Path) -> None:
        put(tmp_path / "1.jpg")
        images, annotations = [{"id": 1.0, "file_name": "1.jpg"}], [{"image_id": 1, "category_id": 2.0, "bbox": BOX}]
        regular = {"images": images, "annotations": annotations, "categories": PETS}
        put(tmp_path / "annotations.json", json.dumps(regular))
        both(tmp_path, "coco")

    def test_utf_16_is_named(self, tmp_path: Path) -> None:
        put(tmp_path / "1.jpg")
        put(tmp_path / "a.json", coco(["1.jpg"], (0, 1, BOX)).encode("utf-16"))
        assert count(tmp_path, "coco").facts.broken[0].reason == "it is UTF-16: write it as UTF-8"
        with pytest.raises(InvalidFieldError, match=r"a\.json: it is UTF-16: write it as UTF-8"):
            read_labelled(tmp_path)

    @pytest.mark.parametrize("name", ["2.jpg", "1.JPG", "http://host/1.jpg"])
    def test_a_picture_that_is_missing_is_named_with_what_to_do(self, tmp_path: Path, name: str) -> None:
        one(tmp_path, (0, 1, BOX), name=name)
        with pytest.raises(InvalidFieldError, match=f"its file_name '{name}' is not in this folder: put the picture"):
            read_labelled(tmp_path)

    @pytest.mark.parametrize("entry", [5, {"image_id": 0, "category_id": 2, "bbox": [1, 2, float("nan"), 4]}])
    def test_one_irregular_entry_among_thousands(self, tmp_path: Path, entry: object) -> None:
        regular = json.loads(coco(["1.jpg"], *[(0, 1, BOX)] * 5000))
        regular["annotations"].insert(2500, entry)
        put(tmp_path / "a.json", json.dumps(regular))
        facts = count(tmp_path, "coco").facts
        assert (facts.classes[0].count, facts.number_broken) == (5000, 1)
        assert facts.broken[0].name.startswith("a.json: annotations[2500]")

    def test_objects_inside_of_annotations(self, tmp_path: Path) -> None:
        masks = [{"size": [4, 4], "counts": "a},{b"}] * 9
        boxes = [(0, 1, {"bbox": BOX, "segments_info": masks, "text": "}]"}) for _ in range(3000)]
        put(tmp_path / "a.json", coco(["1.jpg"], *boxes))
        facts = count(tmp_path, "coco").facts
        assert (facts.number_of_samples, facts.classes[0].count, facts.number_broken) == (1, 3000, 0)


class TestTables:
    def test_a_folder_of_tables(self, tmp_path: Path) -> None:
        put(tmp_path / "a.csv", "x,label\n1,a\n2,b\n")
        put(tmp_path / "b/c.tsv", "x\tlabel\n3\ta\n")
        put(tmp_path / ".ipynb_checkpoints/a-checkpoint.csv", "x,label\n1,a\n")
        _, data = both(tmp_path, "csv")
        assert data.names == ["a.csv[0]", "a.csv[1]", "b/c.tsv[0]"]

    def test_a_copy_of_a_table_is_named(self, tmp_path: Path) -> None:
        for name in ("data.csv", "data (1).csv"):
            put(tmp_path / name, "x,label\n1,a\n2,b\n")
        assert count(tmp_path, "csv").repeated == (
            "data (1).csv and data.csv list the same samples, which count twice: remove one of the files"
        )


class TestYolo:
    """Boxes that no reader reads: pictures without them would be other samples."""

    BOXES = "0 0.5 0.5 0.25 1\n"

    @pytest.mark.parametrize(
        ("picture", "label"),
        [
            ("images/train/a.jpg", "labels/train/a.txt"),
            ("train/images/a.jpg", "train/labels/a.txt"),
            ("obj_train_data/a.jpg", "obj_train_data/a.txt"),
        ],
    )
    @pytest.mark.parametrize(
        "boxes", [BOXES, "12 .5 0.5 1e-05 0.25 0.9\r\n3 0.1 0.1 0.2 0.2 0.8\r\n", "0 0.1 0.1 0.9 0.1 0.9 0.9 0.1 0.9"]
    )
    def test_its_boxes_are_refused_with_what_to_do(self, tmp_path: Path, picture: str, label: str, boxes: str) -> None:
        put(tmp_path / picture)
        put(tmp_path / label.replace("a.txt", "0-without-picture.txt"), "\n")
        file = put(tmp_path / label, boxes)
        with pytest.raises(InvalidFieldError, match="YOLO's form, which are not read: export them as COCO") as raised:
            read_labelled(tmp_path)
        assert str(file) in str(raised.value)
        assert count(tmp_path, "images").facts.number_of_samples == 1

    @pytest.mark.parametrize("text", ["a cat on a mat\n", "0 17 24 100 120\n", "1\n", "\n"])
    def test_another_text_beside_a_picture_is_no_box(self, tmp_path: Path, text: str) -> None:
        put(tmp_path / "images" / "a.jpg")
        put(tmp_path / "images" / "a.txt", text)
        put(tmp_path / "images" / "notes.txt", "0 0.5 0.5 0.25 1\n")
        assert read_labelled(tmp_path).boxes is None

    def test_a_dataset_of_this_form_is_refused_with_the_forms_that_there_are(self, tmp_path: Path) -> None:
        put(tmp_path / "labels" / "a.txt", "0 0.5 0.5 0.25 1\n")
        with pytest.raises(DatasetError, match="'yolo' is not known: use one of coco"):
            count(tmp_path, "yolo")
