"""A picture file is read from outside: its claimed size, its essential parts, and never more than bytes in order."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from halimede.errors import DecodeError
from halimede.frames import decode
from halimede.frames.encodings import measure
from halimede.image_headers import DECODABLE, FRAMES, READERS, read_jpeg, read_png
from halimede.messages import Frame
from halimede.picture_files import JPEG_MAGIC, PNG_MAGIC
from tests.hostile_pictures import chunk, jpeg, jpeg_of_kind, png, segment

COLOURS = Image.fromarray(np.random.default_rng(2).integers(0, 256, (12, 20, 3), np.uint8)).resize((60, 44))
#: of 16 bits
DEEP = Image.fromarray(np.arange(48, dtype=np.uint16).reshape(6, 8) * 999)
PROFILE = b"any colour profile"

parts = st.tuples(st.sampled_from([b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tEXt", b"iCCP"]), st.binary(max_size=30))
segments = st.tuples(
    st.sampled_from([0xC0, 0xC2, 0xC4, 0xDA, 0xDB, 0xDD, 0xE0, 0xE1, 0xEE, 0xFE, 0xD8, 0xD9, 0xD0, 0xFF]),
    st.binary(max_size=30),
)


def framed(encoding: str, data: bytes) -> Frame:
    return Frame(id=bytes(16), encoding=encoding, data=memoryview(data))  # type: ignore[arg-type]


def measured_or_refused(encoding: str, data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        frame = framed(encoding, data)
        assert decode(frame).nbytes == measure(frame)


def saved(mode: str, form: str, **options: object) -> bytes:
    out = io.BytesIO()
    (DEEP if mode == "I;16" else COLOURS.convert(mode)).save(out, form, **options)
    return out.getvalue()


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK", "YCbCr"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_has_the_same_pixels_without_its_remarks(mode: str, progressive: bool) -> None:
    exif = Image.Exif()
    exif[0x010E] = "a description"
    options = {"progressive": progressive, "icc_profile": PROFILE, "exif": exif, "comment": b"x"}
    whole = saved(mode, "JPEG", **options)
    claimed = read_jpeg(memoryview(whole))
    assert (claimed.width, claimed.height) == (60, 44)
    left = b"".join(claimed.parts)
    assert PROFILE in whole
    assert PROFILE not in left
    assert len(left) < len(whole)
    expected = np.asarray(Image.open(io.BytesIO(whole)).convert("L" if mode == "L" else "RGB"))
    assert np.array_equal(decode(framed("jpeg", whole)), expected)
    assert measure(framed("jpeg", whole)) == expected.nbytes


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_png_has_the_same_pixels_without_its_remarks(mode: str) -> None:
    whole = saved(mode, "PNG", icc_profile=PROFILE)
    claimed = read_png(memoryview(whole))
    assert b"iCCP" in whole
    assert b"iCCP" not in b"".join(claimed.parts)
    image = Image.open(io.BytesIO(whole))
    assert (claimed.width, claimed.height) == image.size
    pixels = decode(framed("png", whole))
    if mode != "I;16":
        grey = mode in {"1", "L", "LA"}
        assert np.array_equal(pixels, np.asarray(image.convert("L" if grey else "RGB")))
    assert measure(framed("png", whole)) == pixels.nbytes


#: a film as phones put it behind a picture: it contains the bytes of other scans and ends by chance
FILM = b"\0\0\0\x18ftypmp42" + b"\xff\xda\0\x0c\xff\xd8\xff" * 200 + b"\xff\xd9" + bytes(6000)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize(
    "behind",
    [
        bytes(6000),
        FILM,
        FILM + b"\xff\xd9",
        b"MotionPhoto_Data" + FILM,  # gkv311/sview#138
        saved("RGB", "JPEG"),  # the second picture of an MPO file
    ],
    ids=["padding", "film", "film that ends as a picture", "samsung", "second picture"],
)
def test_a_jpeg_ends_at_its_own_end_whatever_follows(progressive: bool, behind: bytes) -> None:
    thumbnail = Image.Exif()
    thumbnail[0x010E] = "\xff\xd8\xff\xda\xff\xd9"  # its bytes are no end either
    whole = saved("RGB", "JPEG", progressive=progressive, exif=thumbnail)
    alone, followed = read_jpeg(memoryview(whole)), read_jpeg(memoryview(whole + behind))
    assert b"".join(followed.parts) == b"".join(alone.parts)
    assert followed.scans == alone.scans
    assert np.array_equal(decode(framed("jpeg", whole + behind)), decode(framed("jpeg", whole)))


def test_a_table_between_two_scans_may_contain_the_bytes_of_an_end() -> None:
    whole = saved("RGB", "JPEG", progressive=True)
    at = whole.rindex(b"\xff\xda")
    remark = b"\xff\xfe\0\x06\xff\xd9\xff\xda"
    odd = whole[:at] + remark + whole[at:] + bytes(5000)
    assert np.array_equal(decode(framed("jpeg", odd)), decode(framed("jpeg", whole)))


def test_a_spoiled_byte_that_looks_like_a_long_table_cuts_no_picture() -> None:
    whole = bytearray(saved("RGB", "JPEG"))
    whole[-12:-8] = b"\xff\xdb\xff\xf0"
    assert read_jpeg(memoryview(whole)).scans == 1


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.75])
def test_a_jpeg_that_is_cut_off_names_the_byte(progressive: bool, share: float) -> None:
    """Frames over a serial line lack their last packets (brendan-duncan/image#230)."""
    whole = saved("RGB", "JPEG", progressive=progressive)[:-2]
    data = whole[: int(len(whole) * share)]
    with pytest.raises(DecodeError, match=f"it is cut off after {len(data)} bytes: send the whole picture"):
        decode(framed("jpeg", data))


@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize("kind", sorted(FRAMES))
def test_only_kinds_that_are_decoded_at_each_scale_reach_a_decoder(kind: int, bits: int) -> None:
    """Of a lossless one libjpeg-turbo 3.1 writes each row whole, also into an array for a smaller scale."""
    data = memoryview(jpeg_of_kind(kind, bits))
    if kind in DECODABLE and bits == 8:
        assert read_jpeg(data).width == 8
    else:
        with pytest.raises(DecodeError, match=f"SOF{kind - 0xC0} with {bits} bits a sample: send a baseline"):
            read_jpeg(data)


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
@given(st.binary(max_size=400))
def test_any_bytes_are_a_picture_or_refused(encoding: str, data: bytes) -> None:
    for start in (b"", PNG_MAGIC, JPEG_MAGIC, png(8, 8)[:33], jpeg()[:160]):
        with contextlib.suppress(DecodeError):
            claimed = READERS[encoding](memoryview(start + data))
            assert sum(map(len, claimed.parts)) <= len(start + data)
        measured_or_refused(encoding, start + data)


@given(st.lists(parts, max_size=8), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_chunks_in_any_order_are_a_picture_or_refused(listed: list[tuple[bytes, bytes]], width: int, bad: int) -> None:
    whole = png(8, 8)[:33] + b"".join(chunk(kind, data) for kind, data in listed)
    for data in (whole, whole + bad.to_bytes(4) + b"IDAT", whole[:16] + width.to_bytes(4) + whole[20:]):
        measured_or_refused("png", data)


@given(st.lists(segments, max_size=8), st.booleans())
def test_segments_in_any_order_are_a_picture_or_refused(listed: list[tuple[int, bytes]], whole: bool) -> None:
    middle = b"".join(segment(marker, data) for marker, data in listed)
    data = jpeg()[:2] + middle + (jpeg()[2:] if whole else b"")
    measured_or_refused("jpeg", data)


@given(st.integers(0, 2**16), st.integers(0, 255))
def test_one_spoiled_byte_is_seen_or_does_no_harm(at: int, value: int) -> None:
    for encoding, whole in (("jpeg", saved("RGB", "JPEG", progressive=True)), ("png", saved("RGB", "PNG"))):
        data = bytearray(whole)
        data[at % len(data)] = value
        measured_or_refused(encoding, bytes(data))
