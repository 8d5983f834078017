"""``halimede models add``: writes a manifest with the Model of a model's file. It needs no broker."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from halimede.cli.model_files import inspect_file
from halimede.cli.output import clean, console, to_yaml, warn, write_file
from halimede.cli.runner import needs_worker, run
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.names import check_name

models = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="rich")


@models.callback()
def describe() -> None:
    """Write the Model of a model's file, as `inspect` proposes it or as a preset says.

    \b
    Examples:
      halimede models add face_detection_front.tflite
      halimede models add resnet50.onnx --preset imagenet --name scenes
    """


@models.command()
def add(
    model: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="An ONNX or .tflite file, a SavedModel's folder, or an archive."),
    ],
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="What the outputs are: ctc, rows, yolo, yolov5, ssd-anchors, pair, centerface, centernet, embedding,"
            " classes or imagenet. Default: what the file shows.",
            show_default=False,
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="The Model's name. Default: the file's.", show_default=False),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The manifest. Default: NAME.yaml in this folder.", show_default=False
        ),
    ] = None,
) -> None:
    """Write a Model for a file into a manifest. An existing manifest is an error, and not changed.

    Without a preset, the family of the outputs is recognised by their structure and the file's metadata. What is not
    recognised needs a preset or a script. The Model is opened once before it is written.

    \b
    Examples:
      halimede models add face_detection_front.tflite
      halimede models add resnet50.onnx --preset imagenet --name scenes
    """

    async def command() -> int:
        needs_worker()
        from halimede.inference import open_model

        inspection = inspect_file(model, out, preset, check_name("--name", name) if name else "")
        if inspection.unknown:
            raise InvalidFieldError("FILE", str(model), inspection.unknown)
        path = out or Path(f"{inspection.name}.yaml")
        if path.exists():
            raise InvalidFieldError("--out", str(path), "it exists already: remove it, or name another file")
        try:
            with open_model(inspection.path, inspection.spec):
                pass
        except HalimedeError as error:
            inspect = f"`halimede inspect {shlex.quote(str(model))}`"
            lines = f". {inspect} prints Python lines that open its fixed axes" if inspection.opening else ""
            text = f"the model cannot be opened with this manifest: {error}{lines}"
            raise InvalidFieldError("FILE", str(model), text) from error
        manifest = to_yaml(inspection.manifest or {})
        write_file("--out", path, manifest.encode())
        console().print(clean(manifest), markup=False, end="")
        for note in inspection.notes:
            warn(f"Note: {note}")
        shown = shlex.quote(str(path))
        console().print(clean(f"\nWritten: {path}. Next: halimede inspect {shown} PICTURE"), markup=False)
        return 0

    run(command)
