"""Kept samples as a data set to train on: a folder of class folders, or pictures with boxes as COCO writes them.

What the samples are called is what a model said, not the truth: ``manifest.jsonl`` says of each file which model said
what, so that whoever looks through them knows where to look twice.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

from halimede.errors import InvalidFieldError
from halimede.messages import Box, KeptReply, KeptSample, Prediction

By = Literal["edge", "cloud"]
Form = Literal["folder", "coco"]

MANIFEST, ANNOTATIONS, PICTURES = "manifest.jsonl", "annotations.json", "images"
#: what else is in the folder
OURS = {MANIFEST, ANNOTATIONS}
SUFFIXES = {"png": ".png", "jpeg": ".jpg", "npy": ".npy"}
#: characters of a class's folder, and bytes: file systems take 255
MOST_NAME, MOST_NAME_BYTES = 80, 200


class Export:
    """Writes samples into ``folder``, which is empty, labelled with the answers of ``by``. ``close`` ends it.

    Left out, and counted in ``left_out``: what that model gave no answer to, and what its answer gives no name to (of
    a folder) or no boxes (of COCO).
    """

    def __init__(self, folder: Path, by: By, form: Form) -> None:
        self.written: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._folder = folder
        self._by: By = by
        self._form = form
        self._manifest: TextIO | None = None
        self._images: list[dict[str, Any]] = []
        self._boxes: list[tuple[int, Box]] = []

    def open(self) -> None:
        """Make the folder. Raises InvalidFieldError for one that has something in it, and OSError."""
        if self._folder.exists() and (not self._folder.is_dir() or any(self._folder.iterdir())):
            raise InvalidFieldError("FOLDER", str(self._folder), "name a new folder, or an empty one")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._manifest = (self._folder / MANIFEST).open("w", encoding="utf-8")

    def add(self, reply: KeptReply) -> None:
        """Write one sample, if it has an answer of the kind that is asked for. Raises OSError."""
        assert self._manifest is not None  # noqa: S101  # ``open`` was called
        assert reply.sample is not None  # noqa: S101  # the caller asked for one
        sample = reply.sample
        said = answer(sample, self._by)
        reason = self._lacks(sample, said)
        if reason or said is None:
            self.left_out[reason] += 1
            return
        name = sample.id + SUFFIXES[sample.image.form]
        file = f"{class_folder(said.label or '')}/{name}" if self._form == "folder" else f"{PICTURES}/{name}"
        path = self._folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(reply.data)
        if self._form == "coco":
            self._note(sample, said, file)
        self.written[said.label or ""] += 1
        self._manifest.write(json.dumps({"file": file, **as_json(reply)}, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Write what stands in one file about all of them; of none the folder is left empty. Raises OSError."""
        if self._manifest:
            self._manifest.close()
        if not self.written:
            (self._folder / MANIFEST).unlink(missing_ok=True)
        elif self._form == "coco":
            (self._folder / ANNOTATIONS).write_text(json.dumps(self._coco(), ensure_ascii=False), encoding="utf-8")

    def _lacks(self, sample: KeptSample, said: Prediction | None) -> str:
        if said is None:
            return f"the {self._by} gave no answer"
        if self._form == "folder":
            return "" if said.label else "the answer has no label"
        if sample.image.form == "npy":
            return "it is no picture"
        return "" if said.boxes is not None else "the answer has no boxes"

    def _note(self, sample: KeptSample, said: Prediction, file: str) -> None:
        number = len(self._images) + 1
        size = {"width": sample.image.width, "height": sample.image.height}
        self._images.append({"id": number, "file_name": file, **size})
        self._boxes += [(number, box) for box in said.boxes or ()]

    def _coco(self) -> dict[str, Any]:
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
    """Return what the edge model said, or the final answer where the cloud had a part in it; None: there is none."""
    if by == "edge":
        return sample.edge
    return sample.result.prediction if sample.result.by == "cloud" else None


def class_folder(label: str) -> str:
    """Return a label as the name of a folder: what a path cannot hold is left out, and two labels never meet."""
    kept = re.sub(r"[^\w .-]", "_", label)[:MOST_NAME]
    kept = kept.encode()[:MOST_NAME_BYTES].decode(errors="ignore").strip(" .")
    if kept == label and kept not in OURS:
        return kept
    return f"{kept or 'label'}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def as_json(reply: KeptReply) -> dict[str, Any]:
    """Return what is known of a sample: both answers, and of which model each is."""
    sample = reply.sample
    assert sample is not None  # noqa: S101  # the caller asked for one
    result, edge = sample.result, sample.edge
    return {
        "id": sample.id,
        "namespace": reply.namespace,
        "service": reply.service,
        "node": reply.node,
        "camera": result.camera,
        "keptAt": moment(sample.kept_ns),
        "capturedAt": moment(result.captured_ns) if result.captured_ns else "",
        "reason": result.reason,
        "hardness": result.hardness,
        "cut": result.cut,
        "image": {"form": sample.image.form, "sha256": sample.image.sha256, "bytes": sample.image.size},
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


def _as_plain(said: Prediction) -> dict[str, Any]:
    boxes = (
        {"boxes": [[b.x1, b.y1, b.x2, b.y2, b.score, b.label] for b in said.boxes]} if said.boxes is not None else {}
    )
    return {"label": said.label, "score": said.score, **boxes}


def moment(ns: int) -> str:
    """Return a clock's nanoseconds since 1970 as people read them, in UTC."""
    try:
        return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(" ", "milliseconds").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):
        return "?"
