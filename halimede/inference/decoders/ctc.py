"""Reads a line of text from the output of a CTC model: for each step across the picture a character or a blank.

The text is the best class of each step, without repetitions and then without blanks. Source: Connectionist Temporal
Classification (Graves et al., 2006), section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from halimede.api.processing import Postprocess, ReadText
from halimede.inference.file_metadata import read_metadata
from halimede.inference.geometry import Geometry
from halimede.inference.model import Array, ModelError, SampleError
from halimede.inference.postprocess import SCORE_SLACK, activate
from halimede.messages import Prediction
from halimede.messages.samples import MAX_LABEL_TEXT

#: the field of the spec that errors name
FIELD = "spec.postprocess.text.alphabet"
#: the entry of a file's metadata with one character a line, as PaddleOCR's exporters write it
METADATA_KEY = "character"


class LoadedText(ReadText, kw_only=True):
    """The spec's options for text, with the alphabet: ``characters``, one for each class except the blank, in order."""

    characters: tuple[str, ...]


def load_alphabet(text: ReadText, path: Path, file_format: str) -> LoadedText:
    """Return the options for text with the alphabet of the spec or, if that is empty, of the metadata of the file.

    Raises ModelError if neither has one.
    """
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
    """Return the characters of an alphabet with one on each line. A line may be a space; only line feeds end it."""
    return text.removesuffix("\n").split("\n") if text else []


class TextReader:
    """A ``Reader`` (file_model) of a CTC model's only output ``name``: ``[steps, classes]`` for each sample.

    ``postprocess``: that of the spec. ``text``: its options for text, with the alphabet.
    """

    def __init__(self, name: str, postprocess: Postprocess, text: LoadedText) -> None:
        self.names: tuple[str, ...] = (name,)
        self._activation = postprocess.activation
        self._characters = text.characters
        self._blank = text.blank

    def split(self, outputs: Sequence[Array], count: int) -> list[tuple[Array, ...]]:
        """Return each sample's ``[steps, classes]``. The output has samples first or second. Raises SampleError."""
        (output,) = outputs
        if output.ndim != 3:
            raise SampleError(f"the model gives {list(output.shape)}, which is no [samples, steps, classes] of text")
        if len(output) != count and output.shape[1] == count:
            output = output.transpose(1, 0, 2)
        return [(steps,) for steps in output]

    def read(self, part: tuple[Array, ...], geometry: Geometry | None = None) -> Prediction:  # noqa: ARG002 (others need it)
        """Return the text as the label, with the mean probability of its characters as score. Raises SampleError.

        An empty text has the mean probability of all steps.
        """
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
        """Return the text of each of the model's ``count`` classes; that of the blank is empty.

        With one class more than expected, the last class except the blank is the space. Raises SampleError for any
        other number.
        """
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
