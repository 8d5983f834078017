"""A worker's environment variables under Sedna's names. They are read at each access."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Any, ClassVar

__all__ = ("BaseConfig", "Context")

#: the attributes of BaseConfig: variable, and default if it is not set
VARIABLES: dict[str, tuple[str, str | None]] = {
    "device_category": ("DEVICE_CATEGORY", "CPU"),
    "backend_type": ("BACKEND_TYPE", "UNKNOWN"),
    "lc_server": ("LC_SERVER", ""),
    "original_dataset_url": ("ORIGINAL_DATASET_URL", None),
    "train_dataset_url": ("TRAIN_DATASET_URL", None),
    "test_dataset_url": ("TEST_DATASET_URL", None),
    "data_path_prefix": ("DATA_PATH_PREFIX", ""),
    "namespace": ("NAMESPACE", ""),
    "worker_name": ("WORKER_NAME", ""),
    "service_name": ("SERVICE_NAME", ""),
    "job_name": ("JOB_NAME", "sedna"),
    "model_url": ("MODEL_URL", None),
    "model_name": ("MODEL_NAME", None),
    "parameters": ("PARAMETERS", None),
}


class _FromEnvironment(type):
    """Reads unset attributes from the environment on access."""

    def __getattr__(cls, name: str) -> Any:
        if name not in VARIABLES:
            raise AttributeError(f"BaseConfig has no {name}: there are {', '.join(VARIABLES)}")
        variable, default = VARIABLES[name]
        return os.environ.get(variable, default)


class BaseConfig(metaclass=_FromEnvironment):
    """The environment as attributes, of the class and of its instances.

    Access to another attribute raises AttributeError, except by ``[]`` and ``get``.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self), name)

    def __getitem__(self, name: str) -> Any:
        """Return an attribute; None if it does not exist."""
        return getattr(self, name, None)

    def get(self, name: str, default: Any = "") -> Any:
        """Return an attribute, or ``default`` if it is empty or does not exist."""
        return self[name] or default

    @classmethod
    def is_gpu_device(cls) -> bool:
        """Whether the models should run on a GPU."""
        return bool(cls.device_category == "GPU")

    @classmethod
    def is_npu_device(cls) -> bool:
        """Whether the models should run on an NPU."""
        return bool(cls.device_category == "NPU")

    @classmethod
    def is_torch_backend(cls) -> bool:
        """Whether the script's models use PyTorch."""
        return bool(cls.backend_type == "PYTORCH")

    @classmethod
    def is_tf_backend(cls) -> bool:
        """Whether the script's models use TensorFlow."""
        return bool(cls.backend_type == "TENSORFLOW")

    @classmethod
    def is_kr_backend(cls) -> bool:
        """Whether the script's models use Keras."""
        return bool(cls.backend_type == "KERAS")

    @classmethod
    def is_ms_backend(cls) -> bool:
        """Whether the script's models use MindSpore."""
        return bool(cls.backend_type == "MINDSPORE")


class Context:
    """The script's ``parameters``: the worker's environment variables, by name."""

    parameters: ClassVar[MutableMapping[str, str]] = os.environ

    @classmethod
    def get_parameters(cls, param: str, default: Any = None) -> Any:
        """Return the variable ``param``, else that in upper case, else ``default``. Values of variables are text."""
        return cls.parameters.get(param) or cls.parameters.get(str(param).upper()) or default
