"""Calibrations of single versions of an edge worker's model: mining and drift refer to the version that answers.

A version of a Model may bring its calibration (``DesiredModel.calibration``). Samples of a canary are mined with the
canary's own. When it becomes the current version, drift is measured against its calibration as well. Versions without a
calibration have that of the service.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import structlog

from halimede.api.mining import AFTER
from halimede.api.processing import pixels_digest
from halimede.errors import HalimedeError, InvalidFieldError, shorten_middle
from halimede.mining import create as create_miner
from halimede.mining.calibration_file import read_artefact
from halimede.models.desired_state import DesiredModel, spec_of
from halimede.models.rollout import ALL_PERCENT
from halimede.pipeline.inference import Inference
from halimede.pipeline.model_slot import LoadedModel
from halimede.pipeline.transcode import UploadEncoder
from halimede.pipeline.upload_policy.policy import UploadPolicy, drift_of
from halimede.system.files import write_atomic
from halimede.worker.roles import region_rule
from halimede.worker.settings import WorkerSettings

log = structlog.get_logger()

#: folder of the calibrations' files, in the worker's own
FOLDER = "calibrations"
#: field of the Model that brings a calibration
FIELD = "spec.versions.calibration"
#: newest files that are kept when another one is written, besides that of the current version
MOST_FILES = 8


def pixels_trouble(calibration: Path | None, desired: DesiredModel | None) -> str:
    """Return for users why a calibration in use cannot be checked, or that the model gets other pixels than it.

    It is empty without a file or a model, and if the file does not record its pixels. A worker has read the file
    before, so it goes on without it.
    """
    try:
        recorded = read_artefact(calibration).edge_pixels if calibration else ""
    except InvalidFieldError as error:
        return str(error)
    if not recorded or desired is None:
        return ""
    spec = spec_of(desired, "spec")
    if recorded == pixels_digest(spec.decode, spec.preprocess):
        return ""
    return (
        "the calibration was made with other pixels: decode or preprocess of the Model has changed since. Run "
        "halimede calibrate again, or restore these fields"
    )


class VersionCalibrations:
    """Gives the models of a worker their calibrations. Call ``begin`` once; ``ModelSlot`` calls ``adopt``.

    ``inference``, ``policy`` and ``encoder`` get what they need of a calibration.

    Attributes:
        trouble: why the current model does not have its own calibration; empty if it has it, or needs none.
        current_file: the file with the calibration of the current model; None: it has no calibration.

    """

    def __init__(
        self, settings: WorkerSettings, inference: Inference, policy: UploadPolicy, encoder: UploadEncoder
    ) -> None:
        self.trouble = ""
        self._settings = settings
        self._inference = inference
        self._policy = policy
        self._encoder = encoder
        self.current_file = settings.calibration

    def begin(self, first: LoadedModel) -> None:
        """Use the calibration of the first model. If it does not fit, set ``trouble`` and use that of the service.

        A later version is refused in this case, but there is none before the first one that could continue.
        """
        try:
            self.adopt(first, ALL_PERCENT)
        except (HalimedeError, OSError) as error:
            self.trouble = f"version {first.version} has the service's calibration, not its own: {error}"
            log.warning("calibration not used", version=first.version, error=shorten_middle(str(error)))

    def adopt(self, loaded: LoadedModel, percent: int) -> None:
        """Use the calibration of a model that gets ``percent`` of the samples (100: it becomes the current one).

        Raises InvalidFieldError for a calibration that does not fit the service's rule, OSError if it cannot be stored.
        """
        settings = self._settings
        text = loaded.desired.calibration if loaded.desired else ""
        path = self._calibration_file(text) if text else settings.calibration
        if text and path and settings.hem_mode == AFTER:
            artefact = read_artefact(path, FIELD)
            if artefact.rule.lower() != settings.hem_name.lower():
                fix = f"calibrate this version for {settings.hem_name}, the service's rule"
                raise InvalidFieldError(f"{FIELD}.rule", artefact.rule, fix)
            parameters = {**settings.hem_parameters, **artefact.parameters}
            self._inference.miners[loaded.model] = create_miner(settings.hem_name, parameters, path, settings.hem_mode)
        if percent < ALL_PERCENT:
            return
        if path != self.current_file:
            calibration = read_artefact(path, FIELD) if path else None
            self.current_file = path
            self._policy.drift = drift_of(calibration, settings.hem_name) if calibration else None
            self._policy.mixture = calibration if settings.fusion == "mixture" else None
            self._encoder.regions = region_rule(settings, path)
        self.trouble = ""

    def _calibration_file(self, text: str) -> Path:
        """Return the path of a file with the text of a calibration; rules read it there. Blocks. Raises OSError."""
        folder = self._settings.state / FOLDER
        path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            unused = [file for file in folder.glob("*.json") if file != self.current_file]
            for old in sorted(unused, key=lambda file: file.stat().st_mtime)[:-MOST_FILES]:
                old.unlink(missing_ok=True)
            write_atomic(path, text.encode())
        return path
