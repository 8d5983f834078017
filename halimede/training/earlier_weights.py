"""The weights that a training begins with: of the present version, of the job's file, or of the trainer's class."""

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
#: the folder, in the aggregator's own
FOLDER = "trained"
#: characters of a model's digest that end the name of its version
DIGEST_CHARACTERS = 12
#: files that are kept
MOST_FILES = 8


class EarlierWeights:
    """The weights of the last trained models, as files in ``folder``. All methods block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, digest: str, content: bytes) -> None:
        """Store the weights of a model. Only those of the last MOST_FILES models stay.

        ``digest``: of the model's own file; ``content``: the weights as a file of tensors. If they cannot be written, a
        warning is logged, and the next training begins with other weights.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._folder / digest[:DIGEST_CHARACTERS], content, durable=True)
            for old in sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-MOST_FILES]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("weights not kept", folder=str(self._folder), error=error.strerror)

    def read(self, version: str, specs: list[TensorSpec]) -> Weights | None:
        """Return the weights of the model of this version; None without a version, or if they are missing.

        If they cannot be read, or have other tensors than ``specs``, a warning is logged, and None is returned.
        """
        path = self._folder / version[-DIGEST_CHARACTERS:]
        if not version or not path.is_file():
            return None
        try:
            return decode_finite(path.read_bytes(), specs)
        except (OSError, WeightsError) as error:
            log.warning("weights of the present version not used", version=version, error=str(error))
            return None


def first_weights(job: JobSettings, earlier: EarlierWeights, initial: TrainingResult) -> Weights:
    """Return the weights of the present version, else of the job's file, else of the trainer's class. Blocks.

    ``initial``: the result of the trainer's step ``initial``. Raises WorkerError if the job's file or the weights of
    the class cannot be used.
    """
    path = job.initial_weights
    if weights := earlier.read(job.base, initial.specs):
        return weights
    try:
        return decode_finite(Path(path).read_bytes() if path else initial.content, initial.specs)
    except (OSError, WeightsError) as error:
        if path:
            text = f"initialWeights {path}: {error}: give a file of tensors that fit the trainer and the samples"
            raise WorkerError("InitialWeightsInvalid", text) from error
        raise WorkerError("TrainerInvalid", f"initial_weights: {error}") from error
