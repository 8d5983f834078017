"""Script of CenterFace: a picture padded to multiples of 32, a heat map of middles to boxes of faces."""

import numpy as np
from PIL import Image

SCORE, OVERLAP, STRIDE = 0.3, 0.3, 4


def preprocess(image):
    pixels = np.asarray(Image.fromarray(image.squeeze()).convert("RGB"))
    height, width = pixels.shape[:2]
    padded = np.pad(pixels, ((0, -height % 32), (0, -width % 32), (0, 0)))
    return padded.astype(np.float32).transpose(2, 0, 1)


def postprocess(outputs, size):
    heat, scale, offset = outputs["537"][0, 0], outputs["538"][0], outputs["539"][0]
    rows, columns = np.where(heat > SCORE)
    scores = heat[rows, columns]
    sides = np.exp(scale[::-1, rows, columns]) * STRIDE  # width, height
    middles = (np.stack([columns, rows]) + offset[::-1, rows, columns] + 0.5) * STRIDE
    corners = np.concatenate([middles - sides / 2, middles + sides / 2]).T
    kept = []
    for i in np.argsort(-scores):
        if all(overlap(corners[i], np.array(row[:4])) < OVERLAP for row in kept):
            kept.append([*corners[i].tolist(), float(min(scores[i], 1.0)), "face"])
    return kept


def overlap(a, b):
    both = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    return both and both / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both)
