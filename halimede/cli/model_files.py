"""Opens model files on this machine for ``inspect`` and ``models``, with a proposed Model or that in a manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halimede.api.base import SEDNA, convert
from halimede.api.class_names import unnamed_classes
from halimede.api.model import ModelSpec, in_force
from halimede.api.model_formats import FORMATS, ONNX, format_of
from halimede.cli.manifests import load
from halimede.errors import HalimedeError, InvalidFieldError

if TYPE_CHECKING:
    from halimede.inference.proposals.proposal import Proposal
    from halimede.inference.session import RuntimeSession

#: most characters of a Model's name
MAX_NAME = 63
#: the kind Model in the plural
PLURAL = "models"


@dataclass(slots=True, kw_only=True)
class Inspection:
    """An opened model file, with what is known of it.

    Attributes:
        path: the file or folder that was opened.
        spec: the proposed spec, or that of the manifest; if nothing is proposed, only url and format.
        session: the opened file, with its inputs and outputs.
        name: the name of the Model.
        proposal: what the file shows; None for a Model of a manifest, and for a file that takes no sample.
        manifest: the proposed Model as a document; None: nothing is proposed.
        metadata: texts in the file, by name.
        labels: names of classes in the file.
        notes: what a user should know or check.
        opening: Python lines that make the fixed axes of an ONNX file open; empty: it has none, or a ``proposal``.

    """

    path: Path
    spec: ModelSpec
    session: RuntimeSession
    name: str = ""
    proposal: Proposal | None = None
    manifest: dict[str, Any] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    opening: str = ""

    @property
    def unknown(self) -> str:
        """Why nothing is proposed for the outputs; empty: a Model is proposed, or there is no ``proposal``."""
        return self.proposal.unknown if self.proposal else ""


def inspect_file(model: Path, out: Path | None, preset: str = "", name: str = "") -> Inspection:
    """Open a model file and propose a Model for it.

    ``out``: the manifest that the Model is for; its url is relative to that. ``preset``: what the outputs are; empty:
    as the file shows. ``name``: the Model's; empty: from the file's name. Raises InvalidFieldError for an invalid file
    or preset, and HalimedeError if the file cannot be opened.
    """
    from halimede.inference.file_metadata import read_metadata
    from halimede.inference.proposals.proposal import propose
    from halimede.inference.proposals.skeleton import fixed_batch_input, opening_lines
    from halimede.inference.session import open_session

    if not model.exists():
        raise InvalidFieldError("MODEL", str(model), "there is no such file or folder")
    path, form = _open(model)
    model = path if model.is_dir() else model
    session = open_session(path, form, threads=1)
    metadata = read_metadata(path, form)
    inspection = Inspection(
        path=path,
        spec=ModelSpec(url=str(path), format=form),
        session=session,
        name=name or _name(model),
        metadata=metadata.texts,
        labels=metadata.labels,
    )
    try:
        proposal = propose(session, path, form, preset)
    except InvalidFieldError:  # of the preset
        raise
    except HalimedeError:  # who opens the model reports it, after its inputs and outputs were shown
        inspection.opening = opening_lines(session, model) if form == ONNX.name and fixed_batch_input(session) else ""
        return inspection
    inspection.proposal, inspection.notes = proposal, proposal.notes
    if not proposal.unknown:
        written = _fields(proposal, _url(model, out), form)
        metadata_field = {"name": inspection.name}
        inspection.manifest = {"apiVersion": SEDNA, "kind": "Model", "metadata": metadata_field, "spec": written}
        inspection.spec = convert({**written, "url": str(path)}, ModelSpec, "spec")
        inspection.notes += filter(None, [unnamed_classes(inspection.spec)])
    return inspection


def _fields(proposal: Proposal, url: str, form: str) -> dict[str, Any]:
    """Return a proposal as the spec of a Model."""
    written: dict[str, Any] = {"url": url, "format": form}
    if proposal.labels:
        written["labels"] = list(proposal.labels)
    if proposal.preprocess:
        if any(step["op"] in {"resize", "fit", "letterbox"} for step in proposal.preprocess):
            written["decode"] = "scaled"  # a JPEG that is resized anyway may be decoded at a smaller size
        written["preprocess"] = proposal.preprocess
    if proposal.postprocess:
        written["postprocess"] = proposal.postprocess
    return written


def _name(model: Path) -> str:
    """Return a valid name for the Model of a file, from the file's name."""
    name = re.sub(r"[^a-z0-9]+", "-", model.name.partition(".")[0].lower()).strip("-")
    return name[:MAX_NAME].strip("-") or "model"


def _open(model: Path) -> tuple[Path, str]:
    """Return the file or folder of a model, unpacked if it is an archive, and its format. Raises HalimedeError."""
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


def inspect_manifest(path: Path) -> list[Inspection]:
    """Open the models of all Models in a manifest, in its order. Raises HalimedeError, also without a Model."""
    manifests = [manifest for manifest in load([str(path)]) if manifest.resource.kind.plural == PLURAL]
    if not manifests:
        raise InvalidFieldError("MODEL", str(path), "give a manifest with one Model: it has 0")
    manifests.sort(key=lambda manifest: manifest.document)
    return [_inspect_spec(manifest.resource.metadata.name, manifest.resource.spec) for manifest in manifests]


def _inspect_spec(name: str, model: ModelSpec) -> Inspection:
    """Open the model of a Model in a manifest. Raises HalimedeError."""
    from halimede.evaluation.service import file_of
    from halimede.inference.file_metadata import read_metadata
    from halimede.inference.graph_input import scale_warning
    from halimede.inference.session import open_session

    spec = in_force(model)
    if format_of(spec.format) is None:
        fix = f"only your own estimator reads it: halimede reads {', '.join(FORMATS)}"
        raise InvalidFieldError("spec.format", spec.format, fix)
    file = file_of(spec)
    metadata = read_metadata(file, spec.format)
    return Inspection(
        path=file,
        spec=spec,
        session=open_session(file, spec.format, threads=1),
        name=name,
        metadata=metadata.texts,
        labels=metadata.labels,
        notes=list(filter(None, [scale_warning(file, spec), unnamed_classes(spec)])),
    )


def _url(model: Path, out: Path | None) -> str:
    """Return the model's path as its manifest has it: relative to the manifest if the model is below its folder."""
    path, folder = model.resolve(), (out.parent if out else Path()).resolve()
    return f"./{path.relative_to(folder)}" if path.is_relative_to(folder) else str(path)
