"""A script's big model as the model of a cloud worker: it answers calls of scripts, and frames."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from halimede.compat.sedna import environment
from halimede.compat.sedna.call_codec import CallHeader, read_call, write_answer
from halimede.errors import DecodeError, describe_exception
from halimede.inference import Array, Model, SampleError
from halimede.inference.model import WrappedModel
from halimede.messages import Frame, Prediction
from halimede.worker.joint_inference import joint_inference
from halimede.worker.main import Prepare
from halimede.worker.roles import RoleJob
from halimede.worker.settings import WorkerSettings


class Service(Protocol):
    """The interface of a script's cloud worker: ``BigModelService``."""

    def load(self, path: str) -> None:
        """Load the model from a path."""

    def inference(self, data: Any = None, post_process: Any = None, **kwargs: Any) -> Any:
        """Return the answer to one sample; ``post_process``: a callable or a registered alias."""


class Estimator:
    """A ``Service`` as an estimator of halimede's worker: loaded from a path, it answers arrays."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def load(self, model_url: str) -> None:
        """Load the model from the path ``model_url``."""
        self._service.load(model_url)

    def predict(self, data: Array) -> Any:
        """Return the answer to one frame that is not from a script."""
        return self._service.inference(data)


class ScriptCall:
    """One call, which is answered once, although a batch is run again in parts if another call of it fails.

    ``data``, ``call``: what ``read_call`` returns.
    """

    def __init__(self, data: Any, call: CallHeader) -> None:
        self._data, self._call = data, call
        self._answer: Prediction | None = None
        self._error: SampleError | None = None

    def answer(self, service: Service) -> Prediction:
        """Return the answer. Raises SampleError with the error of the script's code."""
        if self._answer is None and self._error is None:
            try:
                answer = service.inference(self._data, post_process=self._call.post_process, **self._call.arguments)
                self._answer = write_answer(answer)
            except SampleError as error:
                self._error = error
            except (Exception, SystemExit) as error:  # noqa: BLE001  # a user's code
                self._error = SampleError(f"the estimator failed: {describe_exception(error)}")
        if self._answer is None:
            assert self._error is not None  # noqa: S101  # one of them is set
            raise self._error
        return self._answer


class BigModel(WrappedModel):
    """A ``WrappedModel`` that answers scripts' calls with ``service``, and other frames with the same estimator."""

    def __init__(self, model: Model, service: Service) -> None:
        super().__init__(model)
        self._service = service

    def prepare_frame(self, frame: Frame, image: Array) -> Array:
        """Return a script's call as the only element of an array of objects, or another frame as its model wants it.

        Raises SampleError for an invalid call.
        """
        try:
            call = read_call(frame)
        except DecodeError as error:
            raise SampleError(str(error)) from error
        if call is None:
            return super().prepare_frame(frame, image)
        wrapped = np.empty((), object)
        wrapped[()] = ScriptCall(*call)
        return wrapped

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Answer calls one by one, because Sedna's estimators take one sample, and frames in a batch.

        Raises SampleError.
        """
        if batch and batch[0].dtype == object:
            calls: list[ScriptCall] = [sample.item() for sample in batch]
            return [call.answer(self._service) for call in calls]
        return super().predict(batch)


def worker_arguments(service: Service) -> tuple[Estimator, Mapping[str, str], Prepare]:
    """Return the arguments with which ``halimede.worker.main.main`` runs a script's cloud worker."""

    def prepare(environ: Mapping[str, str], _: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: FBT001
        settings = environment.settings("cloud", environ)
        return settings, replace(joint_inference(settings), compose=lambda model: BigModel(model, service))

    return Estimator(service), os.environ, prepare
