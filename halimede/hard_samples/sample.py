"""A stored hard sample: its picture, and both predictions.

Pictures are kept as they came, raw ones as PNG. Numbers that are no picture (another type than bytes, or a row of
features) are kept in NumPy's own format, so that nothing of them is lost.
"""

from __future__ import annotations

import hashlib
import io
from typing import Literal

import msgspec
import numpy as np

from halimede.frames.encodings import Pixels, decode, encode_image
from halimede.frames.image_headers import READERS
from halimede.messages import Frame, KeptImage, KeptSample, Prediction, Result

#: no file yet: it is made in the thread that writes it
NOTHING = KeptImage(form="png", size=0, sha256="0" * 64)


def describe(
    result: Result, edge: Prediction | None, *, namespace: str, now_ns: int, model: str, digest: str
) -> KeptSample:
    """Return what was said of a sample, without its picture. ``model`` and ``digest`` are the small model's."""
    return KeptSample(
        id=result.id,
        namespace=namespace,
        kept_ns=now_ns,
        result=msgspec.structs.replace(result, prediction=_slim(result.prediction), edge=None),
        edge=_slim(edge) if edge else None,
        edge_model=model[:256],
        edge_digest=digest[:256],
        image=NOTHING,
    )


def picture(frame: Frame) -> tuple[KeptImage, bytes]:
    """Return a frame's file and what it is. Raises DecodeError when the frame is broken."""
    if frame.encoding == "raw":
        return _written(decode(frame))
    claimed, data = READERS[frame.encoding](frame.data), bytes(frame.data)
    return _image(frame.encoding, data, claimed.width, claimed.height), data


def _written(pixels: Pixels) -> tuple[KeptImage, bytes]:
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.dtype == np.uint8 and (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        data = encode_image(pixels, "png")
        return _image("png", data, pixels.shape[1], pixels.shape[0]), data
    out = io.BytesIO()
    np.save(out, pixels, allow_pickle=False)
    return _image("npy", out.getvalue(), 0, 0), out.getvalue()


def _image(form: Literal["png", "jpeg", "npy"], data: bytes, width: int, height: int) -> KeptImage:
    digest = hashlib.sha256(data).hexdigest()
    return KeptImage(form=form, size=len(data), sha256=digest, width=width, height=height)


def _slim(said: Prediction) -> Prediction:
    """Leave out features: they may be a megabyte."""
    return msgspec.structs.replace(said, embeddings=None) if said.embeddings else said
