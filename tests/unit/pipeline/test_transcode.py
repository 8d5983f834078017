"""Samples are written as the service wants what goes up, never larger than it may be, and boxes come back in place."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from PIL import Image

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
from halimede.pipeline.transcode import Upload, UploadEncoder, write, write_regions
from tests.hostile_pictures import jpeg_that_claims, jpeg_with_scans, png, png_that_claims, zeros


def picture(width: int = 320, height: int = 240, noise: float = 10.0, channels: int = 3) -> np.ndarray:
    chance = np.random.default_rng(3)
    rows, columns = np.mgrid[0:height, 0:width]
    seen = 128 + 80 * np.sin(columns / 17)[..., None] * np.cos(rows / 23)[..., None] + np.zeros(channels)
    seen = (seen + chance.normal(0, noise, seen.shape)).clip(0, 255).astype(np.uint8)
    return seen if channels == 3 else seen[..., 0]


def refused(frame: Frame, wish: UploadFormat) -> OffloadError:
    with pytest.raises(OffloadError) as caught:
        write(frame, wish, SizeEstimator())
    return caught.value


@pytest.mark.parametrize("came", ["raw", "jpeg", "png"])
@pytest.mark.parametrize("wanted", ["raw", "jpeg", "png"])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_picture_becomes_any_encoding_in_its_size(came: str, wanted: str, channels: int) -> None:
    seen = picture(noise=2, channels=channels)
    frame = new_frame(seen, encoding=came, camera="cam0", sequence=7)  # type: ignore[arg-type]
    upload = write(frame, UploadFormat(encoding=wanted), SizeEstimator())  # type: ignore[arg-type]
    assert upload.shrunk is None
    assert upload.frame.encoding == wanted
    assert (upload.frame.id, upload.frame.camera, upload.frame.sequence) == (frame.id, "cam0", 7)
    pixels = decode(upload.frame)
    assert pixels.shape == seen.shape
    least = 0 if "jpeg" not in {came, wanted} else 40
    assert np.abs(pixels.astype(int) - seen).max() <= least
    assert measure(upload.frame) == seen.nbytes


@pytest.mark.parametrize("came", ["raw", "jpeg", "png"])
@pytest.mark.parametrize("most", [20_000, 6_000, 2_000, 1_024])
def test_what_is_too_large_becomes_a_jpeg_and_then_a_smaller_one(came: str, most: int) -> None:
    frame = new_frame(picture(), encoding=came)  # type: ignore[arg-type]
    upload = write(frame, UploadFormat(max_bytes=most), SizeEstimator())
    assert 0.5 * most < upload.frame.data.nbytes <= most
    assert upload.frame.encoding == "jpeg"
    height, width, _ = decode(upload.frame).shape
    x, y = upload.shrunk or (1.0, 1.0)
    assert (width * x, height * y) == pytest.approx((320, 240))
    assert (upload.shrunk is not None) == (most <= 6_000)


def test_a_grey_column_of_pixels_is_grey_and_a_named_encoding_stays() -> None:
    seen = picture(channels=1)[..., None]
    upload = write(new_frame(seen), UploadFormat(encoding="png", max_bytes=8_000), SizeEstimator())
    assert (upload.frame.encoding, decode(upload.frame).ndim) == ("png", 2)
    assert upload.frame.data.nbytes <= 8_000
    upload = write(new_frame(seen), UploadFormat(encoding="raw", max_bytes=8_000), SizeEstimator())
    assert 0.9 * 8_000 < upload.frame.data.nbytes <= 8_000


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
    frame = new_frame(seen if channels == 3 else seen[..., 0])
    try:
        upload = write(frame, UploadFormat(encoding=encoding, max_bytes=most), SizeEstimator())  # type: ignore[arg-type]
    except OffloadError as error:
        assert error.reason is OffloadReason.TOO_LARGE  # noqa: PT017  # it may fit or not
        assert min(width, height) < 20
        return
    assert upload.frame.data.nbytes <= most
    assert encoding in {"as-it-came", upload.frame.encoding}
    decode(upload.frame)


def test_boxes_of_the_answer_are_in_the_pixels_of_the_frame_as_it_was() -> None:
    frame = new_frame(picture())
    frame.edge = Prediction(boxes=[Box(32, 24, 320, 240, 0.5, "a")])
    upload = write(frame, UploadFormat(max_bytes=2_000), SizeEstimator())
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
    frame = new_frame(picture(1283, 723, channels=channels), encoding="jpeg")
    upload, sent, decoded = second_upload(frame, most, monkeypatch)
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
    answer = Prediction(boxes=[Box(x - 1, y - 1, x + 1, y + 1, 0.5)])
    reply = upload.read(Reply(id=b"a", worker="c", prediction=answer))
    assert reply.prediction
    assert reply.prediction.boxes
    box = reply.prediction.boxes[0]
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
    sent = transcode.resized(scaled, Geometry.of(1280, 720, 720 // scaled.shape[0]), *size)
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
    frame = new_frame(picture(8, 8))
    plain = Reply(id=frame.id, worker="c", prediction=Prediction(label="x"))
    boxed = Reply(id=frame.id, worker="c", prediction=Prediction(boxes=[Box(0, 0, 1, 1, 0.5)]))
    assert Upload(frame, (2.0, 2.0)).read(plain) is plain
    assert Upload(frame).read(boxed) is boxed


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((400, 400), np.float32), np.zeros((2, 90, 90, 3), np.uint8), np.zeros((90, 90, 4), np.uint8),
     np.zeros(9000, np.uint8), np.zeros((90, 90), np.int8)],
)  # fmt: skip
def test_what_is_no_picture_is_named_and_not_sent(pixels: np.ndarray) -> None:
    for encoding in ("jpeg", "png"):
        error = refused(new_frame(pixels), UploadFormat(encoding=encoding))  # type: ignore[arg-type]
        assert error.reason is OffloadReason.NO_PICTURE
        assert str(pixels.dtype) in error.detail
        assert str(list(pixels.shape)) in error.detail
    error = refused(new_frame(pixels), UploadFormat(max_bytes=2000))
    assert (error.reason, "2000" in error.detail) == (OffloadReason.TOO_LARGE, True)


def test_a_sliver_that_cannot_fit_is_named() -> None:
    error = refused(new_frame(picture(16_000, 9)), UploadFormat(encoding="raw", max_bytes=1024))
    assert error.reason is OffloadReason.TOO_LARGE
    assert "16000 x 9" in error.detail


@pytest.mark.parametrize(
    "wish", [UploadFormat(encoding="jpeg"), UploadFormat(encoding="png"), UploadFormat(max_bytes=2000)]
)
def test_a_raw_picture_that_no_file_may_have_is_named(wish: UploadFormat) -> None:
    error = refused(new_frame(np.zeros((2, 20_000), np.uint8)), wish)
    assert (error.reason, "20000" in error.detail) == (OffloadReason.TOO_LARGE, True)


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
    error = refused(frame, UploadFormat(encoding="raw"))
    assert error.reason is OffloadReason.ERROR
    with pytest.raises(DecodeError):
        decode(frame)


async def test_what_is_wanted_passes_without_the_thread_and_the_rest_is_counted() -> None:
    frame, large = new_frame(picture(20, 20)), new_frame(picture())
    async with ModelThread("upload") as thread:
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


async def test_writing_is_waited_for_only_as_long_as_the_sample_may_wait() -> None:
    done = threading.Event()
    async with ModelThread("upload") as thread:
        uploads = UploadEncoder(UploadFormat(encoding="jpeg"), thread)
        busy = asyncio.create_task(thread.call(done.wait, 60))
        await asyncio.sleep(0)
        with pytest.raises(OffloadError) as caught:
            await uploads.write(new_frame(picture()), 0.02)
        done.set()
        await busy
    assert caught.value.reason is OffloadReason.DEADLINE
    assert not caught.value.sent


async def test_nothing_is_written_while_the_way_is_closed() -> None:
    circuit = CircuitBreaker(retry_s=100)
    async with ModelThread("upload") as thread:
        uploads = UploadEncoder(UploadFormat(encoding="jpeg"), thread, circuit)
        circuit.nobody(asyncio.get_running_loop().time())
        with pytest.raises(OffloadError) as caught:
            await uploads.write(new_frame(picture()), 5)
        assert caught.value.reason is OffloadReason.CIRCUIT_OPEN
        circuit.reconsider()
        assert (await uploads.write(new_frame(picture()), 5)).frame.encoding == "jpeg"
    assert (uploads.times.count, uploads.refused) == (1, {})


async def test_a_sample_over_the_brokers_limit_is_made_smaller_or_refused_with_that_limit() -> None:
    small, large = new_frame(picture(20, 20)), new_frame(picture(600, 600))
    limit = REQUEST_BYTES + 60_000
    async with MemoryBus("edge", MemoryBroker(max_packet=limit)) as bus, ModelThread("upload") as thread:
        uploads = UploadEncoder(UploadFormat(), thread, bus=bus)
        assert (await uploads.write(large, 5)).frame is large, "the limit is not known before the first connection"
        await bus.wait_connected(5)
        assert (await uploads.write(small, 5)).frame is small
        upload = await uploads.write(large, 5)
        assert upload.frame.data.nbytes <= 60_000 < large.data.nbytes
        with pytest.raises(
            OffloadError, match=f"more than the broker's limit of {limit} bytes a message: raise it"
        ) as caught:
            await uploads.write(new_frame(np.zeros(9000)), 5)
    assert caught.value.reason is OffloadReason.TOO_LARGE
    assert uploads.refused == {"too-large": 1}


# --- regions ------------------------------------------------------------------------------------------------------

HERE, SURE = Box(100, 80, 140, 120, 0.4, "a"), Box(250, 40, 290, 80, 0.9, "a")


def with_boxes(came: str, *, channels: int = 3, boxes: list[Box] | None = None) -> Frame:
    frame = new_frame(picture(channels=channels), encoding=came)  # type: ignore[arg-type]
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
    assert upload.frame.data.nbytes < min(most or 1e9, 0.95 * frame.data.nbytes)
    assert upload.frame.encoding == came or (upload.frame.encoding == "jpeg" and most)
    assert len(decode(upload.frame).shape) == (2 if channels == 1 else 3)
    reply = upload.read(Reply(id=frame.id, worker="c", prediction=Prediction(boxes=upload.frame.edge.boxes)))
    assert reply.prediction
    assert reply.prediction.boxes
    assert reply.prediction.boxes[1] == SURE
    (x1, y1, x2, y2) = (getattr(reply.prediction.boxes[0], name) for name in ("x1", "y1", "x2", "y2"))
    assert (x1, y1, x2, y2) == pytest.approx((HERE.x1, HERE.y1, HERE.x2, HERE.y2))


def test_a_frame_that_regions_do_not_make_smaller_is_no_upload_of_regions() -> None:
    everywhere = [Box(0, 0, 320, 200, 0.4, "a")]
    for frame in (
        with_boxes("raw"),  # in place, with as many pixels as the frame
        with_boxes("jpeg", boxes=everywhere),
        with_boxes("jpeg", boxes=[]),
        with_boxes("jpeg", boxes=[SURE]),
        new_frame(np.zeros((7, 9), np.float32)),
        new_frame(picture()),
    ):
        assert write_regions(frame, UploadFormat(), SizeEstimator(), RegionRule()) is None


def test_a_frame_without_a_region_is_scaled_where_the_rule_scales() -> None:
    frame = with_boxes("png", boxes=[])
    upload = write_regions(frame, UploadFormat(), SizeEstimator(), RegionRule(scale=0.5))
    assert upload
    assert decode(upload.frame).shape == (120, 160, 3)
    answer = Prediction(boxes=[Box(10, 20, 30, 40, 0.9, "a")])
    reply = upload.read(Reply(id=frame.id, worker="c", prediction=answer))
    assert reply.prediction
    assert reply.prediction.boxes == [Box(20, 40, 60, 80, 0.9, "a")]


@pytest.mark.parametrize("encoding", ["as-it-came", "jpeg"])
async def test_audits_do_not_change_the_estimated_size_of_regions(encoding: UploadEncoding) -> None:
    frame = with_boxes("png")
    async with ModelThread("upload") as thread:
        uploads = UploadEncoder(UploadFormat(encoding=encoding), thread, regions=RegionRule())
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
