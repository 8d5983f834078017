"""The common part of Sedna's services: their configuration, their parameters, and their model's path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from halimede.compat.sedna.common.config import BaseConfig, Context
from halimede.compat.sedna.common.log import LOGGER

__all__ = ("JobBase",)


class JobBase:
    """Base of Sedna's services: an estimator (the script's model), and ``config``; None: the environment's settings."""

    parameters = Context

    def __init__(self, estimator: Any = None, config: Any = None) -> None:
        self.config = config or BaseConfig()
        self.estimator = estimator
        self.log = LOGGER

    @property
    def job_name(self) -> str:
        """The name of the service, else of the job."""
        return str(self.config.service_name or self.config.job_name)

    @property
    def worker_name(self) -> str:
        """The name of the worker, empty without one."""
        return str(self.config.worker_name)

    @property
    def model_path(self) -> str:
        """The path of the estimator's model, empty if none is set."""
        return model_path(self.estimator)

    @classmethod
    def get_parameters(cls, param: str, default: Any = None) -> Any:
        """Return an environment variable, exact or in upper case, else ``default``."""
        return cls.parameters.get_parameters(param, default)


def model_path(estimator: object, preferred: str = "") -> str:
    """Return the path of an estimator's model: ``preferred``, else ``MODEL_URL``, else ``MODEL_PATH``.

    If that is a folder, ``MODEL_NAME`` or the estimator's own ``model_name`` names the file in it. Empty if none is
    set: an estimator need not have a file.
    """
    path = preferred or os.environ.get("MODEL_URL") or os.environ.get("MODEL_PATH") or ""
    name = os.environ.get("MODEL_NAME") or getattr(estimator, "model_name", None)
    if path and isinstance(name, str) and name and Path(path).is_dir():
        return str(Path(path) / name)
    return path
