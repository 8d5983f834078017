"""Compares a trained model, the candidate, with the present one on kept samples, and calibrates it.

Both are for the learning loop, and run in a trainer's child process. The comparison is the evidence for the gate, which
decides about a rollout; the calibration becomes part of the new version of a Model. Neither uses samples of the
candidate's training set.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from halimede.api.model import ModelSpec
from halimede.api.model_formats import format_of
from halimede.api.processing import pixels_digest
from halimede.calibration.calibrate import Goal, fit
from halimede.errors import HalimedeError, InvalidFieldError, shorten_middle
from halimede.evaluation.data import LabelledSamples
from halimede.inference.file_model import FileModel, open_file
from halimede.learning_loop.comparison import ReferenceSamples, compare
from halimede.learning_loop.gate import Evidence
from halimede.learning_loop.sampling import resample_indices, weights
from halimede.mining.calibration_file import CalibrationFile
from halimede.models.archive import model_file
from halimede.training.data import NodeData
from halimede.training.kept_data import KeptData

#: samples of a calibration, drawn so that they are distributed as in the stream
CALIBRATED = 1000
#: groups of held-out samples in the evidence, the largest ones
MOST_GROUPS = 256
#: most characters of a calibration: a longer one is left out
MOST_CALIBRATION = 65_536
#: reference samples that both models answer
MOST_REFERENCE = 2000


def compare_models(
    candidate: Path, present: str, spec: ModelSpec, samples: KeptData, reference: NodeData | None
) -> Evidence:
    """Return the comparison of a candidate with the present model; what fails in the candidate is part of it.

    Args:
        candidate: the candidate's file.
        present: path of the present model, a file or a folder.
        spec: the spec of both.
        samples: the kept samples; the held-out ones among them are compared.
        reference: the first data set, whose held-out samples are compared as well; None: there is none.

    """
    labels = spec.labels
    unseen_reference = reference.held_out if reference else None
    drawn = ReferenceSamples(
        pixels=list(unseen_reference.samples[:MOST_REFERENCE]) if unseen_reference else (),
        labels=[labels[i] for i in unseen_reference.labels[:MOST_REFERENCE]] if unseen_reference else (),
    )
    with contextlib.closing(_open_present(present, spec)) as present_model:
        return compare(lambda: open_file(candidate, spec), present_model, samples.judged, samples.stream, drawn)


def calibrate_candidate(candidate: Path, spec: ModelSpec, samples: KeptData) -> CalibrationFile | None:
    """Return the calibration of a candidate for the mining of the service that keeps the samples.

    None: the service has no target share of uploads, or there are too few samples. The next tier's answers are the
    truth: samples with sure labels alone would be easier than the stream. Raises HalimedeError.
    """
    mining = samples.mining
    if mining is None or mining.target_upload_ratio is None or not samples.unseen:
        return None
    sample_weights = weights(samples.stream, [unseen.sample for unseen in samples.unseen])
    chosen = [samples.unseen[i] for i in resample_indices(sample_weights, CALIBRATED, seed=0)]
    with contextlib.closing(open_file(candidate, spec)) as model:
        edge = model.predict([unseen.pixels for unseen in chosen])
    pictures = LabelledSamples(
        images=[unseen.image for unseen in chosen],
        names=[unseen.sample.id for unseen in chosen],
        sizes=[unseen.image.nbytes for unseen in chosen],
    )
    try:
        artefact = fit(
            edge,
            [unseen.cloud for unseen in chosen],
            pictures,
            goal=Goal(target_upload=mining.target_upload_ratio),
            rule=mining.rule,
            mode=mining.mode,
            parameters=mining.parameters,
            labels=spec.labels,
            fusion=False,
        ).artefact
    except InvalidFieldError:
        return None
    return msgspec.structs.replace(artefact, edge_pixels=pixels_digest(spec.decode, spec.preprocess))


def compare_step(
    candidate: Path, present: str, spec: ModelSpec, samples: KeptData, reference: NodeData | None
) -> tuple[str, str]:
    """Return the evidence and the calibration (empty: none), both as JSON. Arguments as of ``compare_models``.

    Raises HalimedeError if the present model cannot be opened.
    """
    evidence = compare_models(candidate, present, spec, samples, reference)
    artefact = None
    if not evidence.error:
        try:
            artefact = calibrate_candidate(candidate, spec, samples)
        except HalimedeError as error:
            evidence = Evidence(error=shorten_middle(f"it cannot be calibrated: {error}", 1024))
    largest = sorted(evidence.groups.items(), key=lambda item: -item[1].samples)[:MOST_GROUPS]
    evidence = msgspec.structs.replace(evidence, groups=dict(largest))
    calibration = msgspec.json.encode(artefact).decode() if artefact else ""
    return msgspec.json.encode(evidence).decode(), calibration if len(calibration) <= MOST_CALIBRATION else ""


def _open_present(path: str, spec: ModelSpec) -> FileModel:
    """Return the present model, opened from a file or a folder. Raises ModelError, FetchError."""
    file, form = Path(path), format_of(spec.format)
    return open_file(model_file(file, form) if form and file.is_dir() else file, spec)
