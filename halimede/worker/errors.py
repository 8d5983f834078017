"""Errors of a worker that its user can fix, each with a reason in one word, which the service's conditions show."""

from __future__ import annotations

from halimede.errors import HalimedeError, InvalidFieldError, RefusedError
from halimede.pipeline.executor import ModelStuckError

#: reasons of refused fields, by prefix of the field; the longest matching prefix counts
REASONS = {
    "spec.edgeWorker.hardExampleMining.name": "HardExampleMiningUnknown",
    "spec.edgeWorker.hardExampleMining": "HardExampleMiningInvalid",
    "spec.edgeWorker.hardExampleMining.parameters.calibration": "CalibrationInvalid",
    "spec.edgeWorker.source": "SourceInvalid",
    "spec.application": "ApplicationInvalid",
    "CALIBRATION_URL": "CalibrationInvalid",
    "AUDIT_SHARE": "AuditShareTooLarge",
    "ESTIMATOR": "EstimatorInvalid",
    "HALIMEDE_STATE": "StateUnusable",
}


class WorkerError(HalimedeError):
    """The worker cannot run with its settings. ``reason``: one word for conditions, such as ``ModelInvalid``."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


def as_mistake(error: Exception) -> WorkerError | None:
    """Return the user's mistake in an error or a group of errors; None if there is a defect or a fault in it."""
    while isinstance(error, ExceptionGroup):
        error = next((e for e in error.exceptions if as_mistake(e) is None), error.exceptions[0])
    if isinstance(error, WorkerError):
        return error
    if isinstance(error, ModelStuckError):
        return WorkerError("ModelStuck", str(error))
    if isinstance(error, RefusedError):
        return WorkerError("BrokerRefused", str(error))
    if not isinstance(error, InvalidFieldError):
        return None
    fitting = [prefix for prefix in REASONS if error.field.startswith(prefix)]
    return WorkerError(REASONS[max(fitting, key=len)] if fitting else "Invalid", str(error))
