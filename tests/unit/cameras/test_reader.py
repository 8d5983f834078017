"""A reader's small parts: its box, its pictures, a device's attempts, and what a camera says of itself."""

from __future__ import annotations

import io
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from av import VideoFrame
from PIL import Image

from halimede.cameras import ipc_messages, source_reader
from halimede.cameras.address import parse
from halimede.cameras.camera_status import CameraStatusTracker
from halimede.cameras.ipc_messages import Beat, CapturedPicture, ReaderCounts, ReaderEnd, SourceError
from halimede.cameras.reader_client import environment
from halimede.cameras.reader_process import LatestValue
from halimede.cameras.settings import CameraSettings
from halimede.cameras.source_reader import NoTablesError, fit_size, from_frame, size_of
from halimede.errors import DecodeError
from tests.cameras import captured, cut_off, jpeg, number_of, video, without_tables


def device(path: str, **changes: float) -> CameraSettings:
    return CameraSettings(name="door", address=parse(path), **changes)


def test_a_newer_one_takes_an_older_ones_place_and_a_patient_box_waits() -> None:
    box: LatestValue[int] = LatestValue(patient=False)
    assert [box.put(i) for i in range(5)] == [None, 0, 1, 2, 3]
    assert (box.take(0.0), box.take(0.0)) == (4, None)
    patient: LatestValue[int] = LatestValue(patient=True)
    replaced: list[int | None] = []
    thread = threading.Thread(target=lambda: replaced.extend(patient.put(i) for i in range(5)), daemon=True)
    thread.start()
    assert [patient.take(10.0) for _ in range(5)] == [0, 1, 2, 3, 4]
    thread.join(10.0)
    assert replaced == [None] * 5


def test_what_is_in_the_box_comes_out_before_the_end_is_told() -> None:
    box: LatestValue[int] = LatestValue(patient=False)
    box.put(1)
    box.close(SourceError(ipc_messages.ENDED, "over"))
    assert box.take(0.0) == 1
    with pytest.raises(SourceError, match="Ended: over"):
        box.take(0.0)


def test_a_jpeg_without_its_tables_is_no_picture_of_its_own() -> None:
    assert size_of(jpeg(3)) == (64, 48)
    with pytest.raises(NoTablesError):
        size_of(without_tables(jpeg(3)))


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"GIF89a", jpeg(1)[:100]])
def test_what_is_no_jpeg(data: bytes) -> None:
    with pytest.raises(DecodeError):
        size_of(data)


@pytest.mark.parametrize(
    ("most", "size", "sent"),
    [
        (0, (641, 481), (641, 481)), (640, (640, 481), (640, 481)), (640, (1920, 1080), (640, 360)),
        (1, (9, 900), (2, 200)),
    ],
)  # fmt: skip
def test_what_is_too_wide_is_made_narrower(most: int, size: tuple[int, int], sent: tuple[int, int]) -> None:
    assert fit_size(device("/dev/video0", max_width=most), *size) == sent


#: shares of red and blue in the brightness, by FFmpeg's number of the colour matrix: BT.709, unspecified, BT.601
MATRICES = {1: (0.2126, 0.0722), 2: (0.299, 0.114), 6: (0.299, 0.114)}
COLOURS = np.array([[200, 60, 40], [40, 180, 60], [60, 50, 210], [220, 210, 60], [255, 255, 255], [0, 0, 0]])


def film_frame(rgb: np.ndarray, *, matrix: int, full: bool) -> VideoFrame:
    """Return a frame of planes, as a decoder of films does, of pixels whose colours are equal in blocks of 2 x 2."""
    red, blue = MATRICES[matrix]
    luma = rgb @ (red, 1 - red - blue, blue)
    chroma = (rgb[..., 2] - luma) / (1 - blue) / 2, (rgb[..., 0] - luma) / (1 - red) / 2
    spans = (1.0, 0.0, 1.0) if full else (219 / 255, 16.0, 224 / 255)
    frame = VideoFrame(rgb.shape[1], rgb.shape[0], "yuv420p")
    frame.colorspace, frame.color_range = matrix, 2 if full else 1
    values = [luma * spans[0] + spans[1], *(plane[::2, ::2] * spans[2] + 128 for plane in chroma)]
    for plane, pixels in zip(frame.planes, values, strict=True):
        padded = np.zeros((plane.height, plane.line_size), np.uint8)
        padded[: pixels.shape[0], : pixels.shape[1]] = pixels.round()
        plane.update(padded.tobytes())
    return frame


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("full", [False, True])
def test_a_jpeg_of_a_film_has_its_colours_in_each_matrix_and_range(matrix: int, full: bool) -> None:
    rgb = np.repeat(np.repeat(COLOURS[None], 64, axis=0), 32, axis=1)
    picture = from_frame(device("/dev/video0", quality=95), film_frame(rgb, matrix=matrix, full=full))
    pixels = np.asarray(Image.open(io.BytesIO(picture.data)))[32, 16::32].astype(int)
    assert np.abs(pixels - COLOURS).max() <= 4


@pytest.mark.parametrize(("width", "height"), [(63, 47), (640, 360)])
def test_a_jpeg_of_a_film_is_the_file_that_pillow_makes_of_its_pixels(width: int, height: int) -> None:
    rgb = np.random.default_rng(5).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3)).repeat(8, 0).repeat(8, 1)
    frame = film_frame(rgb[:height, :width], matrix=2, full=False)
    out = io.BytesIO()
    Image.fromarray(frame.to_ndarray(format="rgb24")).save(out, format="JPEG", quality=85)
    picture = from_frame(device("/dev/video0"), frame)
    assert (picture.data, picture.width, picture.height) == (out.getvalue(), width, height)


def test_a_frame_of_a_film_is_encoded_without_a_copy_of_its_pixels() -> None:
    frame = film_frame(np.zeros((720, 1280, 3)), matrix=2, full=False)
    from_frame(device("/dev/video0"), frame)  # what is imported meanwhile does not count
    tracemalloc.start()
    try:
        from_frame(device("/dev/video0"), frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1280 * 720


def test_a_device_is_asked_for_jpeg_first_and_for_anything_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(target: str, **options: object) -> None:
        asked.append((target, options["format"], options["options"]))
        raise source_reader.av.error.ArgumentError(22, "Invalid argument", target)  # type: ignore[attr-defined]

    monkeypatch.setattr(source_reader.av, "open", refuse)  # type: ignore[attr-defined]
    with pytest.raises(SourceError, match="Garbage"):
        source_reader.open_source(device("/dev/video0", fps=10.0))
    assert asked == [
        ("/dev/video0", "v4l2", {"input_format": "mjpeg", "framerate": "10"}),
        ("/dev/video0", "v4l2", {"input_format": "mjpeg"}),
        ("/dev/video0", "v4l2", {}),
    ]


def test_a_folder_of_pictures_is_played_without_its_hidden_files(tmp_path: Path) -> None:
    for number, name in enumerate(("a.jpg", "b.jpg", "._a.jpg", ".c.jpg")):
        (tmp_path / name).write_bytes(jpeg(number))
    frames = source_reader.read_frames(device(f"file://{tmp_path}", pace=0.0), source_reader.ReadProgress())
    assert [number_of(next(frames).make().data) for _ in range(2)] == [0, 1]
    with pytest.raises(SourceError, match="played to its end"):
        next(frames)


@pytest.mark.parametrize("broken", [[0], [5], [11], [11, 22], [33], [39], [3, 17], [0, 11, 22, 33]])
def test_frames_that_depend_on_a_broken_packet_are_counted_as_refused(broken: list[int], tmp_path: Path) -> None:
    """FFmpeg drops them without an error: a lost keyframe would take frames with it in silence."""
    whole = video(tmp_path / "whole.mp4", 40, keys=12)
    film = cut_off(whole, tmp_path / "cut.mp4", *broken)
    reading, sent = source_reader.ReadProgress(), []
    with pytest.raises(SourceError) as caught:
        sent.extend(frame.make() for frame in source_reader.read_frames(device(str(film), pace=0.0), reading))
    assert (reading.counts.received, len(sent) + reading.counts.refused) == (40, 40)
    assert reading.counts.refused >= len(broken)
    assert caught.value.reason == (ipc_messages.ENDED if sent else ipc_messages.GARBAGE)
    assert reading.counts.why.startswith("a frame")


def test_v4l2_is_in_the_installed_ffmpeg() -> None:
    with pytest.raises(SourceError, match=f"^{ipc_messages.NOT_FOUND}: "):
        source_reader.open_source(device("/dev/video99"))


@pytest.mark.parametrize(
    "said",
    [
        Beat(counts=ReaderCounts(received=3)),
        ReaderEnd(reason=ipc_messages.ENDED, message="x", counts=ReaderCounts(refused=1, why="y")),
        captured(jpeg(1)),
    ],
)
def test_what_is_said_is_heard(said: ipc_messages.ReaderMessage) -> None:
    packed = ipc_messages.pack(said)
    (length,) = ipc_messages.LENGTH.unpack(packed[:4])
    assert (length, ipc_messages.unpack(packed[4:])) == (len(packed) - 4, said)


def test_a_reader_inherits_no_credentials_and_no_proxy() -> None:
    own = {"PATH": "/bin", "SOURCE_PASSWORD": "x", "HALIMEDE_CREDENTIALS": "/x", "http_proxy": "http://p", "HOME": "/r"}
    assert set(environment(own)) == {
        "PATH", "PYTHONPATH", "MALLOC_ARENA_MAX", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE",
    }  # fmt: skip


def picture(seen: int) -> CapturedPicture:
    return captured(b"x", taken_ns=0, counts=ReaderCounts(received=seen, skipped=1))


def test_a_status_goes_on_counting_over_the_lives_of_a_reader() -> None:
    address = parse("rtsp://me:hidden@cam/x")
    tracker = CameraStatusTracker(CameraSettings(name="door", address=address, fps=10.0, node="edge0"))
    tracker.opening(1000.0, again=False)
    assert (tracker.status(0.0).state, tracker.status(0.0).started) == ("connecting", "1970-01-01T00:16:40Z")
    for second in range(6):
        for i in range(10):
            tracker.arrived(picture(second * 10 + i + 1))
            tracker.sent(100, int(1000e9), 1000.02)
        said = tracker.status(float(second))
    assert (said.state, said.frames, said.bytes, said.skipped, said.latency_ms) == ("running", 60, 6000, 1, 20.0)
    assert said.fps == pytest.approx(10.0, rel=0.01)
    tracker.ended("stalled", ipc_messages.STALLED, "nothing came of rtsp://me:hidden@cam/x")
    tracker.opening(1001.0, again=True)
    said = tracker.status(7.0)
    assert (said.state, said.reason, said.error) == ("stalled", "Stalled", "nothing came of rtsp://***@cam/x")
    tracker.arrived(picture(1))
    said = tracker.status(8.0)
    assert (said.state, said.reason, said.skipped, said.reconnects, said.frames) == ("running", "", 2, 1, 60)
