"""Makes the pictures of a report: samples on which both models differ most, drawn with both answers, as HTML."""

from __future__ import annotations

from html import escape

from halimede.answer_text import describe_answer
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.disagreement import Disagreement
from halimede.evaluation.evaluate import EvaluationReport
from halimede.frames.drawing import EDGE_COLOUR, FINAL_COLOUR, Layer, draw_jpeg, truth_layer
from halimede.frames.encodings import is_picture
from halimede.html_report.page import picture
from halimede.messages import Box, Prediction

#: pixels of the longer side of a drawing, and most bytes of its JPEG: 48 of them are in a page
SIDE, MAX_BYTES = 480, 24 * 1024
#: colours of the first and of the last tier's model
COLOURS = (EDGE_COLOUR, FINAL_COLOUR)
#: most characters of a sample's name
MAX_NAME = 120


def disagreements_section(report: EvaluationReport, data: LabelledSamples) -> str:
    """Return the section with the pictures, as HTML; empty if there are none. All text is escaped."""
    names = report.tiers[0].model, report.tiers[-1].model
    pairs = "".join(
        _pair(disagreement, data, names)
        for disagreement in report.disagreements
        if is_picture(data.image(disagreement.number))
    )
    if not pairs:
        return ""
    dashed = " Dashed boxes are the truth." if data.boxes is not None else ""
    keys = [
        f'<span class="key" style="border-color:{colour}"></span> {escape(name)}'
        for name, colour in zip(names, COLOURS, strict=True)
    ]
    return (
        "<h2>Where both models differ most</h2>"
        f"<p>The first picture has the answer of {keys[0]}, the second one that of {keys[1]}.{dashed}</p>{pairs}"
    )


def _pair(disagreement: Disagreement, data: LabelledSamples, names: tuple[str, str]) -> str:
    """Return a sample as HTML: two drawings with their answers as text, and the truth. ``names``: of the models."""
    pixels = data.image(disagreement.number)
    truth: list[Box] = data.boxes[disagreement.number] if data.boxes is not None else []
    answers = disagreement.edge, disagreement.cloud
    drawn = "".join(
        picture(
            draw_jpeg(pixels, [truth_layer(truth), Layer(answer, colour=colour)], side=SIDE, max_bytes=MAX_BYTES),
            f"the answer of {name}",
        )
        for answer, name, colour in zip(answers, names, COLOURS, strict=True)
    )
    cells = [f"{name}: {describe_answer(answer)}" for answer, name in zip(answers, names, strict=True)]
    if data.truths is not None:
        cells.append(f"truth: {describe_answer(Prediction(label=data.truths[disagreement.number]))}")
    elif data.boxes is not None:
        cells.append(f"truth: {describe_answer(Prediction(boxes=truth))}")
    rows = "".join(f"<span>{escape(cell)}</span>" for cell in cells)
    return (
        f'<figure class="differs"><div>{drawn}</div>'
        f"<figcaption><b>{escape(disagreement.sample[:MAX_NAME])}</b>{rows}</figcaption></figure>"
    )
