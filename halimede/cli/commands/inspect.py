"""``halimede inspect``: shows a model file's inputs and outputs, proposes a Model, and answers a picture with it."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from halimede.answer_text import describe_answer
from halimede.api.base import SEDNA, convert
from halimede.api.model import ModelSpec, in_force
from halimede.api.model_formats import FORMATS, format_of
from halimede.cli.drawings import JPEG_SUFFIXES, write_drawing
from halimede.cli.manifests import SUFFIXES, load
from halimede.cli.output import clean, clean_cell, console, fail, plain, table, to_yaml, warn
from halimede.cli.runner import FAILED, run
from halimede.errors import DecodeError, HalimedeError, InvalidFieldError

if TYPE_CHECKING:
    from halimede.inference import Array, Model
    from halimede.inference.session import Declared, RuntimeSession
    from halimede.messages import Prediction

#: most bytes of a picture
MAX_PICTURE = 64 * 1024**2
#: classes and boxes of an answer that are shown
SHOWN = 5
PLURAL = "models"


@dataclass(slots=True, kw_only=True)
class Inspection:
    """A model's file, its spec, and what is worth a note. ``proposed``: the spec is a proposal."""

    path: Path
    spec: ModelSpec
    session: RuntimeSession
    proposed: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


def inspect(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An ONNX or .tflite file, a SavedModel's folder, an archive; or a Model's manifest."
        ),
    ],
    picture: Annotated[Path | None, typer.Argument(metavar="[PICTURE]", help="A JPEG or PNG file to answer.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the proposed Model into this manifest.")
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option("--draw", metavar="FILE", help="Write the picture with the answer on it (JPEG)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
) -> None:
    """Show a model's inputs and outputs, propose a Model for it, and answer a picture with that.

    A file does not tell on which range of values and order of channels it was trained: check the notes. Given a
    manifest, the command uses the Model in it: edit the steps, and inspect again until the answer is right.

    \b
    Examples:
      halimede inspect small.onnx
      halimede inspect small.onnx cat.jpg --out small.yaml
      halimede inspect small.yaml cat.jpg --draw answer.jpg
    """
    _check_drawing(draw, picture)

    async def command() -> int:
        try:
            from halimede.inference import open_model
        except ModuleNotFoundError as error:
            raise typer.BadParameter(f"{error.name} is not installed: pip install 'halimede[worker]'") from error
        image = _read(picture) if picture else None
        found = _manifest(model) if model.suffix in SUFFIXES else _file(model, out)
        if not as_json:
            _show(model, found)
        try:
            with open_model(found.path, found.spec) as opened:
                answered = _answer(opened, image) if image is not None else None
        except HalimedeError as error:
            fail(f"the model does not answer with this spec: {error}")
            return FAILED
        if as_json:
            _dump(found, answered)
        elif answered:
            _show_answer(picture, *answered)
        _draw(draw, image, answered, as_json=as_json)
        if out and found.proposed:
            _write(out, found.proposed)
            if not as_json:
                console().print(clean(f"\nNext: halimede apply -f {shlex.quote(str(out))}"), markup=False)
        return 0

    run(command)


def _file(model: Path, out: Path | None) -> Inspection:
    """Open a model file and propose a spec for it."""
    from halimede.inference.proposal import propose
    from halimede.inference.session import open_session

    if not model.exists():
        raise InvalidFieldError("MODEL", str(model), "there is no such file or folder")
    path, name = _opened(model)
    model = path if model.is_dir() else model
    session = open_session(path, name, threads=1)
    try:
        made = propose(session, path, name)
    except HalimedeError:  # who opens the model reports it, after its inputs and outputs were shown
        return Inspection(path=path, spec=ModelSpec(url=str(path), format=name), session=session)
    written: dict[str, Any] = {"url": _url(model, out), "format": name}
    if made.preprocess:
        written["preprocess"] = made.preprocess
    if made.postprocess:
        written["postprocess"] = made.postprocess
    called = re.sub(r"[^a-z0-9]+", "-", model.name.partition(".")[0].lower()).strip("-")[:63].strip("-") or "model"
    manifest = {"apiVersion": SEDNA, "kind": "Model", "metadata": {"name": called}, "spec": written}
    spec = convert({**written, "url": str(path)}, ModelSpec, "spec")
    return Inspection(path=path, spec=spec, session=session, proposed=manifest, notes=made.notes)


def _opened(model: Path) -> tuple[Path, str]:
    """Return the file or folder of a model, which may be in an archive, and its format."""
    from halimede.evaluation.service import file_of
    from halimede.models.archive import format_at, kind_of, model_file

    form = format_at(model)
    try:
        if model.is_dir():
            return model_file(model, form), form.name
        if not (model.is_file() and kind_of(model)):
            return model, form.name
    except OSError as error:
        raise InvalidFieldError("MODEL", str(model), f"it cannot be read: {error.strerror}") from error
    except HalimedeError as error:
        raise InvalidFieldError("MODEL", str(model), str(error)) from error
    refused: HalimedeError | None = None
    for name in dict.fromkeys([form.name, *FORMATS]):
        try:
            return file_of(ModelSpec(url=str(model.resolve()), format=name)), name
        except HalimedeError as error:
            refused = refused or error
    raise refused or InvalidFieldError("MODEL", str(model), "there is no model in this archive")


def _manifest(path: Path) -> Inspection:
    """Open the model of the one Model in a manifest."""
    from halimede.evaluation.service import file_of
    from halimede.inference.graph_input import unscaled
    from halimede.inference.session import open_session

    found = [each.resource.spec for each in load([str(path)]) if each.resource.kind.plural == PLURAL]
    if len(found) != 1:
        raise InvalidFieldError("MODEL", str(path), f"give a manifest with one Model: it has {len(found)}")
    spec = in_force(found[0])
    if format_of(spec.format) is None:
        fix = f"only your own estimator reads it: halimede reads {', '.join(FORMATS)}"
        raise InvalidFieldError("spec.format", spec.format, fix)
    file = file_of(spec)
    notes = list(filter(None, [unscaled(file, spec)]))
    return Inspection(path=file, spec=spec, session=open_session(file, spec.format, threads=1), notes=notes)


def _url(model: Path, out: Path | None) -> str:
    """Return the model's path as its manifest has it: relative to the manifest if the model is below its folder."""
    path, folder = model.resolve(), (out.parent if out else Path()).resolve()
    return f"./{path.relative_to(folder)}" if path.is_relative_to(folder) else str(path)


def _read(picture: Path) -> Array:
    """Return the pixels of a picture as a worker sees them."""
    from halimede.frames import encodings
    from halimede.frames.orientation import upright
    from halimede.frames.payloads import open_payload

    try:
        if picture.stat().st_size > MAX_PICTURE:
            raise InvalidFieldError("PICTURE", str(picture), f"give one of at most {MAX_PICTURE >> 20} MiB")
        frame = open_payload(upright(picture.read_bytes()), "")
        return encodings.decode(frame)
    except OSError as error:
        raise InvalidFieldError("PICTURE", str(picture), f"it cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise InvalidFieldError(
            "PICTURE", str(picture), f"{error.cause}: {error.fix or 'give a JPEG or PNG file'}"
        ) from error


def _answer(model: Model, image: Array) -> tuple[Prediction, float]:
    """Return the second of two answers, and its milliseconds: the first call of a model is slow."""
    model.predict([model.prepare(image)])
    began = time.perf_counter()
    (answer,) = model.predict([model.prepare(image)])
    return answer, (time.perf_counter() - began) * 1000


def _dump(found: Inspection, answered: tuple[Prediction, float] | None) -> None:
    """Print all as JSON."""

    def listed(ports: Sequence[Declared]) -> list[dict[str, Any]]:
        return [{"name": each.name, "type": each.type, "shape": list(each.shape)} for each in ports]

    document: dict[str, Any] = {
        "format": found.spec.format,
        "inputs": listed(found.session.get_inputs()),
        "outputs": listed(found.session.get_outputs()),
        "notes": found.notes,
    }
    if found.proposed:
        document["manifest"] = found.proposed
    if answered:
        document["answer"] = {**plain(answered[0]), "ms": round(answered[1], 2)}
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def _row(port: Declared) -> tuple[str, str, str]:
    shape = ", ".join("?" if size is None else str(size) for size in port.shape)
    return port.name, port.type.removeprefix("tensor(").removesuffix(")"), f"[{shape}]"


def _show(model: Path, found: Inspection) -> None:
    shown, form = console(), format_of(found.spec.format)
    size = f", {found.path.stat().st_size / 1024:,.0f} KiB" if found.path.is_file() else ""
    shown.print(clean(f"{model}: {form.title if form else found.spec.format}{size}\n"), markup=False)
    shown.print(table(("INPUT", "TYPE", "SHAPE"), map(_row, found.session.get_inputs())))
    shown.print()
    shown.print(table(("OUTPUT", "TYPE", "SHAPE"), map(_row, found.session.get_outputs())))
    if found.proposed:
        shown.print("\nPROPOSED MODEL", style="bold")
        shown.print(clean(to_yaml(found.proposed)), markup=False, end="")
    for note in found.notes:
        warn(f"Note: {note}")


def _show_answer(picture: Path | None, answer: Prediction, ms: float) -> None:
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
        features = f"{len(answer.embeddings) // 2} features" if answer.embeddings else clean(str(answer.value))
        shown.print(features, markup=False)


def _check_drawing(draw: Path | None, picture: Path | None) -> None:
    if draw and not picture:
        raise typer.BadParameter("give a PICTURE with --draw")
    if draw and draw.suffix.lower() not in JPEG_SUFFIXES:
        raise typer.BadParameter(f"--draw writes a JPEG: end its name with {' or '.join(JPEG_SUFFIXES)}")


def _draw(path: Path | None, image: Array | None, answered: tuple[Prediction, float] | None, *, as_json: bool) -> None:
    """Write the picture with its answer, if there are a file for it, a picture and an answer."""
    if path is None or image is None or answered is None:
        return
    from halimede.frames.drawing import draw_jpeg

    write_drawing("--draw", path, draw_jpeg(image, answered[0]))
    if not as_json:
        console().print(clean(f"drawn: {path}"), markup=False)


def _write(out: Path, manifest: dict[str, Any]) -> None:
    from halimede.system.files import write_atomic

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, to_yaml(manifest).encode())
    except OSError as error:
        raise InvalidFieldError("--out", str(out), f"cannot be written: {error.strerror}") from error
