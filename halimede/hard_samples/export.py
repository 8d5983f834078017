"""Writes stored samples as a training data set: a folder of class folders, or pictures with boxes in COCO form.

The labels are answers of a model, or of persons. ``manifest.jsonl`` has the answers of both models for each file, so
that a person knows which samples to check.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

import msgspec

from halimede.errors import InvalidFieldError
from halimede.messages import Box, KeptImage, KeptReply, KeptSample, Prediction

#: whose answers are the labels: the small model's, the big model's, or those of persons
By = Literal["edge", "cloud", "person"]
#: ``folder``: a folder for each class; ``coco``: one folder, and boxes in COCO's JSON
Form = Literal["folder", "coco"]

#: names of files and of the folder of pictures
MANIFEST, ANNOTATIONS, PICTURES = "manifest.jsonl", "annotations.json", "images"
#: names that no class folder may have
RESERVED_NAMES = {MANIFEST, ANNOTATIONS}
#: suffixes of files, by the form of a stored sample
SUFFIXES = {"png": ".png", "jpeg": ".jpg", "npy": ".npy"}
#: most characters and most bytes of a class folder's name, before a suffix of 9: file systems accept 255 bytes
MAX_NAME, MAX_NAME_BYTES = 80, 200


class Export:
    """Writes samples into an empty ``folder``, labelled with the answers of ``by``.

    Call ``open`` first, then ``add`` for each sample, and ``close`` last. All methods block on the disk.

    It skips samples without an answer of ``by``, and samples whose answer has no label (class folders) or no boxes
    (COCO). In COCO form it skips samples that are no picture as well.

    Attributes:
        written: the number of written samples, by label; by an empty text if the answer has no label.
        skipped: the number of skipped samples, by the reason.

    """

    def __init__(self, folder: Path, by: By, form: Form) -> None:
        self.written: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self._folder = folder
        self._by: By = by
        self._form = form
        self._manifest: TextIO | None = None
        #: COCO's entries of the pictures, and all boxes, each with the id of its picture
        self._images: list[dict[str, Any]] = []
        self._boxes: list[tuple[int, Box]] = []

    def open(self) -> None:
        """Make the folder and its manifest. Raises InvalidFieldError if the folder is not empty, and OSError."""
        if self._folder.exists() and (not self._folder.is_dir() or any(self._folder.iterdir())):
            raise InvalidFieldError("FOLDER", str(self._folder), "name a new folder, or an empty one")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._manifest = (self._folder / MANIFEST).open("w", encoding="utf-8")

    def add(self, reply: KeptReply) -> None:
        """Write the sample of a reply, or count it in ``skipped`` if it has no usable answer. Raises OSError.

        The reply must have a sample with its file.
        """
        assert self._manifest is not None  # noqa: S101  # ``open`` was called
        assert reply.sample is not None  # noqa: S101  # the caller requested a sample
        sample = reply.sample
        prediction = answer(sample, self._by)
        reason = self._skip_reason(sample, prediction)
        if reason or prediction is None:
            self.skipped[reason] += 1
            return
        name = sample.id + SUFFIXES[sample.image.form]
        file = f"{class_folder(prediction.label or '')}/{name}" if self._form == "folder" else f"{PICTURES}/{name}"
        path = self._folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(reply.data)
        if self._form == "coco":
            self._add_annotations(sample.image, prediction, file)
        self.written[prediction.label or ""] += 1
        self._manifest.write(json.dumps({"file": file, **as_json(reply)}, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the manifest, and write the annotations in COCO form; without samples, leave the folder empty.

        Raises OSError.
        """
        if self._manifest:
            self._manifest.close()
        if not self.written:
            (self._folder / MANIFEST).unlink(missing_ok=True)
        elif self._form == "coco":
            (self._folder / ANNOTATIONS).write_text(json.dumps(self._coco(), ensure_ascii=False), encoding="utf-8")

    def _skip_reason(self, sample: KeptSample, prediction: Prediction | None) -> str:
        """Return why a sample is skipped; empty: it has a usable answer."""
        if prediction is None:
            return f"the {self._by} gave no answer"
        if self._form == "folder":
            return "" if prediction.label else "the answer has no label"
        if sample.image.form == "npy":
            return "it is no picture"
        return "" if prediction.boxes is not None else "the answer has no boxes"

    def _add_annotations(self, image: KeptImage, prediction: Prediction, file: str) -> None:
        """Record a picture and its boxes for COCO. ``file``: the path of the picture in the folder."""
        number = len(self._images) + 1
        self._images.append({"id": number, "file_name": file, "width": image.width, "height": image.height})
        self._boxes += [(number, box) for box in prediction.boxes or ()]

    def _coco(self) -> dict[str, Any]:
        """Return all annotations in COCO's form."""
        names = sorted({str(box.label) for _, box in self._boxes})
        numbers = {name: i for i, name in enumerate(names, 1)}
        annotations = [
            {
                "id": i,
                "image_id": image,
                "category_id": numbers[str(box.label)],
                "bbox": [box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1],
                "area": (box.x2 - box.x1) * (box.y2 - box.y1),
                "iscrowd": 0,
                "score": box.score,
            }
            for i, (image, box) in enumerate(self._boxes, 1)
        ]
        categories = [{"id": number, "name": name} for name, number in numbers.items()]
        info = {"description": f"Hard samples; boxes by the {self._by} model", "manifest": MANIFEST}
        return {"info": info, "images": self._images, "annotations": annotations, "categories": categories}


def answer(sample: KeptSample, by: By) -> Prediction | None:
    """Return the small model's prediction, the cloud's final answer, or the label that persons gave.

    None if there is no such answer, or persons gave different labels.
    """
    if by == "edge":
        return sample.edge
    if by == "person":
        labels = {label.label for label in sample.labels}
        return Prediction(label=labels.pop()) if len(labels) == 1 else None
    return sample.result.prediction if sample.result.by == "cloud" else None


def class_folder(label: str) -> str:
    """Return a folder name for a label: invalid characters become ``_``, and different labels have different names."""
    name = re.sub(r"[^\w .-]", "_", label)[:MAX_NAME]
    name = name.encode()[:MAX_NAME_BYTES].decode(errors="ignore").strip(" .")
    if name == label and name not in RESERVED_NAMES:
        return name
    return f"{name or 'label'}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def as_json(reply: KeptReply) -> dict[str, Any]:
    """Return the facts about the sample of a reply as values for JSON: both answers, and the model of each."""
    sample = reply.sample
    assert sample is not None  # noqa: S101  # the caller requested a sample
    result, edge = sample.result, sample.edge
    return {
        "id": sample.id,
        "namespace": reply.namespace,
        "service": reply.service,
        "node": reply.node,
        "camera": result.camera,
        "keptAt": moment(sample.kept_ns),
        "capturedAt": moment(result.captured_ns) if result.captured_ns else "",
        "stratum": "easy" if result.audit else "hard",
        "reason": result.reason,
        "hardness": result.hardness,
        "cut": result.cut,
        "image": {
            "file": sample.image.file,
            "form": sample.image.form,
            "sha256": sample.image.sha256,
            "bytes": sample.image.size,
        },
        "labels": [{"label": label.label, "by": label.by} for label in sample.labels],
        "edge": {
            "worker": reply.worker,
            "model": sample.edge_model,
            "digest": sample.edge_digest,
            **(_as_plain(edge) if edge else {}),
        },
        "final": {
            "by": result.by,
            "worker": result.worker,
            "model": result.model,
            "tier": result.tier,
            "degraded": result.degraded,
            "mixed": result.mixed,
            **_as_plain(result.prediction),
        },
    }


def _as_plain(prediction: Prediction) -> dict[str, Any]:
    """Return label, score and boxes (if it has boxes) of an answer as values for JSON."""
    plain: dict[str, Any] = {"label": prediction.label, "score": prediction.score}
    if prediction.boxes is not None:
        plain["boxes"] = [list(msgspec.structs.astuple(box)) for box in prediction.boxes]
    return plain


def moment(ns: int) -> str:
    """Return nanoseconds since 1970 as readable text, in UTC; ``?`` if no calendar has that time."""
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):
        return "?"
