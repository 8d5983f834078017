"""Learned deferral of boxes and of texts: an estimate of what the next tier's answer adds to the quality of the set.

The small model's answer is described by a few dozen numbers, and a linear function of them estimates the reward: for
boxes the gain in mean average precision, for texts that of the share of right texts. Boxes that the small model almost
missed show best what it did miss (Qiu et al., "Optimizing edge offloading decisions for object detection", SEC 2024,
arXiv 2410.18919). It needs only the standard library; 25 boxes take about 0.1 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from halimede.messages import Box, Prediction
from halimede.mining.calibration_file import RewardRule
from halimede.mining.miner import MiningError
from halimede.mining.scores import checked, own_scores

#: boxes that are described, the best by score
MAX_BOXES = 25
#: of these, the ones whose scores are separate features, and those whose pairs are compared
TOP_SCORES, PAIRED_BOXES = 8, 16
#: scores above which boxes are counted
SCORE_LEVELS = tuple(level / 10 for level in range(1, 10))
#: bound of sides and positions, in pixels: beyond that of any frame
MAX_PIXELS = 1e6
#: intersection over union from which two boxes count as an overlapping pair
OVERLAP = 0.1
#: lower bound of scores before logarithms
FLOOR = 1e-6
MAX_CHARACTERS = 1000

Corners = tuple[float, float, float, float]


def expected_reward(rule: RewardRule, prediction: Prediction) -> float:
    """Return the estimated reward r of an upload as r / (1 + |r|), -1 to 1. Raises MiningError.

    Features outside of the range of the calibration's samples count as the end of that range.
    """
    reward = rule.bias
    features = reward_features(rule.answers, rule.classes, prediction)
    for weight, low, high, feature in zip(rule.weights, rule.lows, rule.highs, features, strict=True):
        reward += weight * min(max(feature, low), high)
    return reward / (1 + abs(reward))


def reward_features(answers: str, classes: Sequence[str], prediction: Prediction) -> list[float]:
    """Return the features of a prediction of this kind of ``answers``, boxes or texts. Raises MiningError."""
    return box_features(prediction, classes) if answers == "boxes" else text_features(prediction)


def feature_count(rule: RewardRule) -> int:
    """Return the number of features that a rule weighs."""
    empty = Prediction(boxes=[]) if rule.answers == "boxes" else Prediction(label="", score=0.0)
    return len(reward_features(rule.answers, rule.classes, empty))


def box_features(prediction: Prediction, classes: Sequence[str]) -> list[float]:
    """Return the features of a frame's boxes. Raises MiningError.

    The number of boxes, whether there are none, those above each level of scores, sums and order statistics of scores
    and of uncertainty (4 s (1 - s)), sides in pixels, overlaps of pairs, and for each of ``classes`` the sums
    of scores and of uncertainty. A box of another class is in all features but those of classes.
    """
    scores = own_scores(prediction)
    boxes = prediction.boxes or []
    best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:MAX_BOXES]
    scores = [scores[i] for i in best]
    chosen = [boxes[i] for i in best]
    doubts = [4 * score * (1 - score) for score in scores]
    corners = [_corners(box) for box in chosen]
    return [
        math.log1p(len(boxes)),
        float(not boxes),
        *_score_features(scores, doubts),
        *_size_features(corners, doubts),
        *_overlap_features(corners[:PAIRED_BOXES], scores),
        *_class_features(chosen, scores, doubts, classes),
    ]


def _score_features(scores: list[float], doubts: list[float]) -> list[float]:
    counts = [float(sum([score >= level for score in scores])) for level in SCORE_LEVELS]
    top = scores[:TOP_SCORES] + [0.0] * (TOP_SCORES - len(scores))
    number, total = len(scores), sum(scores)
    if not number:
        return [*counts, *top, 0.0, 0.0, 0.0, 0.0, 0.0]
    return [*counts, *top, total, sum(doubts), scores[-1], total / number, scores[number // 2]]


def _size_features(corners: list[Corners], doubts: list[float]) -> list[float]:
    """Return the mean, the least and the largest logarithm of sides in pixels, and the mean weighted by uncertainty."""
    if not corners:
        return [0.0] * 4
    sides = [0.5 * math.log1p((x2 - x1) * (y2 - y1)) for x1, y1, x2, y2 in corners]
    doubt = sum(doubts)
    by_doubt = sum(map(float.__mul__, sides, doubts)) / doubt if doubt else 0.0
    return [sum(sides) / len(sides), min(sides), max(sides), by_doubt]


def _overlap_features(corners: list[Corners], scores: list[float]) -> list[float]:
    """Return the largest intersection over union of two boxes, the number of overlapping pairs, and scores times it."""
    largest = [0.0] * len(corners)
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in corners]
    order = sorted(range(len(corners)), key=corners.__getitem__)  # from left to right, so that most pairs are skipped
    pairs = 0
    for position, i in enumerate(order):
        _, top, right, bottom = corners[i]
        for j in order[position + 1 :]:
            x1, y1, x2, y2 = corners[j]
            if x1 >= right:
                break
            height = min(bottom, y2) - max(top, y1)
            if height <= 0:
                continue
            shared = (min(right, x2) - x1) * height
            overlap = shared / (areas[i] + areas[j] - shared) if shared > 0 else 0.0
            pairs += overlap >= OVERLAP
            largest[i], largest[j] = max(largest[i], overlap), max(largest[j], overlap)
    return [max(largest, default=0.0), float(pairs), sum(map(float.__mul__, largest, scores))]


def _class_features(
    boxes: Sequence[Box], scores: list[float], doubts: list[float], classes: Sequence[str]
) -> list[float]:
    columns = {name: 2 * i for i, name in enumerate(classes)}
    sums = [0.0] * (2 * len(classes))
    for box, score, doubt in zip(boxes, scores, doubts, strict=True):
        column = columns.get(str(box.label))
        if column is not None:
            sums[column] += score
            sums[column + 1] += doubt
    return sums


def _corners(box: Box) -> Corners:
    """Return a box's corners within bounds; a side that ends before it begins has no length. Raises MiningError."""
    x1, y1, x2, y2 = box.x1, box.y1, box.x2, box.y2
    if not all(map(math.isfinite, (x1, y1, x2, y2))):
        raise MiningError(f"a box has the corners {x1}, {y1}, {x2}, {y2}, which are no pixels")
    x1, y1 = min(max(x1, -MAX_PIXELS), MAX_PIXELS), min(max(y1, -MAX_PIXELS), MAX_PIXELS)
    return x1, y1, max(x1, min(x2, MAX_PIXELS)), max(y1, min(y2, MAX_PIXELS))


def text_features(prediction: Prediction) -> list[float]:
    """Return the features of a read text: its scores, its length, and its kinds of characters. Raises MiningError.

    A text without a score of its own has the mean of its lines' scores.
    """
    if prediction.boxes is not None:
        raise MiningError("the prediction is boxes, and the calibration is about texts: calibrate again")
    lines = prediction.lines or []
    of_lines = checked("line score", [line.score for line in lines if line.score is not None])
    if prediction.score is not None:
        score = checked("score", [prediction.score])[0]
    elif of_lines:
        score = sum(of_lines) / len(of_lines)
    else:
        raise MiningError("the prediction has no score: let the small model's script return one")
    text = (" ".join(line.text for line in lines) if prediction.label is None else prediction.label)[:MAX_CHARACTERS]
    kinds = (str.isdigit, str.isupper, str.islower, str.isspace)
    characters = max(1, len(text))
    return [
        score,
        score * score,
        math.sqrt(1 - score),
        math.log(max(score, FLOOR)),
        min(of_lines, default=score),
        math.log1p(len(lines)),
        float(not text),
        float(len(text)),
        math.log1p(len(text)),
        score ** len(text) if len(text) < MAX_CHARACTERS else 0.0,
        *(sum(map(is_kind, text)) / characters for is_kind in kinds),
        sum(not character.isalnum() and not character.isspace() for character in text) / characters,
    ]
