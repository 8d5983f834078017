"""A picture of a file is upright before it is a frame; one without a mark is the same bytes as before."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image, ImageOps

from halimede.cameras.address import parse
from halimede.cameras.settings import CameraSettings
from halimede.cameras.source_reader import ReadProgress, read_frames
from halimede.cli.images import InlineImage, count_rotated, payload
from halimede.evaluation.data import read_labelled
from halimede.frames import decode, new_frame, open_payload, pack
from halimede.frames.encodings import Pixels
from halimede.frames.orientation import upright
from halimede.image_headers import orientation_of
from halimede.joint_model.predict_api import payload as sample_payload
from halimede.messages import Frame
from halimede.serving.loaded_model import _frame
from halimede.worker.sources.turning_sink import TurningSink
from tests.hostile_pictures import jpeg_with_segments

SCENE = Image.fromarray(np.random.default_rng(7).integers(0, 256, (6, 10, 3), np.uint8)).resize((80, 48))
ORIENTATION = 0x0112


def picture(form: str, orientation: int | None, mode: str = "RGB", **options: object) -> bytes:
    """Return a file of the scene whose pixels are stored so that this orientation makes them upright, or without."""
    out, exif = io.BytesIO(), Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
        options["exif"] = exif
    SCENE.convert(mode).save(out, form, **options)
    return out.getvalue()


def pixels_of(data: bytes) -> Pixels:
    return decode(open_payload(data, ""))


def viewed(data: bytes) -> Pixels:
    """Return the pixels as a viewer shows them."""
    image = Image.open(io.BytesIO(data))
    return np.asarray(ImageOps.exif_transpose(image))


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize(("form", "mode"), [("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGB"), ("PNG", "L")])
def test_a_file_is_turned_as_a_viewer_turns_it(form: str, mode: str, orientation: int) -> None:
    data = picture(form, orientation, mode)
    turned = upright(data)
    expected, pixels = viewed(data), pixels_of(turned)
    assert (orientation_of(turned), pixels.shape) == (1, expected.shape)
    if form == "PNG":
        assert np.array_equal(pixels, expected)
    else:  # the same tables: next to nothing is lost, and a wrong turn differs by 60 and more
        assert np.abs(pixels.astype(int) - expected.astype(int)).mean() < 4
        assert len(turned) < 1.5 * len(data)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", [None, 1, 0, 9, 65535])
def test_a_file_without_a_mark_that_turns_it_is_the_same_bytes(form: str, orientation: int | None) -> None:
    data = picture(form, orientation)
    assert upright(data) is data


def exif_segment(order: str, kind: int, value: bytes, *, end: int | None = None) -> bytes:
    """Return EXIF data with an orientation alone, in either order of bytes."""
    begin = b"II*\0" if order == "<" else b"MM\0*"
    tiff = begin + struct.pack(f"{order}IHHHI", 8, 1, ORIENTATION, kind, 1) + value.ljust(4, b"\0") + bytes(4)
    content = b"Exif\0\0" + tiff[:end]
    return b"\xff\xe1" + (len(content) + 2).to_bytes(2) + content


@pytest.mark.parametrize(
    ("segment", "orientation"),
    [
        (exif_segment(">", 3, b"\0\x06"), 6),
        (exif_segment("<", 3, b"\x08\0"), 8),
        (exif_segment("<", 4, b"\x03\0\0\0"), 3),  # some writers use a long number
        (exif_segment(">", 2, b"6\0"), 1),  # a text is no orientation
        (exif_segment(">", 3, b"\0\x06", end=15), 1),
        (exif_segment(">", 3, b"\0\x06", end=3), 1),
        (b"\xff\xe1\0\x08Exif\0\0", 1),
        (b"\xff\xe1\0\x10Exif\0\0" + b"MM\0*\xff\xff\xff\xff", 1),  # its directory is nowhere
    ],
)
def test_an_orientation_is_read_in_any_order_of_bytes_or_not_at_all(segment: bytes, orientation: int) -> None:
    data = jpeg_with_segments(1, segment)
    assert orientation_of(data) == orientation
    assert pixels_of(upright(data)).shape == (8, 8)


@pytest.mark.parametrize("data", [b"", b"a text", b"\xff\xd8\xff", picture("JPEG", 6)[:-30], picture("PNG", 6)[:-9]])
def test_a_file_that_cannot_be_read_is_left_to_who_decodes_it(data: bytes) -> None:
    assert upright(data) is data
    assert orientation_of(data) == 1


def test_publish_sends_upright_frames_and_bare_files_as_they_are(tmp_path: Path) -> None:
    """Who points a phone's pictures at a detector sees them upright (ultralytics/yolov5#405)."""
    file = tmp_path / "a.jpg"
    file.write_bytes(picture("JPEG", 6))
    image = InlineImage(file, "jpeg", file.stat().st_size)
    frame = open_payload(payload(image, "cam0", 0, bytes(16), bare=False), "cam0")
    assert decode(frame).shape == (80, 48, 3)
    assert payload(image, "cam0", 0, bytes(16), bare=True) == file.read_bytes()
    assert count_rotated([image]) == 1
    file.write_bytes(picture("JPEG", 1))
    assert bytes(open_payload(payload(image, "cam0", 0, bytes(16), bare=False), "cam0").data) == file.read_bytes()
    assert count_rotated([image]) == 0


def test_labelled_pictures_and_their_boxes_are_upright(tmp_path: Path) -> None:
    """Annotation tools show pictures upright, and boxes are in what they show (AlexeyAB/Yolo_mark#107)."""
    (tmp_path / "a.png").write_bytes(picture("PNG", 6))
    (tmp_path / "b.png").write_bytes(picture("PNG", None))
    boxes = [{"image_id": 1, "category_id": 1, "bbox": [0, 70, 48, 10]}]
    images = [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}]
    annotations = {"images": images, "categories": [{"id": 1, "name": "x"}], "annotations": boxes}
    (tmp_path / "annotations.json").write_bytes(msgspec.json.encode(annotations))
    read = read_labelled(tmp_path)
    assert [read.image(i).shape for i in range(len(read))] == [(80, 48, 3), (48, 80, 3)]
    assert np.array_equal(read.image(0), viewed(picture("PNG", 6)))
    assert (read.boxes[0][0].x2, read.boxes[0][0].y2) == (48, 80)


def test_pictures_for_models_that_are_called_are_upright(tmp_path: Path) -> None:
    """An input of the inference server, a path for the JointModel, and a camera's folder."""
    data, file = picture("JPEG", 6), tmp_path / "a.jpg"
    file.write_bytes(data)
    assert decode(_frame("image", base64.b64encode(data).decode())).shape == (80, 48, 3)
    assert pixels_of(sample_payload(file)).shape == (80, 48, 3)
    camera = CameraSettings(name="door", address=parse(str(tmp_path)), pace=0.0)
    frame = next(read_frames(camera, ReadProgress())).make()
    assert (frame.width, frame.height, pixels_of(frame.data).shape) == (48, 80, (80, 48, 3))


class Keeper:
    """A sink that stores what arrives."""

    def __init__(self) -> None:
        self.payloads: list[bytes | memoryview] = []

    async def offer(self, payload: bytes | memoryview, camera: str, **_: Any) -> None:
        self.payloads.append(payload)


def test_a_service_may_have_camera_frames_turned() -> None:
    """Bare pictures and frames are turned, with their ids; all others arrive as they are, unreadable ones too."""
    keeper = Keeper()
    marked_, plain = picture("JPEG", 6), picture("JPEG", None)
    framed = pack(Frame(id=b"i" * 16, camera="cam0", sequence=3, encoding="jpeg", data=memoryview(marked_)))
    raw = pack(new_frame(np.zeros((2, 3), np.uint8)))
    unchanged = [plain, raw, b"a text", b"\x80", b""]

    async def offer_all() -> None:
        for payload_ in [marked_, framed, *unchanged]:
            await TurningSink(keeper).offer(payload_, "cam0")

    asyncio.run(offer_all())
    assert keeper.payloads[2:] == unchanged
    frames = [open_payload(bytes(each), "cam0") for each in keeper.payloads[:2]]
    assert [decode(frame).shape for frame in frames] == [(80, 48, 3)] * 2
    assert (frames[1].id, frames[1].sequence) == (b"i" * 16, 3)
