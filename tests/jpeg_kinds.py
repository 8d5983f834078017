"""A JPEG of each kind that decoders know: of encoders here, and of such that none here writes."""

from __future__ import annotations

import base64
import io

import numpy as np
import simplejpeg
from PIL import Image

SIDES = (40, 24)
#: by ``cjpeg -quality 20 -baseline``, with ``-arithmetic``, and with ``-sample 3x1``
ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////m8H///"
    "/6/+b9//j/2wBDASstLTw1PHZBQXb4pYyl+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj/yQARCAAY"
    "ACgDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwDRvQ0w9vhBH5zOcGyXYFFObzCEJ79go+ZKZ1fVWNT8+NXRYxtnHV2J944Imu"
    "+YgymSAMZXA7gwAZf+Cf/Z"
)
SAMPLED_BY_THREE = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////m8H///"
    "/6/+b9//j/2wBDASstLTw1PHZBQXb4pYyl+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj/wAARCAAY"
    "ACgDATEAAhEBAxEB/8QAGAABAQEBAQAAAAAAAAAAAAAAAwAEAgX/xAAbEAEAAwADAQAAAAAAAAAAAAAAAQIDERMhEv/EABcBAQEBAQAAAAAAAA"
    "AAAAAAAAQDAQL/xAAYEQADAQEAAAAAAAAAAAAAAAAAAQIxIf/aAAwDAQACEQMRAD8A9KLwO94ZtLw4emxgP3HJqXhErCVPpdo76yzaajvSsYF2"
    "+lpqiZwjej8ONGXSBG+iIXAuPS0hEJ8JWun/2Q=="
)


def picture() -> np.ndarray:
    """Return smooth colours with some grain."""
    rng = np.random.default_rng(5)
    smooth = Image.fromarray(rng.integers(0, 256, (3, 5, 3), np.uint8)).resize(SIDES, Image.Resampling.BILINEAR)
    grain = rng.integers(-8, 9, (SIDES[1], SIDES[0], 3))
    pixels: np.ndarray = np.clip(np.asarray(smooth, np.int16) + grain, 0, 255).astype(np.uint8)
    return pixels


def saved(mode: str = "RGB", **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture()).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


def adobe(data: bytes, transform: int) -> bytes:
    """Return a JPEG of Pillow whose Adobe segment, if it has one, names another transform of colours."""
    at = data.index(b"Adobe") + 11
    return data[:at] + bytes([transform]) + data[at + 1 :]


def kinds() -> dict[str, bytes]:
    upside_down = Image.Exif()
    upside_down[0x0112] = 3
    files = {
        "grey": saved("L"),
        "grey, progressive": saved("L", progressive=True),
        "progressive": saved(progressive=True),
        "optimised": saved(optimize=True),
        "coarsest": saved(quality=1),
        "finest": saved(quality=100),
        "restarts by block": saved(restart_marker_blocks=1),
        "restarts by row, progressive": saved(restart_marker_rows=1, progressive=True),
        "RGB": saved(keep_rgb=True),
        "CMYK": saved("CMYK"),
        "CMYK, progressive": saved("CMYK", progressive=True),
        "YCCK": adobe(saved("CMYK"), 2),
        "EXIF": saved(exif=upside_down),
        "a profile": saved(icc_profile=bytes(9000)),
        "arithmetic": ARITHMETIC,
        "sampled 3x1": SAMPLED_BY_THREE,
    }
    colours = np.ascontiguousarray(picture())
    for sampling in ("444", "422", "420", "440", "411"):
        files[sampling] = simplejpeg.encode_jpeg(colours, 80, "RGB", sampling)
    files["padded"] = files["420"] + bytes(100)
    files["bytes before its end"] = files["420"][:-2] + b"\1\2" + files["420"][-2:]
    files["fill bytes"] = files["420"][:2] + b"\xff" * 5 + files["420"][2:]
    return files
