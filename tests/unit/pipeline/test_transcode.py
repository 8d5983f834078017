"""Samples are written as the service wants what goes up, never larger than it may be, and boxes come back in place."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from PIL import Image
from structlog.testing import capture_logs

from halimede.api.deferral import UploadEncoding
from halimede.api.processing import Resize
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.errors import DecodeError
from halimede.frames import decode, encode_image, new_frame
from halimede.frames.encodings import Scaling, measure
from halimede.frames.transcode_policy import REQUEST_BYTES, SizeEstimator, UploadFormat
from halimede.inference.decoding import Decoding
from halimede.inference.geometry import Geometry
from halimede.messages import Box, Frame, Prediction, Reply
from halimede.mining.calibration_file import RegionRule
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.offload.limits import CircuitBreaker
from halimede.pipeline import transcode
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.transcode import Upload, UploadEncoder, frame_size, write, write_regions
from tests.hostile_pictures import jpeg_that_claims, jpeg_with_scans, png, png_that_claims, zeros
from tests.worlds import connected


def picture(width: int = 320, height: int = 240, noise: float = 10.0, channels: int = 3) -> np.ndarray:
    chance = np.random.default_rng(3)
    rows, columns = np.mgrid[0:height, 0:width]
    seen = 128 + 80 * np.sin(columns / 17)[..., None] * np.cos(rows / 23)[..., None] + np.zeros(channels)
    seen = (seen + chance.normal(0, noise, seen.shape)).clip(0, 255).astype(np.uint8)
    return seen if channels == 3 else seen[..., 0]


def shown(width: int = 320, height: int = 240, *, came: Any = "raw", **options: Any) -> Frame:
    """Return a frame with such a picture."""
    return new_frame(picture(width, height, **options), encoding=came)


def written(frame: Frame, *, encoding: Any = "as-it-came", most: int | None = None) -> Upload:
    """Return the upload of a frame, before which there was none."""
    return write(frame, UploadFormat(encoding=encoding, max_bytes=most), SizeEstimator())


def boxes_of(upload: Upload, *boxes: Box) -> list[Box]:
    """Return boxes of the answer to an upload as they are read."""
    reply = upload.read(Reply(id=upload.frame.id, worker="c", prediction=Prediction(boxes=list(boxes))))
    assert reply.prediction
    assert reply.prediction.boxes is not None
    return reply.prediction.boxes


def refused(frame: Frame, *, encoding: Any = "as-it-came", most: int | None = None) -> OffloadError:
    with pytest.raises(OffloadError) as caught:
        written(frame, encoding=encoding, most=most)
    return caught.value


@pytest.mark.parametrize(
    ("array", "size"),
    [
        (np.zeros((4, 5), np.uint8), (5, 4)),
        (np.zeros((4, 5, 3), np.uint8), (5, 4)),
        (np.zeros(4, np.uint8), None),
        (np.zeros((2, 4, 5, 3), np.uint8), None),
        (np.zeros((4, 5), np.float32), None),
        (np.zeros((4, 5), np.uint16), None),
    ],
)
def test_only_flat_arrays_of_bytes_have_the_size_of_a_picture(array: np.ndarray, size: tuple[int, int] | None) -> None:
    assert frame_size(new_frame(array)) == size


@pytest.mark.parametrize("came", ["raw", "jpeg", "png"])
@pytest.mark.parametrize("wanted", ["raw", "jpeg", "png"])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_picture_becomes_any_encoding_in_its_size(came: str, wanted: str, channels: int) -> None:
    seen = picture(noise=2, channels=channels)
    frame = new_frame(seen, encoding=came, camera="cam0", sequence=7)  # type: ignore[arg-type]
    upload = written(frame, encoding=wanted)
    assert (upload.shrunk, upload.frame.encoding) == (None, wanted)
    assert (upload.frame.id, upload.frame.camera, upload.frame.sequence) == (frame.id, "cam0", 7)
    pixels = decode(upload.frame)
    assert pixels.shape == seen.shape
    least = 0 if "jpeg" not in {came, wanted} else 40
    assert np.abs(pixels.astype(int) - seen).max() <= least
    assert measure(upload.frame) == seen.nbytes


@pytest.mark.parametrize("came", ["raw", "jpeg", "png"])
@pytest.mark.parametrize("most", [20_000, 6_000, 2_000, 1_024])
def test_what_is_too_large_becomes_a_jpeg_and_then_a_smaller_one(came: str, most: int) -> None:
    upload = written(shown(came=came), most=most)
    assert 0.5 * most < upload.frame.data.nbytes <= most
    assert upload.frame.encoding == "jpeg"
    height, width, _ = decode(upload.frame).shape
    x, y = upload.shrunk or (1.0, 1.0)
    assert (width * x, height * y) == pytest.approx((320, 240))
    assert (upload.shrunk is not None) == (most <= 6_000)


def test_a_grey_column_of_pixels_is_grey_and_a_named_encoding_stays() -> None:
    seen = picture(channels=1)[..., None]
    upload = written(new_frame(seen), encoding="png", most=8_000)
    assert (upload.frame.encoding, decode(upload.frame).ndim) == ("png", 2)
    assert upload.frame.data.nbytes <= 8_000
    assert 0.9 * 8_000 < written(new_frame(seen), encoding="raw", most=8_000).frame.data.nbytes <= 8_000


@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    channels=st.sampled_from([1, 3]),
    encoding=st.sampled_from(["as-it-came", "raw", "jpeg", "png"]),
    most=st.integers(1024, 9000),
)
def test_nothing_is_ever_larger_than_it_may_be(
    width: int, height: int, channels: int, encoding: str, most: int
) -> None:
    seen = np.random.default_rng(width).integers(0, 256, (height, width, channels)).astype(np.uint8)
    try:
        upload = written(new_frame(seen if channels == 3 else seen[..., 0]), encoding=encoding, most=most)
    except OffloadError as error:
        assert error.reason is OffloadReason.TOO_LARGE  # noqa: PT017  # it may fit or not
        assert min(width, height) < 20
        return
    assert upload.frame.data.nbytes <= most
    assert encoding in {"as-it-came", upload.frame.encoding}
    decode(upload.frame)


def test_boxes_of_the_answer_are_in_the_pixels_of_the_frame_as_it_was() -> None:
    frame = shown()
    frame.edge = Prediction(boxes=[Box(32, 24, 320, 240, 0.5, "a")])
    upload = written(frame, most=2_000)
    height, width, _ = decode(upload.frame).shape
    assert upload.frame.edge
    assert upload.frame.edge.boxes
    box = upload.frame.edge.boxes[0]
    assert (box.x1, box.y1, box.x2, box.y2) == pytest.approx((width / 10, height / 10, width, height))
    said = Prediction(label="x", boxes=[box, Box(0, 0, width / 2, height / 4, 0.9, 3)], embeddings=b"ab")
    reply = upload.read(Reply(id=frame.id, worker="c", prediction=said, batch=3))
    assert reply.prediction
    assert reply.prediction.boxes == [
        Box(pytest.approx(32), pytest.approx(24), pytest.approx(320), pytest.approx(240), 0.5, "a"),
        Box(0, 0, pytest.approx(160), pytest.approx(60), 0.9, 3),
    ]
    assert (reply.prediction.label, reply.prediction.embeddings, reply.batch) == ("x", b"ab", 3)


def second_upload(
    frame: Frame, most: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Upload, np.ndarray, tuple[int, ...]]:
    """Return the upload of a frame whose size is known from another one, its pixels, and the decoded shape."""
    densities, shapes = SizeEstimator(), list[tuple[int, ...]]()

    def decode_and_record(frame: Frame, scaling: Scaling | None = None) -> np.ndarray:
        pixels = decode(frame, scaling)
        shapes.append(pixels.shape)
        return pixels

    monkeypatch.setattr(transcode, "decode", decode_and_record)
    write(frame, UploadFormat(max_bytes=most), densities)
    upload = write(frame, UploadFormat(max_bytes=most), densities)
    assert upload.frame.data.nbytes <= most
    assert shapes[0] == decode(frame).shape, "without earlier pictures the whole one is tried first"
    return upload, decode(upload.frame), shapes[1]


@pytest.mark.parametrize(("most", "scale"), [(60_000, 1), (30_000, 2), (9_000, 4), (2_500, 8)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_jpeg_is_decoded_no_larger_than_its_first_attempt_needs(
    most: int, scale: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload, sent, decoded = second_upload(shown(1283, 723, channels=channels, came="jpeg"), most, monkeypatch)
    assert decoded[:2] == (-(-723 // scale), -(-1283 // scale))
    assert all(side >= least for side, least in zip(decoded, sent.shape, strict=True))
    height, width = sent.shape[:2]
    assert upload.shrunk == pytest.approx((1283 / width, 723 / height))


def test_boxes_come_back_in_place_if_a_scale_divides_no_side(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = picture(1001, 777, noise=40, channels=1) // 4
    pixels[705:745, 905:985] = 255
    upload, sent, decoded = second_upload(new_frame(pixels, encoding="jpeg"), 1_500, monkeypatch)
    assert decoded == (98, 126)
    bright = np.clip(sent.astype(float) - 128, 0, None)
    rows, columns = np.mgrid[0 : sent.shape[0], 0 : sent.shape[1]] + 0.5
    x, y = (columns * bright).sum() / bright.sum(), (rows * bright).sum() / bright.sum()
    (box,) = boxes_of(upload, Box(x - 1, y - 1, x + 1, y + 1, 0.5))
    assert ((box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2) == pytest.approx((945, 725), abs=2.5)


@pytest.mark.parametrize("size", [(420, 236), (310, 174), (150, 84)])
def test_a_picture_of_a_smaller_scale_looks_like_one_made_of_all_pixels_and_is_not_blurred_twice(
    size: tuple[int, int],
) -> None:
    chance, pixels = np.random.default_rng(4), np.full((720, 1280, 3), 90, np.uint8)
    for left, top, extent in zip(*chance.integers(0, (1280, 720, 160), (600, 3)).T, strict=True):
        pixels[top : top + extent, left : left + extent // 3] = chance.integers(0, 256, 3)
    frame = new_frame(pixels, encoding="jpeg")
    scaled = decode(frame, Decoding(Resize(width=size[0], height=size[1])))
    assert scaled.shape < pixels.shape
    sent = transcode.resize(scaled, Geometry.of(1280, 720, 720 // scaled.shape[0]), *size)
    blurred = Image.fromarray(scaled).resize(size, Image.Resampling.BILINEAR)
    whole = Image.fromarray(decode(frame))
    assert decibels(sent, whole.resize(size, Image.Resampling.BILINEAR)) > 30
    sharp = whole.resize(size, Image.Resampling.LANCZOS)
    assert decibels(sent, sharp) > decibels(blurred, sharp) + 1


def decibels(picture: ArrayLike, reference: ArrayLike) -> float:
    """Return the PSNR of a picture."""
    difference = np.asarray(picture).astype(float) - np.asarray(reference).astype(float)
    return float(10 * np.log10(255**2 / np.square(difference).mean()))


def test_an_answer_without_boxes_or_of_a_whole_picture_is_as_it_came() -> None:
    frame = shown(8, 8)
    for prediction in (None, Prediction(label="x")):
        plain = Reply(id=frame.id, worker="c", prediction=prediction)
        assert Upload(frame, (2.0, 2.0)).read(plain) is plain
    boxed = Reply(id=frame.id, worker="c", prediction=Prediction(boxes=[Box(0, 0, 1, 1, 0.5)]))
    assert Upload(frame).read(boxed) is boxed


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((400, 400), np.float32), np.zeros((2, 90, 90, 3), np.uint8), np.zeros((90, 90, 4), np.uint8),
     np.zeros(9000, np.uint8), np.zeros((90, 90), np.int8)],
)  # fmt: skip
def test_what_is_no_picture_is_named_and_not_sent(pixels: np.ndarray) -> None:
    for encoding in ("jpeg", "png"):
        error = refused(new_frame(pixels), encoding=encoding)
        assert error.reason is OffloadReason.NO_PICTURE
        assert str(pixels.dtype) in error.detail
        assert str(list(pixels.shape)) in error.detail
    error = refused(new_frame(pixels), most=2000)
    assert (error.reason, "2000" in error.detail) == (OffloadReason.TOO_LARGE, True)


@pytest.mark.parametrize(
    ("pixels", "encoding", "most", "part"),
    [
        (picture(16_000, 9), "raw", 1024, "16000 x 9"),
        (np.zeros((2, 20_000), np.uint8), "jpeg", None, "20000"),
        (np.zeros((2, 20_000), np.uint8), "png", None, "20000"),
        (np.zeros((2, 20_000), np.uint8), "as-it-came", 2000, "20000"),
    ],
)
def test_a_sliver_that_cannot_fit_or_that_no_file_may_have_is_named(
    pixels: np.ndarray, encoding: str, most: int | None, part: str
) -> None:
    error = refused(new_frame(pixels), encoding=encoding, most=most)
    assert (error.reason, part in error.detail) == (OffloadReason.TOO_LARGE, True)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("png", png_that_claims(60_000, 60_000)),
        ("jpeg", jpeg_that_claims(60_000, 60_000)),
        ("jpeg", jpeg_with_scans(4000, 200)),
        ("png", png(64, 64, pixels=zeros(64))[:-20]),
        ("jpeg", encode_image(picture(), "jpeg")[:2000]),
    ],
)
def test_hostile_pictures_are_refused_before_they_cost_anything(encoding: str, data: bytes) -> None:
    frame = Frame(id=bytes(16), encoding=encoding, data=memoryview(data))  # type: ignore[arg-type]
    assert refused(frame, encoding="raw").reason is OffloadReason.ERROR
    with pytest.raises(DecodeError):
        decode(frame)


async def test_what_is_wanted_passes_without_the_thread_and_the_rest_is_counted(thread: ModelThread) -> None:
    frame, large = shown(20, 20), shown()
    uploads = UploadEncoder(UploadFormat(max_bytes=6_000), thread)
    assert (await uploads.write(frame, 1)).frame is frame
    assert (uploads.size(frame), uploads.size(large)) == (1200, 6_000)
    upload = await uploads.write(large, 5)
    assert uploads.size(large) == upload.frame.data.nbytes
    with pytest.raises(OffloadError):
        await uploads.write(new_frame(np.zeros(9000)), 5)
    change = "size" if upload.shrunk else "encoding"
    assert uploads.ready == {("raw", "none"): 1, ("jpeg", change): 1}
    assert (uploads.before, uploads.after) == (large.data.nbytes, upload.frame.data.nbytes)
    assert (uploads.times.count, uploads.refused) == (1, {"too-large": 1})


async def test_writing_is_waited_for_only_as_long_as_the_sample_may_wait(thread: ModelThread) -> None:
    done, uploads = threading.Event(), UploadEncoder(UploadFormat(encoding="jpeg"), thread)
    busy = asyncio.create_task(thread.call(done.wait, 60))
    await asyncio.sleep(0)
    with pytest.raises(OffloadError) as caught:
        await uploads.write(shown(), 0.02)
    done.set()
    await busy
    assert (caught.value.reason, caught.value.sent) == (OffloadReason.DEADLINE, False)


async def test_nothing_is_written_while_the_way_is_closed(thread: ModelThread) -> None:
    circuit = CircuitBreaker(retry_s=100)
    uploads = UploadEncoder(UploadFormat(encoding="jpeg"), thread, circuit)
    circuit.nobody(asyncio.get_running_loop().time())
    with pytest.raises(OffloadError) as caught:
        await uploads.write(shown(), 5)
    assert caught.value.reason is OffloadReason.CIRCUIT_OPEN
    circuit.reconsider()
    assert (await uploads.write(shown(), 5)).frame.encoding == "jpeg"
    assert (uploads.times.count, uploads.refused) == (1, {})


async def test_a_sample_over_the_brokers_limit_is_made_smaller_or_refused_with_that_limit(thread: ModelThread) -> None:
    small, large = shown(20, 20), shown(600, 600)
    limit = REQUEST_BYTES + 60_000
    bus = MemoryBus("edge", MemoryBroker(max_packet=limit))
    uploads = UploadEncoder(UploadFormat(), thread, bus=bus)
    assert (await uploads.write(large, 5)).frame is large, "the limit is not known before the first connection"
    async with connected(bus):
        assert (await uploads.write(small, 5)).frame is small
        upload = await uploads.write(large, 5)
        assert upload.frame.data.nbytes <= 60_000 < large.data.nbytes
        text = f"more than the broker's limit of {limit} bytes a message: raise it"
        with pytest.raises(OffloadError, match=text) as caught:
            await uploads.write(new_frame(np.zeros(9000)), 5)
    assert (caught.value.reason, uploads.refused) == (OffloadReason.TOO_LARGE, {"too-large": 1})


# --- regions ------------------------------------------------------------------------------------------------------

HERE, SURE = Box(100, 80, 140, 120, 0.4, "a"), Box(250, 40, 290, 80, 0.9, "a")


def with_boxes(came: str, *, channels: int = 3, boxes: list[Box] | None = None) -> Frame:
    frame = shown(came=came, channels=channels)
    frame.edge = Prediction(boxes=[HERE, SURE] if boxes is None else boxes)
    return frame


@pytest.mark.parametrize("came", ["jpeg", "png", "raw"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("most", [None, 2_000])
@pytest.mark.parametrize("rule", [RegionRule(canvas=0.25), RegionRule(scale=0.5, canvas=0.25), RegionRule(scale=0.75)])
def test_boxes_of_regions_come_back_however_they_are_encoded(
    came: str, channels: int, most: int | None, rule: RegionRule
) -> None:
    frame = with_boxes(came, channels=channels)
    upload = write_regions(frame, UploadFormat(max_bytes=most), SizeEstimator(), rule)
    assert upload
    assert upload.frame.edge
    assert upload.frame.edge.boxes
    assert upload.frame.data.nbytes < min(most or 1e9, 0.95 * frame.data.nbytes)
    assert upload.frame.encoding == came or (upload.frame.encoding == "jpeg" and most)
    assert len(decode(upload.frame).shape) == (2 if channels == 1 else 3)
    here, sure = boxes_of(upload, *upload.frame.edge.boxes)
    assert sure == SURE
    assert (here.x1, here.y1, here.x2, here.y2) == pytest.approx((HERE.x1, HERE.y1, HERE.x2, HERE.y2))


def test_a_frame_that_regions_do_not_make_smaller_is_no_upload_of_regions() -> None:
    everywhere = [Box(0, 0, 320, 200, 0.4, "a")]
    for frame in (
        with_boxes("raw"),  # in place, with as many pixels as the frame
        with_boxes("jpeg", boxes=everywhere),
        with_boxes("jpeg", boxes=[]),
        with_boxes("jpeg", boxes=[SURE]),
        new_frame(np.zeros((7, 9), np.float32)),
        shown(),
    ):
        assert write_regions(frame, UploadFormat(), SizeEstimator(), RegionRule()) is None


def test_a_frame_without_a_region_is_scaled_where_the_rule_scales() -> None:
    upload = write_regions(with_boxes("png", boxes=[]), UploadFormat(), SizeEstimator(), RegionRule(scale=0.5))
    assert upload
    assert decode(upload.frame).shape == (120, 160, 3)
    assert boxes_of(upload, Box(10, 20, 30, 40, 0.9, "a")) == [Box(20, 40, 60, 80, 0.9, "a")]


@pytest.mark.parametrize("encoding", ["as-it-came", "jpeg"])
async def test_audits_do_not_change_the_estimated_size_of_regions(
    thread: ModelThread, encoding: UploadEncoding
) -> None:
    frame, uploads = with_boxes("png"), UploadEncoder(UploadFormat(encoding=encoding), thread, regions=RegionRule())
    upload = await uploads.write(frame, 5)
    assert upload.regions
    assert not (await uploads.write(frame, 5, whole=True)).regions
    assert uploads.size(frame) == upload.frame.data.nbytes


def test_a_damaged_frame_has_no_regions() -> None:
    frame = with_boxes("jpeg")
    frame.data = frame.data[: len(frame.data) // 2]
    with pytest.raises(OffloadError) as caught:
        write_regions(frame, UploadFormat(), SizeEstimator(), RegionRule())
    assert caught.value.reason is OffloadReason.ERROR


def test_the_size_of_the_next_upload_is_expected_as_the_recent_mean() -> None:
    uploads = UploadEncoder(UploadFormat(encoding="jpeg"), ModelThread())
    for size, mean in ((1000, 1000), (2000, 1100), (2000, 1190)):
        uploads._learn(size, whole=False)
        assert uploads.size(shown()) == mean


async def test_samples_that_cannot_be_encoded_are_counted_and_not_all_logged() -> None:
    uploads = UploadEncoder(UploadFormat(encoding="jpeg"), ModelThread())
    with capture_logs() as logs:
        for _ in range(5):
            uploads._refuse(OffloadError(OffloadReason.NO_PICTURE, "detail"))
    assert (len(logs), uploads.refused) == (1, {OffloadReason.NO_PICTURE: 5})


@pytest.mark.parametrize(
    ("format_", "regions", "mean", "sizes"),
    [
        (UploadFormat(), None, 700, (1200, 230_400)),
        (UploadFormat(max_bytes=1200), None, 700, (1200, 700)),
        (UploadFormat(max_bytes=1200), None, 0, (1200, 1200)),
        (UploadFormat(max_bytes=1199), None, 0, (1199, 1199)),
        (UploadFormat(encoding="raw"), None, 700, (1200, 230_400)),
        (UploadFormat(encoding="jpeg"), None, 700, (700, 700)),
        (UploadFormat(encoding="jpeg"), None, 0, (1200, 230_400)),
        (UploadFormat(encoding="jpeg", max_bytes=1189), None, 1190, (1189, 1189)),
        (UploadFormat(), RegionRule(), 0, (1200, 230_400)),
        (UploadFormat(), RegionRule(), 5000, (1200, 5000)),
    ],
)
def test_the_size_of_an_upload_is_that_of_the_frame_or_of_the_uploads_before_it(
    format_: UploadFormat, regions: RegionRule | None, mean: int, sizes: tuple[int, int]
) -> None:
    uploads = UploadEncoder(format_, ModelThread(), regions=regions)
    if mean:
        uploads._learn(mean, whole=False)
    assert (uploads.size(shown(20, 20)), uploads.size(shown())) == sizes


@pytest.mark.parametrize(("spare", "change"), [(0, "none"), (-1, "size")])
async def test_a_frame_is_sent_as_it_came_up_to_the_brokers_limit(thread: ModelThread, spare: int, change: str) -> None:
    frame = shown(100, 100, noise=90)
    limit = REQUEST_BYTES + frame.data.nbytes + spare
    async with connected(MemoryBus("edge", MemoryBroker(max_packet=limit))) as bus:
        uploads = UploadEncoder(UploadFormat(encoding="raw"), thread, bus=bus)
        await uploads.write(frame, 20)
        assert uploads.ready == {("raw", change): 1}
        assert uploads.size(frame) == frame.data.nbytes


async def test_only_encoded_uploads_and_regions_change_the_expected_size_and_each_has_its_change(
    thread: ModelThread,
) -> None:
    uploads = UploadEncoder(UploadFormat(encoding="jpeg"), thread, regions=RegionRule())
    frame, encoded = with_boxes("raw"), shown(came="png")
    assert (await uploads.write(frame, 20)).regions
    mean = uploads._mean
    await uploads.write(with_boxes("jpeg", boxes=[]), 20)
    assert mean > 0
    assert uploads._mean != mean, "a frame that is sent instead of its regions counts"
    assert set(uploads.ready) == {("jpeg", "regions"), ("jpeg", "none")}
    uploads.regions, mean = None, uploads._mean
    await uploads.write(with_boxes("jpeg"), 20)
    assert uploads._mean == mean
    before = frame.data.nbytes + encoded.data.nbytes
    await uploads.write(encoded, 20)
    assert uploads.ready["jpeg", "encoding"] == 1
    assert uploads.before == before


@pytest.mark.parametrize(("side", "box_side"), [(1, 1), (3, 2)])
def test_a_tiny_frame_has_at_least_a_pixel_at_any_scale(side: int, box_side: int) -> None:
    frame = new_frame(np.zeros((side, side), np.uint8))
    frame.edge = Prediction(boxes=[])
    upload = write_regions(frame, UploadFormat(encoding="raw"), SizeEstimator(), RegionRule(scale=0.5))
    assert upload is None or decode(upload.frame).shape == (box_side, box_side)
    assert (upload is None) == (side == 1)


def test_an_upload_has_the_milliseconds_from_its_decoding_to_its_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=iter([1.0, 1.25]).__next__)
    monkeypatch.setattr(transcode, "time", clock)
    assert written(shown(20, 20), encoding="png").ms == 250.0


@pytest.mark.parametrize("channels", [1, 3])
def test_a_much_smaller_picture_is_first_reduced_to_twice_its_size(channels: int) -> None:
    pixels = picture(160, 96, channels=channels)
    sent = transcode.resize(pixels, Geometry.of(160, 96), 16, 10)
    image = Image.fromarray(pixels).resize((16, 10), Image.Resampling.BILINEAR, box=(0, 0, 160, 96), reducing_gap=2.0)
    assert np.array_equal(sent, np.asarray(image))
    assert transcode.resize(pixels, Geometry.of(160, 96), 160, 96) is pixels
    assert transcode.resize(pixels, Geometry.of(160, 96), 160, 95).shape[:2] == (95, 160)
    assert transcode.resize(pixels, Geometry.of(160, 96), 159, 96).shape[:2] == (96, 159)
