"""Script of PP-OCR's readers: a line of text to 48 pixels of height, rows of characters' probabilities to a text.

``characters.txt`` in the archive has the alphabet, which the ONNX file has in its metadata as ``character``.
"""

from pathlib import Path

import numpy as np
from PIL import Image

HEIGHT, NARROWEST = 48, 160
ALPHABET = ["", *Path(__file__).with_name("characters.txt").read_text("utf-8").split("\n"), " "]


def preprocess(image):
    picture = Image.fromarray(image.squeeze()).convert("RGB")
    width = max(1, round(picture.width * HEIGHT / picture.height))
    pixels = np.asarray(picture.resize((width, HEIGHT)), np.float32) / 127.5 - 1
    return np.pad(pixels, ((0, 0), (0, max(0, NARROWEST - width)), (0, 0))).transpose(2, 0, 1)


def postprocess(outputs, size):
    (rows,) = outputs.values()
    best, sure = rows[0].argmax(axis=1), rows[0].max(axis=1)
    chosen = (best > 0) & (best != np.concatenate([[0], best[:-1]]))  # 0 is the blank
    text = "".join(ALPHABET[i] if i < len(ALPHABET) else "" for i in best[chosen])
    return {"label": text[:1024], "score": float(sure[chosen].mean()) if chosen.any() else 0.0}
