"""A model for Sedna's multi-edge components, for scripts that use one without them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from pathlib import Path
from typing import Any

from halimede.compat.sedna.common.class_factory import post_process_value
from halimede.compat.sedna.common.config import BaseConfig
from halimede.compat.sedna.core.base import model_path
from halimede.compat.sedna.unsupported import MULTI_EDGE, unsupported_class
from halimede.errors import InvalidFieldError

__all__ = ("PLUGIN", "PluggableModel", "PluggableNetworkService")


class PLUGIN(Enum):
    """Sedna's services by their class names."""

    REID_MANAGER = "ReIDManager"
    REID_MANAGER_I = "ReIDManager_I"
    REID = "ReID_Server"
    REID_I = "ReID_I"
    FEATURE_EXTRACTION = "Feature_Extraction"
    FEATURE_EXTRACTION_I = "Feature_Extraction_I"
    VIDEO_ANALYTICS = "VideoAnalytics"
    VIDEO_ANALYTICS_I = "VideoAnalytics_I"


PluggableNetworkService = unsupported_class("PluggableNetworkService", MULTI_EDGE)


class PluggableModel(ABC):
    """A model that is loaded and evaluated when it is made.

    Subclasses implement ``load``, ``predict`` and ``update_plugin``.

    ``model_backend``: what ``inference`` asks to predict, at first the model itself.
    """

    def __init__(self) -> None:
        """Load the model of ``MODEL_URL``. Raises InvalidFieldError if it does not exist."""
        self.config = BaseConfig()
        self.model_backend: Any = self
        if not Path(self.model_path).exists():
            raise InvalidFieldError("MODEL_URL", self.model_path, "name the file of the model")
        self.load()
        self.evaluate()

    @property
    def model_path(self) -> str:
        """The path of the model's file."""
        return model_path(self)

    @abstractmethod
    def load(self, **kwargs: Any) -> None:
        """Load the model from ``self.model_path``."""

    @abstractmethod
    def update_plugin(self, update_object: Any, **kwargs: Any) -> None:
        """Receive an update from another service; nothing here calls it."""

    def evaluate(self, data: Any = None, **kwargs: Any) -> Any:  # noqa: B027  # optional
        """Evaluate the model after loading: by default do nothing."""

    def train(self, **kwargs: Any) -> Any:
        """Train the model, if the subclass can; raises NotImplementedError."""
        raise NotImplementedError

    def inference(self, data: Any = None, post_process: Any = None, **kwargs: Any) -> Any:
        """Return what ``predict`` answers, post-processed by a callable or a registered alias."""
        return post_process_value(self.model_backend.predict(data, **kwargs), post_process)
