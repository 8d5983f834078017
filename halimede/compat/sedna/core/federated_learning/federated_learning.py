"""Sedna's FederatedLearning over the topics of a training job. The samples stay in the script."""

from __future__ import annotations

import inspect
import os
from typing import Any

from halimede.compat.sedna import environment
from halimede.compat.sedna.common.class_factory import post_processing
from halimede.compat.sedna.core.base import JobBase
from halimede.compat.sedna.federated_job import ScriptTrainer
from halimede.errors import InvalidFieldError

__all__ = ("FederatedLearning",)

NEEDED = ("train", "get_weights", "set_weights")


class FederatedLearning(JobBase):
    """A participant of a federated job. ``estimator``: a class or an instance with ``train`` and its weights.

    ``aggregation`` is accepted: the aggregator's own setting counts. Raises InvalidFieldError.
    """

    def __init__(self, estimator: Any, aggregation: Any = "FedAvg", config: Any = None) -> None:
        instance = estimator() if inspect.isclass(estimator) else estimator
        if lacks := [name for name in NEEDED if not callable(getattr(instance, name, None))]:
            raise InvalidFieldError("estimator", instance, f"it needs the methods {', '.join(lacks)}")
        super().__init__(instance, config)
        self.aggregation = aggregation

    def register(self, timeout: float = 300) -> None:
        """Do nothing: a participant is known by its state on the bus."""

    def train(self, train_data: Any, valid_data: Any = None, post_process: Any = None, **kwargs: Any) -> Any:
        """Take part until the last round; then the estimator has the final weights.

        Returns the metrics of the final weights on ``valid_data``, or those of the last training, post-processed.
        Without a service in the environment the estimator trains alone, once. Raises HalimedeError.
        """
        if environment.is_alone(os.environ):
            metrics = self.estimator.train(train_data, valid_data=valid_data, **kwargs)
        else:
            metrics = ScriptTrainer(self.estimator, train_data, valid_data, kwargs).run()
        process = post_processing(post_process)
        return process(metrics) if process else metrics
