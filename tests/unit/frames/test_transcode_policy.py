"""How a sample is written before it goes up: what is wanted goes untouched, anything else changes as little as fits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.frames.transcode_policy import (
    DOUBT_FACTOR,
    LEAST_SIDE,
    MOST_TRIES,
    PIXEL_POWER,
    SHARES,
    EncodeAttempt,
    PixelSize,
    SizeEstimator,
    UploadFormat,
    first_attempt,
    next_attempt,
)

VGA = PixelSize(640, 480, 3)
#: bytes of a pixel in any file
MOST_OF_A_PIXEL = 4


def bytes_of(
    made: EncodeAttempt, channels: int = 3, density: float = 1.0, power: float = PIXEL_POWER, header: int = 0
) -> int:
    """Return how large a file is, of pictures of that kind."""
    if made.encoding == "raw":
        return made.pixels * channels
    return header + int(min(density * SHARES[made.quality] * made.pixels**power, MOST_OF_A_PIXEL * made.pixels))


def tried(
    picture: PixelSize, wish: UploadFormat, densities: SizeEstimator | None = None, **kind: float
) -> list[tuple[EncodeAttempt, int]]:
    """Return what is tried, with its bytes, up to what fits or the end."""
    densities = densities or SizeEstimator()
    found: list[tuple[EncodeAttempt, int]] = []
    made: EncodeAttempt | None = first_attempt(picture, wish, densities)
    while made and len(found) < MOST_TRIES:
        found.append((made, bytes_of(made, picture.channels, **kind)))  # type: ignore[arg-type]
        densities.learn(made, picture.channels, found[-1][1])
        if wish.accepts_size(found[-1][1]):
            break
        made = next_attempt(made, found[-1][1], picture, wish)
    return found


@pytest.mark.parametrize("came", ["raw", "jpeg", "png"])
def test_what_fits_goes_as_it_came(came: str) -> None:
    assert UploadFormat().accepts(came, 10**9)
    assert UploadFormat(max_bytes=2048).accepts(came, 2048)
    assert not UploadFormat(max_bytes=2048).accepts(came, 2049)
    accepted = [wanted for wanted in ("raw", "jpeg", "png") if UploadFormat(encoding=wanted).accepts(came, 1)]  # type: ignore[arg-type]
    assert accepted == [came]


@pytest.mark.parametrize("encoding", ["raw", "jpeg", "png"])
def test_without_a_bound_the_whole_picture_is_written_at_its_best(encoding: str) -> None:
    made = first_attempt(VGA, UploadFormat(encoding=encoding), SizeEstimator())  # type: ignore[arg-type]
    assert made == EncodeAttempt(encoding, 90 if encoding == "jpeg" else 0, 640, 480)  # type: ignore[arg-type]


def test_quality_falls_before_the_picture_gets_smaller() -> None:
    found = tried(VGA, UploadFormat(max_bytes=12_000))
    whole = [made.quality for made, _ in found if made.pixels == 640 * 480]
    assert whole == [90, 75, 50]
    last, size = found[-1]
    assert (last.quality, last.pixels < 640 * 480) == (75, True)
    assert 0.8 * 12_000 < size <= 12_000


def test_what_the_pictures_before_were_far_too_large_for_is_not_tried_again() -> None:
    densities, wish = SizeEstimator(), UploadFormat(max_bytes=3000)
    before = tried(VGA, wish, densities)
    assert len(before) > 3
    after = tried(VGA, wish, densities)
    assert len(after) <= 2
    assert abs(after[-1][1] - before[-1][1]) < 0.1 * 3000


def test_pictures_that_became_simple_go_whole_again() -> None:
    densities, wish = SizeEstimator(), UploadFormat(max_bytes=3000)
    tried(VGA, wish, densities)
    for _ in range(30):
        found = tried(VGA, wish, densities, density=0.05)
    assert found[-1][0] == EncodeAttempt("jpeg", 90, 640, 480)


def test_a_sliver_is_tried_whatever_the_pictures_before_were() -> None:
    densities, wish, sliver = SizeEstimator(), UploadFormat(max_bytes=3000), PixelSize(2000, LEAST_SIDE, 3)
    tried(VGA, wish, densities, density=20)
    assert tried(sliver, wish, densities, density=0.5) == [(EncodeAttempt("jpeg", 50, 2000, LEAST_SIDE), 749)]
    assert next_attempt(EncodeAttempt("jpeg", 50, 2000, LEAST_SIDE), 3001, sliver, wish) is None


def test_a_named_encoding_stays_and_the_picture_gets_smaller() -> None:
    for encoding in ("raw", "png"):
        found = tried(VGA, UploadFormat(encoding=encoding, max_bytes=20_000))
        assert {made.encoding for made, _ in found} == {encoding}
        assert found[-1][1] <= 20_000
    assert len(tried(VGA, UploadFormat(encoding="raw", max_bytes=20_000))) == 1  # its size is known before


def test_it_keeps_its_form_about() -> None:
    made, _ = tried(VGA, UploadFormat(max_bytes=4000))[-1]
    assert made.width / made.height == pytest.approx(640 / 480, rel=0.05)


@st.composite
def kinds(draw: st.DrawFn) -> dict[str, float]:
    """Return what decides how large files of some pictures are: see ``bytes_of``."""
    density, power = draw(st.floats(0.01, 30)), draw(st.floats(0.7, 1.0))
    return {"density": density, "power": power, "header": draw(st.integers(0, 700))}


@given(
    picture=st.builds(PixelSize, st.integers(1, 16_384), st.integers(1, 16_384), st.sampled_from([1, 3])),
    wish=st.builds(
        lambda encoding, most: UploadFormat(encoding=encoding, max_bytes=most),
        st.sampled_from(["as-it-came", "raw", "jpeg", "png"]),
        st.integers(1024, 4_000_000),
    ),
    before=kinds(),
    now=kinds(),
)
def test_each_try_is_smaller_and_the_end_fits_or_is_a_sliver(
    picture: PixelSize, wish: UploadFormat, before: dict[str, float], now: dict[str, float]
) -> None:
    densities = SizeEstimator()
    tried(picture, wish, densities, **before)
    found = tried(picture, wish, densities, **now)
    sides = sorted((picture.width, picture.height))
    for made, _ in found:
        assert 0 < made.width <= picture.width
        assert 0 < made.height <= picture.height
    for (one, _), (two, _) in pairwise(found):
        assert two.pixels < one.pixels or two.quality < one.quality
    assert found
    if not wish.accepts_size(found[-1][1]):
        assert len(found) < MOST_TRIES
        assert wish.max_bytes is not None
        assert sides[0] < 4 * LEAST_SIDE or sides[1] > 8 * sides[0] or wish.max_bytes < 4096


def test_a_step_is_passed_over_only_where_it_is_surely_too_large() -> None:
    densities = SizeEstimator()
    densities.learn(EncodeAttempt("jpeg", 90, 640, 480), 3, 10_000)
    doubted, sure = int(10_000 / DOUBT_FACTOR) + 1, int(10_000 / DOUBT_FACTOR) - 1
    for picture, limit, quality in ((VGA, doubted, 90), (VGA, sure, 75), (PixelSize(640, 480, 1), sure, 90)):
        attempt = first_attempt(picture, UploadFormat(max_bytes=limit), densities)  # grey ones differ
        assert attempt == EncodeAttempt("jpeg", quality, 640, 480)
