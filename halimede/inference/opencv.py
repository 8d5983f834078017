"""Resizes pictures by OpenCV, for pre-processing whose method is linear or area.

Only this module imports OpenCV, and only when a step first needs it. OpenCV gets arrays, never files.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from halimede.errors import cause_of
from halimede.inference.model import Array, ModelError

#: element types that OpenCV resizes; arrays of others are converted to float32
RESIZABLE = frozenset({"uint8", "uint16", "int16", "float32", "float64"})
#: most channels that OpenCV's method area takes; pictures of more are resized channel by channel
MOST_CHANNELS = 4


def opencv(method: str) -> Any:
    """Return the module cv2. Raises ModelError, which names the resize method, if it cannot be imported."""
    try:
        import cv2  # noqa: PLC0415  # 17 MB of memory, which most models do without
    except ImportError as error:
        raise ModelError(
            f"the resize method {method} needs the package opencv-python-headless, which cannot be imported here "
            f"({cause_of(error)}): run pip install 'halimede[opencv]', or use antialias"
        ) from error
    return cv2


def resize_by_opencv(picture: Array, width: int, height: int, method: Literal["linear", "area"]) -> Array:
    """Return a picture ``[any, any, channels]`` as ``[height, width, channels]``, in its element type or in float32.

    Raises ModelError if OpenCV cannot be imported.
    """
    cv2 = opencv(method)
    source = np.ascontiguousarray(picture if picture.dtype.name in RESIZABLE else picture.astype(np.float32))
    interpolation = cv2.INTER_LINEAR if method == "linear" else cv2.INTER_AREA
    if source.shape[2] <= MOST_CHANNELS:
        resized: Array = cv2.resize(source, (width, height), interpolation=interpolation)
        return resized.reshape(height, width, -1)
    planes = [
        cv2.resize(np.ascontiguousarray(source[..., i]), (width, height), interpolation=interpolation)
        for i in range(source.shape[2])
    ]
    return np.stack(planes, axis=-1)
