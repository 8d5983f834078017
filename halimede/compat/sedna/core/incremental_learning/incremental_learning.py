"""Sedna's IncrementalLearning: three scripts that train, evaluate and serve a model, each with this class.

Nothing here needs the bus. The phases are those of a TrainingModel with ``spec.loop``, which needs no script.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

from halimede.compat.sedna.common.class_factory import post_process_value
from halimede.compat.sedna.core.base import JobBase, model_path
from halimede.compat.sedna.core.joint_inference import JointInference
from halimede.compat.sedna.core.joint_inference.joint_inference import rule_of
from halimede.errors import InvalidFieldError
from halimede.inference.estimator import load_instance

__all__ = ("IncrementalLearning",)


class IncrementalLearning(JobBase):
    """A model that is trained further. ``estimator``: a class or an instance.

    ``hard_example_mining``: the rule that finds hard samples, ``{"method": name, "param": {...}}``; without one,
    HEM_NAME of the environment names it. Raises InvalidFieldError for an invalid rule.
    """

    def __init__(
        self, estimator: Any, hard_example_mining: Mapping[str, Any] | None = None, config: Any = None
    ) -> None:
        super().__init__(estimator() if inspect.isclass(estimator) else estimator, config)
        chosen = hard_example_mining or self.get_hem_algorithm_from_config()
        #: the rule, None without one: then no sample is hard
        self.hard_example_mining_algorithm = rule_of(chosen) if chosen else None
        self._loaded = False

    @classmethod
    def get_hem_algorithm_from_config(cls, **param: Any) -> dict[str, Any]:
        """Return ``hard_example_mining`` from HEM_NAME and HEM_PARAMETERS; ``param`` overrides them."""
        return JointInference.get_hem_algorithm_from_config(**param)

    def train(self, train_data: Any, post_process: Any = None, **kwargs: Any) -> Any:
        """Train the model further, from MODEL_URL if there is one, and save it there.

        ``BASE_MODEL_URL``: the model to begin with instead. Returns what the estimator returned, post-processed by a
        callable or an alias. Raises InvalidFieldError if the estimator lacks a method.
        """
        base = os.environ.get("BASE_MODEL_URL") or model_path(self.estimator)
        if base and os.path.exists(base):  # noqa: PTH110 (a path as an estimator gets it, or a folder)
            self._load(base)
        result = self._method("train")(train_data, **kwargs)
        if target := model_path(self.estimator):
            self._method("save")(target)
        return post_process_value(result, post_process)

    def evaluate(self, data: Any, post_process: Any = None, **kwargs: Any) -> Any:
        """Return the estimator's metrics of the model at MODEL_URL, post-processed by a callable or an alias.

        Raises InvalidFieldError if the estimator lacks the method.
        """
        self._load_once()
        return post_process_value(self._method("evaluate")(data, **kwargs), post_process)

    def inference(self, data: Any = None, post_process: Any = None, **kwargs: Any) -> tuple[Any, Any, bool]:
        """Return the final (post-processed) answer to one sample, the estimator's own, and whether it is hard.

        Raises the errors of the estimator and of ``post_process``.
        """
        self._load_once()
        answer = self.estimator.predict(data, **kwargs)
        final = post_process_value(answer, post_process)
        rule = self.hard_example_mining_algorithm
        return final, answer, rule.judge(final).hard if rule else False

    def _load_once(self) -> None:
        """Load the model before its first use."""
        if not self._loaded:
            self._load(model_path(self.estimator))

    def _load(self, path: str) -> None:
        """Load the model from a path, unless that is empty."""
        if path:
            self.estimator = load_instance(self.estimator, path)
        self._loaded = True

    def _method(self, name: str) -> Any:
        """Return a method of the estimator. Raises InvalidFieldError if it has none of the name."""
        method = getattr(self.estimator, name, None)
        if not callable(method):
            raise InvalidFieldError("estimator", self.estimator, f"it needs the method {name}")
        return method
