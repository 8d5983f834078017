"""Pixels come out as they went in, and nothing is allocated before its size is known to be allowed."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from halimede.errors import DecodeError, InvalidFieldError
from halimede.frames import decode, encode_image, new_frame
from halimede.frames.encodings import DTYPES, ImageEncoding, measure, register
from halimede.image_headers import MAX_SIDE, read_jpeg
from halimede.messages import Frame
from tests.hostile_pictures import jpeg_with_rows
from tests.jpeg_kinds import SIDES, kinds
from tests.properties import examples


def framed(data: bytes, encoding: str = "png") -> Frame:
    return Frame(id=bytes(16), encoding=encoding, data=memoryview(data))  # type: ignore[arg-type]


def saved(image: Image.Image, form: str = "PNG") -> bytes:
    out = io.BytesIO()
    image.save(out, format=form)
    return out.getvalue()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_raw_data_comes_back_as_a_read_only_view_of_the_buffer(dtype: str) -> None:
    image = np.arange(24).reshape(2, 3, 4).astype(dtype)
    frame = new_frame(image)
    array = decode(frame)
    assert np.array_equal(array, image)
    assert (array.dtype, array.flags.writeable, array.flags.owndata) == (np.dtype(dtype), False, False)
    assert np.shares_memory(array, np.frombuffer(frame.data, np.uint8))


@given(arrays.arrays(np.uint8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=20)))
def test_png_keeps_every_grey_pixel(image: np.ndarray) -> None:
    assert np.array_equal(decode(framed(encode_image(image, "png"))), image)


def test_jpeg_keeps_shape_and_about_the_colour() -> None:
    image = np.full((16, 24, 3), (10, 120, 240), np.uint8)
    array = decode(framed(encode_image(image, "jpeg"), "jpeg"))
    assert array.shape == image.shape
    assert np.abs(array.astype(int) - image).max() < 12


@given(
    arrays.arrays(np.uint8, st.tuples(st.integers(1, 70), st.integers(1, 70), st.just(3))),
    st.sampled_from(["RGB", "L", "CMYK", "stored RGB"]),
    st.fixed_dictionaries({
        "quality": st.integers(1, 100), "subsampling": st.integers(0, 2), "progressive": st.booleans(),
        "restart_marker_blocks": st.integers(0, 3),
    }),
)  # fmt: skip
def test_a_jpeg_has_the_pixels_that_pillow_reads(image: np.ndarray, mode: str, options: dict[str, int]) -> None:
    picture, out = Image.fromarray(image), io.BytesIO()
    picture = picture if mode == "stored RGB" else picture.convert(mode)
    options |= {"keep_rgb": True, "subsampling": 0} if mode == "stored RGB" else {}
    picture.save(out, "JPEG", **options)
    with Image.open(io.BytesIO(out.getvalue())) as read:
        expected = np.asarray(read if mode == "L" else read.convert("RGB"))
    assert np.array_equal(decode(framed(out.getvalue(), "jpeg")), expected)


#: kinds whose missing rows libjpeg does not report, and those that TurboJPEG does not read
UNCHECKED = {"arithmetic", "sampled 3x1"}


class At:
    """A scale and the colours that a test wants."""

    def __init__(self, divisor: int, *, grey: bool) -> None:
        self.divisor, self.grey = divisor, grey

    def scale(self, width: int, height: int) -> int:
        return self.divisor


def read_by_pillow(data: bytes, scale: int, *, grey: bool) -> np.ndarray | None:
    """Return the pixels of a JPEG at a scale; None if they cannot be read."""
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as picture:
            if scale > 1 or grey:
                picture.draft("L" if grey else None, (picture.width // scale, picture.height // scale))
            return np.asarray(picture.convert("L" if grey or picture.mode == "L" else "RGB"))
    except (OSError, SyntaxError, ValueError):
        return None


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", kinds())
def test_each_kind_of_jpeg_has_the_pixels_that_pillow_reads_at_each_scale(kind: str, scale: int, grey: bool) -> None:
    data = kinds()[kind]
    expected = read_by_pillow(data, scale, grey=grey)
    assert expected is not None
    assert np.array_equal(decode(framed(data, "jpeg"), At(scale, grey=grey)), expected)


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (9, 7), (17, 16), (8191, 9), (3, 8191)])
def test_sides_are_rounded_up_at_each_scale(size: tuple[int, int], scale: int, grey: bool) -> None:
    data = encode_image(np.arange(size[0] * size[1] * 3, dtype=np.uint32).astype(np.uint8).reshape(*size, 3), "jpeg")
    pixels = decode(framed(data, "jpeg"), At(scale, grey=grey))
    assert pixels.shape == (-(-size[0] // scale), -(-size[1] // scale), *([] if grey else [3]))
    if min(size) >= scale:
        assert np.array_equal(pixels, read_by_pillow(data, scale, grey=grey))


@pytest.mark.parametrize("scale", [1, 8])
@pytest.mark.parametrize("kind", sorted(kinds().keys() - UNCHECKED))
def test_a_jpeg_whose_header_claims_more_rows_than_it_has_is_refused(kind: str, scale: int) -> None:
    data = jpeg_with_rows(kinds()[kind], SIDES[1] + 40)
    with pytest.raises(DecodeError, match="pixels of the jpeg are missing: send the whole picture"):
        decode(framed(data, "jpeg"), At(scale, grey=False))


@given(
    st.sampled_from(list(kinds().values())),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
)
@examples(400)
def test_a_spoiled_jpeg_has_the_pixels_that_pillow_reads_or_is_refused_as_well(
    data: bytes, spoiled: list[tuple[float, int]], scale: int, grey: bool
) -> None:
    """A decoder that goes on after an error may return memory that it has not written."""
    scan = data.index(b"\xff\xda") + 14
    changed = bytearray(data)
    for share, value in spoiled:
        changed[scan + int(share * (len(data) - 3 - scan))] = value
    try:
        pixels = decode(framed(bytes(changed), "jpeg"), At(scale, grey=grey))
    except DecodeError:
        return
    expected = read_by_pillow(b"".join(read_jpeg(memoryview(changed)).parts), scale, grey=grey)
    assert expected is not None
    assert np.array_equal(pixels, expected)


@pytest.mark.parametrize(
    ("stored", "pixels"),
    [
        ([0, 100, 255], [0, 100, 255]),
        ([0, 512, 1023], [0, 128, 255]),  # 10 bits (aiff22/PyNET-PyTorch#6)
        ([0, 1024, 4095], [0, 64, 255]),  # 12 bits
        ([0, 4096, 16383], [0, 64, 255]),
        ([0, 4096, 16384], [0, 16, 64]),
        ([0, 0, 0], [0, 0, 0]),
        ([0, 0x1234, 0xFFFF], [0, 0x12, 0xFF]),  # the high byte of 16 bits
    ],
)
def test_sixteen_bit_grey_is_scaled_by_the_depth_that_holds_its_maximum(stored: list[int], pixels: list[int]) -> None:
    image = Image.fromarray(np.array([stored], np.uint16))
    assert decode(framed(saved(image))).tolist() == [pixels]


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        *((dtype, [1], bytes(8)) for dtype in ("object", "O", "<M8[s]", "V8")),
        ("uint8,uint8", [1], bytes(2)),
        ("bool", [1], bytes(1)),
        ("", [1], bytes(1)),
        ("uint8", [], bytes(1)),
        ("uint8", [2, 2], bytes(3)),
        ("uint8", [2, 2], bytes(5)),
        ("float32", [2], bytes(2)),
        ("float64", [65535, 65535, 65535, 65535], bytes(8)),
    ],
)
def test_raw_data_of_unknown_type_or_other_size_is_refused(dtype: str, shape: list[int], data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(Frame(id=bytes(16), encoding="raw", dtype=dtype, shape=shape, data=memoryview(data)))


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_a_truncated_picture_is_refused_wherever_it_ends(form: str) -> None:
    whole = saved(Image.effect_noise((64, 64), 80).convert("RGB"), form)
    for end in range(10, len(whole) - 20, max(1, len(whole) // 40)):
        with pytest.raises(DecodeError):
            decode(framed(whole[:end], form.lower()))


def test_a_picture_under_another_encodings_name_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode(framed(saved(Image.new("RGB", (4, 4)), "JPEG"), "png"))


def test_one_side_too_long_is_refused() -> None:
    with pytest.raises(DecodeError, match="pixels"):
        decode(framed(saved(Image.new("1", (MAX_SIDE + 1, 1)))))


def test_an_unknown_encoding_is_refused_on_both_ways() -> None:
    with pytest.raises(DecodeError, match="known are"):
        decode(framed(b"x", "webp"))
    with pytest.raises(InvalidFieldError, match="use one of"):
        encode_image(np.zeros((2, 2), np.uint8), "webp")


def test_an_encodings_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        register("raw", ImageEncoding(decode, encode_image, measure))
