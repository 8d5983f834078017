"""Reads a line of text from the steps of a CTC model: one character or a blank for each step.

Source: Connectionist Temporal Classification (Graves et al., 2006), section 3.1: the best path, without repetitions and
then without blanks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from halimede.api.processing import Postprocess, ReadText
from halimede.inference.file_metadata import read_metadata
from halimede.inference.geometry import Geometry
from halimede.inference.model import Array, ModelError, SampleError
from halimede.inference.postprocess import activate
from halimede.messages import Prediction
from halimede.messages.samples import MAX_LABEL_TEXT

FIELD = "spec.postprocess.text.alphabet"
#: the entry of a file's metadata with one character a line, as PaddleOCR's exporters write it
METADATA_KEY = "character"
#: tolerance by which rounding may raise a probability above 1
SCORE_SLACK = 1e-3


class LoadedText(ReadText, kw_only=True):
    """A reader of text whose alphabet is known: ``characters``, in the model's order."""

    characters: tuple[str, ...]


def load_alphabet(text: ReadText, path: Path, file_format: str) -> LoadedText:
    """Return the reader with the characters of its field, or of the file's metadata. Raises ModelError."""
    characters: Sequence[str] = tuple(text.alphabet)
    if not characters:
        characters = lines_of(read_metadata(path, file_format).texts.get(METADATA_KEY, ""))
    if not characters:
        raise ModelError(
            f"{FIELD}: '' is empty, and the file has no metadata {METADATA_KEY!r}: write the characters that the model "
            "was trained on, in its order and without the blank"
        )
    return LoadedText(decode=text.decode, alphabet=text.alphabet, blank=text.blank, characters=tuple(characters))


def lines_of(text: str) -> list[str]:
    """Return the lines of an alphabet: a line may be a space, and only line feeds end one."""
    return text.removesuffix("\n").split("\n") if text else []


class TextReader:
    """Reads the only output of a CTC model, ``[steps, classes]`` at a time."""

    def __init__(self, name: str, postprocess: Postprocess, text: LoadedText) -> None:
        self.names: tuple[str, ...] = (name,)
        self._activation = postprocess.activation
        self._characters = text.characters
        self._blank = text.blank

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:
        """Divide the output by samples: ``[samples, steps, classes]``, or with steps first. Raises SampleError."""
        (output,) = outputs
        if output.ndim != 3:
            raise SampleError(f"the model gives {list(output.shape)}, which is no [samples, steps, classes] of text")
        if len(output) != count and output.shape[1] == count:
            output = output.transpose(1, 0, 2)
        return [(steps,) for steps in output]

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:  # noqa: ARG002 (others need it)
        """Read one sample's steps: the text is the label, its mean probability the score. Raises SampleError."""
        steps = np.asarray(part[0], np.float64)
        names = self._names(steps.shape[1])
        if not steps.size or not np.isfinite(steps).all():
            raise SampleError("the model gives NaN, infinity or no step of text for this sample")
        if self._activation == "softmax":
            steps = activate(steps, "softmax")
        classes = steps.argmax(axis=1)
        scores = steps[np.arange(len(steps)), classes]
        if scores.max() > 1 + SCORE_SLACK or scores.min() < 0:
            text = f"from {scores.min():.4g} to {scores.max():.4g}, which are no probabilities"
            raise SampleError(f"the model gives steps of text {text}: set spec.postprocess.activation to softmax")
        blank = 0 if self._blank == "first" else len(names) - 1
        chosen = (classes != blank) & np.concatenate([[True], classes[1:] != classes[:-1]])
        label = "".join(names[index] for index in classes[chosen])
        if len(label) > MAX_LABEL_TEXT:
            raise SampleError(
                f"the model reads {len(label)} characters, more than {MAX_LABEL_TEXT}: send a line at a time"
            )
        score = float(scores[chosen].mean() if chosen.any() else scores.mean())
        return Prediction(label=label, score=min(score, 1.0))

    def _names(self, count: int) -> list[str]:
        """Return the text of each of the model's classes, the blank's too. Raises SampleError."""
        names = list(self._characters)
        if len(names) + 2 == count:
            names.append(" ")
        if len(names) + 1 != count:
            raise SampleError(
                f"{FIELD} has {len(self._characters)} characters and the model {count} classes: "
                f"give {count - 1} characters (or {count - 2}, and the last class is the space), in the model's order"
            )
        names.insert(0 if self._blank == "first" else len(names), "")
        return names
