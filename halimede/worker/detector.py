"""The detector of an edge worker whose samples are crops: its model, and what answers the crops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from halimede.errors import InvalidFieldError
from halimede.pipeline.crops import Task
from halimede.pipeline.model_slot import ModelSlot
from halimede.worker.errors import WorkerError
from halimede.worker.model_reload import ModelOpener, UnfitError, desired_of
from halimede.worker.roles import WorkerContext
from halimede.worker.settings import WorkerSettings

#: condition of a worker whose model fails on most samples
FAILING = "EdgeModelFailing"


@asynccontextmanager
async def open_detector(parts: WorkerContext) -> AsyncIterator[ModelSlot | None]:
    """Open the detector during the block; None: samples are whole frames. Raises WorkerError."""
    settings = parts.settings
    if settings.detector is None:
        yield None
        return
    desired = desired_of(settings.detector.path, settings.detector.model)
    try:
        loaded = await ModelOpener(threads=settings.threads).open(desired)
    except UnfitError as error:
        raise WorkerError(error.reason, f"detector: {error}") from error
    async with AsyncExitStack() as stack:
        slot = ModelSlot(loaded)
        stack.push_async_callback(slot.close)
        parts.reporter.troubles.append((FAILING, lambda: _of_detector(slot.failing())))
        yield slot


def _of_detector(error: str) -> str:
    return f"detector: {error}" if error else ""


def crop_task(settings: WorkerSettings) -> Task:
    """Return what the small model answers for a crop. Raises InvalidFieldError for a model without one label."""
    task = settings.model.postprocess.task if settings.model.postprocess else "classification"
    if task not in {"classification", "text"}:
        fix = "use a model of task classification or text: the detector finds the boxes, and each crop has one label"
        raise InvalidFieldError("MODEL_SPEC.postprocess.task", task, fix)
    return "text" if task == "text" else "classification"
