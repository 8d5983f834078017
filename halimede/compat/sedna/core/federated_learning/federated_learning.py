"""Sedna's FederatedLearning over the topics of a training job. The samples stay in the script."""

from __future__ import annotations

import inspect
import os
from typing import Any

from halimede.compat.sedna import environment
from halimede.compat.sedna.common.class_factory import post_process_value
from halimede.compat.sedna.core.base import JobBase
from halimede.compat.sedna.federated_job import ScriptTrainer
from halimede.errors import InvalidFieldError

__all__ = ("FederatedLearning",)

#: methods that each estimator needs
NEEDED = ("train", "get_weights", "set_weights")


class FederatedLearning(JobBase):
    """A participant of a federated job. Raises InvalidFieldError for missing methods of the estimator.

    ``estimator``: a class or an instance with ``train``, ``get_weights`` and ``set_weights``; ``evaluate`` is optional.
    ``aggregation`` has no effect: the aggregator's own setting counts. ``config``: None, or an object like Sedna's
    ``BaseConfig``, which None creates from the environment.
    """

    def __init__(self, estimator: Any, aggregation: Any = "FedAvg", config: Any = None) -> None:
        instance = estimator() if inspect.isclass(estimator) else estimator
        if lacks := [name for name in NEEDED if not callable(getattr(instance, name, None))]:
            raise InvalidFieldError("estimator", instance, f"it needs the methods {', '.join(lacks)}")
        super().__init__(instance, config)
        self.aggregation = aggregation

    def register(self, timeout: float = 300) -> None:
        """Do nothing: a participant is known by its state on the bus. ``timeout`` has no effect."""

    def train(self, train_data: Any, valid_data: Any = None, post_process: Any = None, **kwargs: Any) -> Any:
        """Take part until the last round; then the estimator has the final weights.

        Returns the numbers that the estimator's ``evaluate`` returned for the final weights on ``valid_data``; without
        ``evaluate`` or ``valid_data``, those that its ``train`` returned in the last round. If no environment variable
        names a service, the estimator trains alone, once, and what its ``train`` returned counts. ``kwargs``: further
        arguments of ``train``. ``post_process``: a callable, or the alias of a registered one, that changes what is
        returned. Raises HalimedeError, perhaps in an ExceptionGroup.
        """
        if environment.is_alone(os.environ):
            metrics = self.estimator.train(train_data, valid_data=valid_data, **kwargs)
        else:
            metrics = ScriptTrainer(self.estimator, train_data, valid_data, kwargs).run()
        return post_process_value(metrics, post_process)
