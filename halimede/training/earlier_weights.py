"""The weights that a training begins with: of the present version, which an earlier training made, or of the job."""

from __future__ import annotations

from pathlib import Path

import structlog

from halimede.messages import TensorSpec
from halimede.system.files import write_atomic
from halimede.training.child_messages import TrainingResult
from halimede.training.settings import JobSettings
from halimede.training.tensor_file import decode_finite
from halimede.training.weights import Weights, WeightsError
from halimede.worker.errors import WorkerError

log = structlog.get_logger()
FOLDER = "trained"
#: characters of a model's digest that end the name of its version, and files that are kept
SHORT, MOST = 12, 8


class EarlierWeights:
    """Weights in ``folder``, by the digest of the model that was exported of them. All methods block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, digest: str, content: bytes) -> None:
        """Keep the weights of a model; the oldest ones go. A disk that refuses them costs only the next training."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._folder / digest[:SHORT], content, durable=True)
            for old in sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-MOST]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("weights not kept", folder=str(self._folder), error=error.strerror)

    def of(self, version: str, specs: list[TensorSpec]) -> Weights | None:
        """Return the weights of a version, None if they are not there or are those of another trainer."""
        path = self._folder / version[-SHORT:]
        if not version or not path.is_file():
            return None
        try:
            return decode_finite(path.read_bytes(), specs)
        except (OSError, WeightsError) as error:
            log.warning("weights of the present version not used", version=version, error=str(error))
            return None


def first_weights(job: JobSettings, earlier: EarlierWeights, initial: TrainingResult) -> Weights:
    """Return the weights of the present version, of the job's file, or of the trainer. Raises WorkerError."""
    path = job.initial_weights
    if weights := earlier.of(job.base, initial.specs):
        return weights
    try:
        return decode_finite(Path(path).read_bytes() if path else initial.content, initial.specs)
    except (OSError, WeightsError) as error:
        if path:
            text = f"initialWeights {path}: {error}: give a file of tensors that fit the trainer and the samples"
            raise WorkerError("InitialWeightsInvalid", text) from error
        raise WorkerError("TrainerInvalid", f"initial_weights: {error}") from error
