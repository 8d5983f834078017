"""A small picture of a frame, for people's eyes. It costs a decoding, so whoever asks for one bounds how often."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from halimede.errors import DecodeError
from halimede.frames.encodings import Pixels, decode, measure
from halimede.messages import Frame

#: pixels of the longer side, bytes of the file, and bytes of the decoded frame that a thumbnail may be made of
SIDE, BYTES = 160, 32 * 1024
MOST_PIXELS = 32 * 1024 * 1024
QUALITIES = (80, 50, 25)


def thumbnail(frame: Frame) -> bytes | None:
    """Return a PNG (small frames, exactly) or JPEG of at most 160 pixels a side; None of what is no picture."""
    try:
        if measure(frame) > MOST_PIXELS:
            return None
        image = _as_picture(decode(frame))
    except DecodeError:
        return None
    if image is None:
        return None
    image.thumbnail((SIDE, SIDE))
    exact = _save(image, "PNG")
    if len(exact) <= BYTES // 8:
        return exact
    return next((data for quality in QUALITIES if len(data := _save(image, "JPEG", quality)) <= BYTES), None)


def _save(image: Image.Image, form: str, quality: int = 0) -> bytes:
    out = io.BytesIO()
    image.save(out, format=form, **({"quality": quality} if quality else {}))
    return out.getvalue()


def _as_picture(pixels: Pixels) -> Image.Image | None:
    """Return grey or RGB pixels as a picture. Other numbers than bytes are stretched from their least to their most."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 and not (pixels.ndim == 3 and pixels.shape[2] == 3):
        return None
    step = max(1, max(pixels.shape) // (4 * SIDE))  # of a large one every few pixels do
    pixels = pixels[::step, ::step]
    if pixels.dtype != np.uint8:
        known = np.nan_to_num(pixels.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        low, high = known.min(), known.max()
        # halves, so that the difference of two huge numbers is a number
        pixels = ((known / 2 - low / 2) * (255 / ((high / 2 - low / 2) or 1.0))).clip(0, 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(pixels))
