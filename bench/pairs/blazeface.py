"""Script of BlazeFace (short range): any picture to 128 x 128 with kept proportions, anchors to boxes of faces."""

import numpy as np
from PIL import Image

SIDE, SCORE, OVERLAP = 128, 0.3, 0.3
#: cells of each anchor map along a side, and anchors in each cell
MAPS = ((16, 2), (8, 6))


def _anchors():
    rows = []
    for cells, each in MAPS:
        middles = (np.arange(cells) + 0.5) / cells
        grid = np.stack(np.meshgrid(middles, middles), axis=-1).reshape(-1, 2)
        rows.append(np.repeat(grid, each, axis=0))
    return np.concatenate(rows)


ANCHORS = _anchors()


def preprocess(image):
    picture = Image.fromarray(image.squeeze()).convert("RGB")
    scale = SIDE / max(picture.size)
    small = picture.resize([max(1, round(side * scale)) for side in picture.size])
    canvas = Image.new("RGB", (SIDE, SIDE))
    canvas.paste(small, ((SIDE - small.width) // 2, (SIDE - small.height) // 2))
    return np.asarray(canvas, np.float32) / 127.5 - 1


def postprocess(outputs, size):
    boxes, scores = outputs["regressors"][0], outputs["classificators"][0, :, 0]
    scores = 1 / (1 + np.exp(-scores.clip(-80, 80)))
    chosen = scores > SCORE
    middles = boxes[chosen, :2] / SIDE + ANCHORS[chosen]
    halves = boxes[chosen, 2:4] / SIDE / 2
    height, width = size or (SIDE, SIDE)
    longest = max(height, width)
    margins = (np.array([width, height]) - longest) / 2
    corners = np.concatenate([middles - halves, middles + halves], axis=1) * longest + np.tile(margins, 2)
    return distinct(corners, scores[chosen])


def distinct(corners, scores):
    rows = []
    for i in np.argsort(-scores):
        if all(overlap(corners[i], np.array(row[:4])) < OVERLAP for row in rows):
            rows.append([*corners[i].tolist(), float(scores[i]), "face"])
    return rows


def overlap(a, b):
    both = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    return both and both / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both)
