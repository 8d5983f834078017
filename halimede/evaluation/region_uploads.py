"""Makes the uploads of regions of frames offline: the files that a worker would upload, and the joint answers.

A region is a part of a frame around uncertain boxes; a service with ``upload: regions`` uploads these in place of
frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from halimede.api.jointinference import EdgeWorkerSpec
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.detection import by_label, match
from halimede.evaluation.quality import OBJECT_SCORE
from halimede.evaluation.service import FIELD, EvaluatedTier
from halimede.frames.payloads import new_frame
from halimede.frames.transcode_policy import SizeEstimator, UploadFormat
from halimede.messages import Frame, Prediction, Reply
from halimede.mining.calibration_file import RegionRule
from halimede.offload.errors import OffloadError
from halimede.pipeline.transcode import Upload, write, write_regions

#: the error of a model that is no detector
NO_BOXES = "answers no boxes: regions are parts of pictures with boxes, so set upload to frame"
#: returns the big model's answers to pictures
AnswerFunction = Callable[[LabelledSamples], list[Prediction]]


class RegionUploads(NamedTuple):
    """The uploads of all samples.

    Attributes:
        uploads: one for each sample, in order.
        sizes: bytes of each, ``(samples,) int``.
        joint: the joint answers, if each sample is uploaded.

    """

    uploads: list[Upload]
    sizes: np.ndarray
    joint: list[Prediction]


def has_regions(tier: EvaluatedTier) -> bool:
    """Whether a tier uploads regions of frames."""
    return isinstance(tier.deferral, EdgeWorkerSpec) and tier.deferral.upload == "regions"


def check_boxes(tier: EvaluatedTier, predictions: Sequence[Prediction]) -> None:
    """Raise InvalidFieldError if an answer of a tier's model has no boxes."""
    if any(prediction.boxes is None for prediction in predictions):
        raise InvalidFieldError(FIELD, "upload: regions", f"model {tier.model} {NO_BOXES}")


def format_of(tier: EvaluatedTier) -> UploadFormat:
    """Return the format of a tier's uploads; the tier is not the last one, which uploads nothing."""
    assert tier.deferral is not None  # noqa: S101  # only a tier with one uploads
    return UploadFormat(encoding=tier.deferral.encoding, max_bytes=tier.deferral.max_bytes)


def make_uploads(
    data: LabelledSamples, edge: Sequence[Prediction], rule: RegionRule, upload_format: UploadFormat
) -> list[Upload]:
    """Return the upload of each sample; ``edge`` are the small model's answers.

    A frame for which the rule gives no regions is uploaded whole, and transcoded only if the format requires it.
    Raises InvalidFieldError for a sample that cannot be encoded.
    """
    densities, uploads = SizeEstimator(), []
    for image, prediction, name in zip(data.images, edge, data.names, strict=True):
        frame = image if isinstance(image, Frame) else new_frame(image)
        frame = msgspec.structs.replace(frame, edge=prediction)
        try:
            upload = write_regions(frame, upload_format, densities, rule)
            if upload is None:
                is_met = upload_format.accepts(frame.encoding, frame.data.nbytes)
                upload = Upload(frame) if is_met else write(frame, upload_format, densities)
        except OffloadError as error:
            raise InvalidFieldError(FIELD, name, f"it cannot be encoded for upload: {error}") from error
        uploads.append(upload)
    return uploads


def answer_uploads(
    data: LabelledSamples,
    edge: Sequence[Prediction],
    cloud: Sequence[Prediction],
    *,
    rule: RegionRule,
    upload_format: UploadFormat,
    answer: AnswerFunction,
) -> RegionUploads:
    """Return the uploads of all samples and the joint answers.

    ``edge`` and ``cloud`` are both models' answers to whole frames; ``answer`` is called with the uploads that differ
    from the frame. Raises InvalidFieldError, and what ``answer`` raises.
    """
    uploads = make_uploads(data, edge, rule, upload_format)
    changed = [i for i, upload in enumerate(uploads) if upload.regions or upload.shrunk]
    pictures = replace(
        data,
        images=[uploads[i].frame for i in changed],
        names=[data.names[i] for i in changed],
        sizes=[uploads[i].frame.data.nbytes for i in changed],
        truths=None,
        boxes=None,
    )
    joint = list(cloud)
    for i, prediction in zip(changed, answer(pictures) if changed else [], strict=True):
        reply = uploads[i].read(Reply(id=uploads[i].frame.id, worker="cloud", prediction=prediction))
        joint[i] = reply.prediction or Prediction()
    return RegionUploads(uploads, np.array([upload.frame.data.nbytes for upload in uploads]), joint)


def objects_in(cloud: Sequence[Prediction], joint: Sequence[Prediction]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each sample how many objects the big model found, and how many of them the joint answer has.

    Both are ``(samples,) int``. An object is a box with a score of at least ``OBJECT_SCORE``; the joint answer has it
    if a box of its class overlaps it by half or more.
    """
    rows = []
    for whole, answer in zip(cloud, joint, strict=True):
        objects = by_label([box for box in whole.boxes or () if box.score >= OBJECT_SCORE])
        boxes = by_label(answer.boxes or ())
        matched = sum(int(match(boxes.get(label, []), labelled)[:, 0].sum()) for label, labelled in objects.items())
        rows.append((sum(map(len, objects.values())), matched))
    counts = np.array(rows, np.int64).reshape(-1, 2)
    return counts[:, 0], counts[:, 1]
