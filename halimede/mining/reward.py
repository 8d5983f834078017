"""Estimates the reward of uploading a sample of boxes or texts: what the next tier's answer adds to the quality of all.

The features of the small model's answer are a few dozen numbers, and a linear function of them estimates the reward:
of boxes the gain in mean average precision, of texts the gain in the share of right texts. Boxes that the small model
almost missed show best what it did miss (Qiu et al., "Optimizing edge offloading decisions for object detection", SEC
2024, arXiv 2410.18919). The rule Learned uses this module, and `halimede calibrate` fits the function. Only the
standard library is needed; 25 boxes take about 0.1 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from halimede.messages import Box, Prediction
from halimede.mining.calibration_file import RewardRule
from halimede.mining.miner import MiningError
from halimede.mining.scores import own_scores, unit_floats

#: most boxes that features describe, the best by score
MAX_BOXES = 25
#: the number of best boxes whose scores are separate features, and of those whose pairs are compared
TOP_SCORES, PAIRED_BOXES = 8, 16
#: scores from which boxes are counted
SCORE_LEVELS = tuple(level / 10 for level in range(1, 10))
#: bound of sides and positions, in pixels: larger than any frame
MAX_PIXELS = 1e6
#: intersection over union from which two boxes count as an overlapping pair
MIN_OVERLAP = 0.1
#: lower bound of scores before logarithms
MIN_SCORE = 1e-6
#: most characters of a text that features describe
MAX_CHARACTERS = 1000

#: x1, y1, x2, y2 in pixels, with x1 <= x2 and y1 <= y2
Corners = tuple[float, float, float, float]


def expected_reward(rule: RewardRule, prediction: Prediction) -> float:
    """Return the estimated reward r of an upload as r / (1 + |r|), -1 to 1.

    Features outside of the range of the calibration's samples count as the end of that range. Raises MiningError for a
    prediction that is not of the rule's kind.
    """
    reward = rule.bias
    features = reward_features(rule.answers, rule.classes, prediction)
    for weight, low, high, feature in zip(rule.weights, rule.lows, rule.highs, features, strict=True):
        reward += weight * min(max(feature, low), high)
    return reward / (1 + abs(reward))


def reward_features(answers: str, classes: Sequence[str], prediction: Prediction) -> list[float]:
    """Return the features of a prediction; ``answers`` is its kind, ``boxes`` or ``texts``.

    Raises MiningError for a prediction of another kind.
    """
    return box_features(prediction, classes) if answers == "boxes" else text_features(prediction)


def feature_count(rule: RewardRule) -> int:
    """Return the number of features that a rule weighs."""
    empty = Prediction(boxes=[]) if rule.answers == "boxes" else Prediction(label="", score=0.0)
    return len(reward_features(rule.answers, rule.classes, empty))


def box_features(prediction: Prediction, classes: Sequence[str]) -> list[float]:
    """Return the features of a frame's boxes, of which there may be none.

    Raises MiningError for a prediction that is no detection, and for corners that are not finite.

    They are: the number of boxes; whether there are none; the number from each level of scores on; sums and order
    statistics of scores and of uncertainty (4 s (1 - s)); sides in pixels; overlaps of pairs; for each of ``classes``
    the sums of scores and of uncertainty. Only the features of classes leave out boxes of other classes.
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
    """Return counts from each level on, the top scores, sums and order statistics. ``scores``: the highest first."""
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
    """Return the largest overlap of two boxes, the number of overlapping pairs, and a sum over the boxes.

    An overlap is intersection over union. The sum is of each box's score times its largest overlap.
    """
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
            pairs += overlap >= MIN_OVERLAP
            largest[i], largest[j] = max(largest[i], overlap), max(largest[j], overlap)
    return [max(largest, default=0.0), float(pairs), sum(map(float.__mul__, largest, scores))]


def _class_features(
    boxes: Sequence[Box], scores: list[float], doubts: list[float], classes: Sequence[str]
) -> list[float]:
    """Return two numbers for each class: the sum of its boxes' scores, and of their uncertainty."""
    columns = {name: 2 * i for i, name in enumerate(classes)}
    sums = [0.0] * (2 * len(classes))
    for box, score, doubt in zip(boxes, scores, doubts, strict=True):
        column = columns.get(str(box.label))
        if column is not None:
            sums[column] += score
            sums[column + 1] += doubt
    return sums


def _corners(box: Box) -> Corners:
    """Return a box's corners, within MAX_PIXELS; a side that ends before it begins gets the length 0.

    Raises MiningError for corners that are not finite.
    """
    x1, y1, x2, y2 = box.x1, box.y1, box.x2, box.y2
    if not all(map(math.isfinite, (x1, y1, x2, y2))):
        raise MiningError(f"a box has the corners {x1}, {y1}, {x2}, {y2}, which are no pixels")
    x1, y1 = min(max(x1, -MAX_PIXELS), MAX_PIXELS), min(max(y1, -MAX_PIXELS), MAX_PIXELS)
    return x1, y1, max(x1, min(x2, MAX_PIXELS)), max(y1, min(y2, MAX_PIXELS))


def text_features(prediction: Prediction) -> list[float]:
    """Return the features of a text that the small model read: its scores, its length, and its kinds of characters.

    A text without a score of its own has the mean of its lines' scores. Raises MiningError for boxes, and without any
    score.
    """
    if prediction.boxes is not None:
        raise MiningError("the prediction is boxes, and the calibration is about texts: calibrate again")
    lines = prediction.lines or []
    line_scores = unit_floats("line score", [line.score for line in lines if line.score is not None])
    if prediction.score is not None:
        score = unit_floats("score", [prediction.score])[0]
    elif line_scores:
        score = sum(line_scores) / len(line_scores)
    else:
        raise MiningError("the prediction has no score: let the small model's script return one")
    text = (" ".join(line.text for line in lines) if prediction.label is None else prediction.label)[:MAX_CHARACTERS]
    kinds = (str.isdigit, str.isupper, str.islower, str.isspace)
    characters = max(1, len(text))
    return [
        score,
        score * score,
        math.sqrt(1 - score),
        math.log(max(score, MIN_SCORE)),
        min(line_scores, default=score),
        math.log1p(len(lines)),
        float(not text),
        float(len(text)),
        math.log1p(len(text)),
        score ** len(text) if len(text) < MAX_CHARACTERS else 0.0,
        *(sum(map(is_kind, text)) / characters for is_kind in kinds),
        sum(not character.isalnum() and not character.isspace() for character in text) / characters,
    ]
