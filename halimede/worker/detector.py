"""The detector of an edge worker whose samples are crops: its model finds boxes, the worker's model answers crops."""

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

#: reason of a worker whose model fails on most samples
FAILING = "EdgeModelFailing"


@asynccontextmanager
async def open_detector(context: WorkerContext) -> AsyncIterator[ModelSlot | None]:
    """Yield the open detector; None: the worker has none, and samples are whole frames.

    Raises WorkerError if its model cannot be used.
    """
    settings = context.settings
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
        context.reporter.troubles.append((FAILING, lambda: _of_detector(slot.failure())))
        yield slot


def _of_detector(error: str) -> str:
    """Return an error as that of the detector; empty stays empty."""
    return f"detector: {error}" if error else ""


def crop_task(settings: WorkerSettings) -> Task:
    """Return the task of the worker's model, which answers the crops; without one in its spec it is classification.

    Raises InvalidFieldError for another task.
    """
    task = settings.model.postprocess.task if settings.model.postprocess else "classification"
    if task not in {"classification", "text"}:
        fix = "use a model of task classification or text: the detector finds the boxes, and each crop has one label"
        raise InvalidFieldError("MODEL_SPEC.postprocess.task", task, fix)
    return "text" if task == "text" else "classification"
