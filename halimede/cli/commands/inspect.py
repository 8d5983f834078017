"""``halimede inspect``: shows a model file's inputs and outputs, proposes a Model, and answers a picture with it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from halimede.answer_text import describe_answer
from halimede.api.model_formats import format_of
from halimede.cli.drawings import JPEG_SUFFIXES, PNG_SUFFIX
from halimede.cli.manifests import SUFFIXES
from halimede.cli.model_files import Inspection, inspect_file, inspect_manifest
from halimede.cli.output import clean, clean_cell, console, plain, table, to_yaml, warn, write_file
from halimede.cli.runner import FAILED, needs_worker, run
from halimede.errors import DecodeError, HalimedeError, InvalidFieldError, shorten_middle

if TYPE_CHECKING:
    from halimede.inference import Model
    from halimede.inference.session import Declared
    from halimede.messages import Frame, Prediction

#: most bytes of a picture
MAX_PICTURE = 64 * 1024**2
#: most boxes of an answer that are shown
SHOWN = 5
#: most characters of a text of the file's metadata that are shown, and most texts
SHOWN_TEXT = 100
SHOWN_TEXTS = 24


def inspect(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An ONNX or .tflite file, a SavedModel's folder, an archive; or a manifest of Models."
        ),
    ],
    picture: Annotated[Path | None, typer.Argument(metavar="[PICTURE]", help="A JPEG or PNG file to answer.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the proposed Model into this manifest.")
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option("--draw", metavar="FILE", help="Write the picture with the answer on it: .jpg, .jpeg or .png."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
) -> None:
    """Show a model's inputs and outputs, propose a Model for it, and answer a picture with that.

    A file does not tell on which range of values and order of channels it was trained: check the notes. Given a
    manifest, the command uses the Models in it: edit the steps, and inspect again until the answer is right. For
    outputs of no known form nothing is proposed: the command shows the beginning of a script that reads them.

    \b
    Examples:
      halimede inspect small.onnx
      halimede inspect small.onnx cat.jpg --out small.yaml
      halimede inspect small.yaml cat.jpg --draw answer.jpg
    """
    _check_drawing(draw, picture)

    async def command() -> int:
        needs_worker()
        frame = _read(picture) if picture else None
        inspections = inspect_manifest(model) if model.suffix in SUFFIXES else [inspect_file(model, out)]
        if draw and len(inspections) > 1:
            raise InvalidFieldError("--draw", str(draw), f"{model} has {len(inspections)} Models: inspect one of them")
        documents: list[dict[str, Any]] = []
        for inspection in inspections:
            if not as_json:
                _show(model, inspection, several=len(inspections) > 1)
            answered = None if inspection.unknown else _open_and_answer(inspection, frame)
            documents.append(_document(inspection, answered))
            if answered and not as_json:
                _show_answer(picture, *answered)
            _draw(draw, frame, answered, as_json=as_json)
        if as_json:
            whole = documents[0] if len(documents) == 1 else documents
            sys.stdout.write(json.dumps(whole, indent=1) + "\n")
        if any(inspection.unknown for inspection in inspections) and (picture or out):
            return FAILED
        if out and inspections[0].manifest:
            write_file("--out", out, to_yaml(inspections[0].manifest).encode())
            if not as_json:
                console().print(clean(f"\nNext: halimede apply -f {shlex.quote(str(out))}"), markup=False)
        return 0

    run(command)


def _open_and_answer(inspection: Inspection, frame: Frame | None) -> tuple[Prediction, float] | None:
    """Open a model by its spec; return its answer and the milliseconds that it took, None without a picture.

    Raises ModelError if the model does not answer with this spec; before, it prints ``inspection.opening``.
    """
    from halimede.inference import ModelError, open_model

    try:
        with open_model(inspection.path, inspection.spec) as opened:
            return _answer(opened, frame) if frame is not None else None
    except HalimedeError as error:
        if inspection.opening:
            warn("These lines open the axes (a Reshape in the model may still fix them). Then inspect the new file:\n")
            warn(inspection.opening)
        raise ModelError(f"the model does not answer with this spec: {error}") from error


def _read(picture: Path) -> Frame:
    """Return the upright frame of a picture file. Raises InvalidFieldError if it is too large or cannot be decoded."""
    from halimede.frames import encodings
    from halimede.frames.orientation import upright
    from halimede.frames.payloads import open_payload

    try:
        if picture.stat().st_size > MAX_PICTURE:
            raise InvalidFieldError("PICTURE", str(picture), f"give one of at most {MAX_PICTURE >> 20} MiB")
        frame = open_payload(upright(picture.read_bytes()), "")
        encodings.decode(frame)
    except OSError as error:
        raise InvalidFieldError("PICTURE", str(picture), f"it cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise InvalidFieldError(
            "PICTURE", str(picture), f"{error.cause}: {error.fix or 'give a JPEG or PNG file'}"
        ) from error
    return frame


def _answer(model: Model, frame: Frame) -> tuple[Prediction, float]:
    """Return the second of two answers, and its milliseconds: the first call of a model is slow."""
    from halimede.frames.encodings import decode

    image = decode(frame, model.decoding)
    model.predict([model.prepare(image)])
    began = time.perf_counter()
    (answer,) = model.predict([model.prepare(image)])
    return answer, (time.perf_counter() - began) * 1000


def _document(inspection: Inspection, answered: tuple[Prediction, float] | None) -> dict[str, Any]:
    """Return an inspection and the answer, with its milliseconds, as plain data."""

    def port_facts(ports: Sequence[Declared]) -> list[dict[str, Any]]:
        return [{"name": port.name, "type": port.type, "shape": list(port.shape)} for port in ports]

    document: dict[str, Any] = {
        "format": inspection.spec.format,
        "inputs": port_facts(inspection.session.get_inputs()),
        "outputs": port_facts(inspection.session.get_outputs()),
        "notes": inspection.notes,
    }
    if inspection.metadata or inspection.labels:
        document["metadata"] = {**_metadata(inspection), "labels": list(inspection.labels)}
    if (proposal := inspection.proposal) and inspection.manifest:
        document |= {"family": proposal.family, "manifest": inspection.manifest}
    elif proposal:
        document |= {"unknown": proposal.unknown, "script": proposal.skeleton}
    if answered:
        document["answer"] = {**plain(answered[0]), "ms": round(answered[1], 2)}
    return document


def _metadata(inspection: Inspection) -> dict[str, str]:
    """Return the texts of the file's metadata, by name, each shortened and on one line."""
    return {
        key: shorten_middle(" ".join(text.split()), SHOWN_TEXT)
        for key, text in list(inspection.metadata.items())[:SHOWN_TEXTS]
    }


def _row(port: Declared) -> tuple[str, str, str]:
    """Return name, type and shape of a model's input or output; ``?`` is an open axis."""
    shape = ", ".join("?" if size is None else str(size) for size in port.shape)
    return port.name, port.type.removeprefix("tensor(").removesuffix(")"), f"[{shape}]"


def _show(model: Path, inspection: Inspection, *, several: bool) -> None:
    """Print what is known of a model; ``several``: with its name, since a manifest has several."""
    shown, form = console(), format_of(inspection.spec.format)
    path = inspection.path
    size = f", {path.stat().st_size / 1024:,.0f} KiB" if path.is_file() else ""
    title = f"{model}, model/{inspection.name}" if several else str(model)
    shown.print(clean(f"{title}: {form.title if form else inspection.spec.format}{size}\n"), markup=False)
    shown.print(table(("INPUT", "TYPE", "SHAPE"), map(_row, inspection.session.get_inputs())))
    shown.print()
    shown.print(table(("OUTPUT", "TYPE", "SHAPE"), map(_row, inspection.session.get_outputs())))
    rows = list(_metadata(inspection).items())
    if inspection.labels:
        count = "1 class" if len(inspection.labels) == 1 else f"{len(inspection.labels)} classes"
        rows.append((count, shorten_middle(", ".join(inspection.labels), SHOWN_TEXT)))
    if rows:
        shown.print()
        shown.print(table(("METADATA", "VALUE"), [(clean(key), clean(text)) for key, text in rows]))
    if (proposal := inspection.proposal) and inspection.manifest:
        shown.print(f"\nPROPOSED MODEL ({proposal.family})", style="bold", markup=False)
        shown.print(clean(to_yaml(inspection.manifest)), markup=False, end="")
    elif proposal:
        warn(proposal.unknown)
        shown.print(clean(f"\n{proposal.skeleton}"), markup=False, end="")
    for note in inspection.notes:
        warn(f"Note: {note}")


def _show_answer(picture: Path | None, answer: Prediction, ms: float) -> None:
    """Print a model's answer to the picture."""
    shown = console()
    shown.print(f"\nANSWER TO {clean(str(picture))} ({ms:.1f} ms)", style="bold", markup=False)
    if answer.boxes is not None:
        rows = [
            (str(box.label), f"{box.score:.3f}", f"{box.x1:.0f}, {box.y1:.0f}, {box.x2:.0f}, {box.y2:.0f}")
            for box in sorted(answer.boxes, key=lambda box: -box.score)[:SHOWN]
        ]
        count = "1 box" if len(answer.boxes) == 1 else f"{len(answer.boxes)} boxes"
        shown.print(f"{count}, in pixels of the picture")
        shown.print(table(("LABEL", "SCORE", "X1, Y1, X2, Y2"), rows))
    elif answer.lines is not None:
        shown.print(clean_cell(describe_answer(answer)), markup=False)
    elif answer.label is not None:
        score = f", score {answer.score:.3f}" if answer.score is not None else ""
        shown.print(clean(f"{answer.label}{score}"), markup=False)
    else:
        # a feature has two bytes (float16)
        features = f"{len(answer.embeddings) // 2} features" if answer.embeddings else clean(str(answer.value))
        shown.print(features, markup=False)


def _check_drawing(draw: Path | None, picture: Path | None) -> None:
    """Raise typer.BadParameter for ``--draw`` without a picture, or with another suffix than of JPEG and PNG."""
    if draw and not picture:
        raise typer.BadParameter("give a PICTURE with --draw")
    if draw and draw.suffix.lower() not in {*JPEG_SUFFIXES, PNG_SUFFIX}:
        raise typer.BadParameter(f"end the name of --draw with {', '.join(JPEG_SUFFIXES)} or {PNG_SUFFIX}")


def _draw(path: Path | None, frame: Frame | None, answered: tuple[Prediction, float] | None, *, as_json: bool) -> None:
    """Write the picture with its answer, if there are a file for it, a picture and an answer."""
    if path is None or frame is None or answered is None:
        return
    from halimede.frames.drawing import Layer, draw_jpeg, draw_png
    from halimede.frames.encodings import decode

    encode = draw_png if path.suffix.lower() == PNG_SUFFIX else draw_jpeg
    write_file("--draw", path, encode(decode(frame), [Layer(answered[0])]))
    if not as_json:
        console().print(clean(f"drawn: {path}"), markup=False)
