"""Sedna's rules with Sedna's constructors and calls, evaluated by ``halimede.mining``.

Each is called with what the script's small model answers, and says whether the sample is hard (goes to the cloud).
Broken numbers and empty answers differ from Sedna: an invalid answer is hard, and a frame without boxes is hard as
well, unless ``empty="easy"``. Sedna calls both easy, so that objects that a small model misses are never uploaded.
"""

from __future__ import annotations

import abc
from dataclasses import fields
from typing import Any, ClassVar

from halimede.compat.sedna.common.class_factory import ClassFactory, ClassType
from halimede.compat.sedna.common.log import LOGGER
from halimede.compat.sedna.unsupported import unsupported_class
from halimede.inference.model import SampleError
from halimede.inference.user_answers import as_prediction
from halimede.mining import Miner, Verdict, create, judge

#: the alternative to BertRouter
ROUTER = (
    "routing of questions by a language model is not there: register a class of your own under ClassType.HEM, and "
    "name it in hardExampleMining"
)


class BaseFilter(abc.ABC):
    """A base class for a script's own rule; any class that is callable with the answer is accepted."""

    @abc.abstractmethod
    def __call__(self, infer_result: Any = None) -> bool:
        """Whether the sample with this answer of the small model is hard."""

    @classmethod
    def data_check(cls, data: Any) -> bool:
        """Whether a number, or text with one, is in 0..1. Raises ValueError or TypeError for other values."""
        return 0 <= float(data) <= 1


class Mined(BaseFilter):
    """A ``BaseFilter`` with a rule of halimede, for anything that an estimator may return."""

    def __init__(self, miner: Miner) -> None:
        self._miner = miner

    def judge(self, infer_result: Any) -> Verdict:
        """Return the verdict on a sample; an unreadable or invalid answer is hard, with the error."""
        try:
            prediction = as_prediction(infer_result)
        except SampleError as error:
            return Verdict(hard=True, error=str(error))
        return judge(self._miner, prediction)

    def __call__(self, infer_result: Any = None) -> bool:
        """Whether the sample is hard; an error is logged."""
        verdict = self.judge(infer_result)
        if verdict.error:
            LOGGER.warning("mining failed, the sample counts as hard: %s", verdict.error)
        return verdict.hard


class _Named(Mined):
    """A rule of Sedna, ``NAME`` in halimede, with its parameters as attributes.

    Its constructor ignores unknown parameters as Sedna's does, with a warning. Raises InvalidFieldError for invalid
    ones.
    """

    NAME: ClassVar[str]

    def __init__(self, **parameters: Any) -> None:
        names = {field.name for field in fields(create(self.NAME, {})) if field.init}  # type: ignore[arg-type]  # they are
        if unknown := parameters.keys() - names:
            LOGGER.warning("%s has no parameter %s: ignored", self.NAME, ", ".join(sorted(unknown)))
        miner = create(self.NAME, {name: value for name, value in parameters.items() if name in names})
        super().__init__(miner)
        for name in parameters.keys() & names:  # as numbers, under Sedna's names
            setattr(self, name, getattr(miner, name))


@ClassFactory.register(ClassType.HEM, alias="Threshold")
class ThresholdFilter(_Named):
    """Hard when the mean score of the boxes is below ``threshold``."""

    NAME = "Threshold"

    def __init__(self, threshold: Any = 0.5, **parameters: Any) -> None:
        super().__init__(threshold=threshold, **parameters)


@ClassFactory.register(ClassType.HEM, alias="CrossEntropy")
class CrossEntropyFilter(_Named):
    """Hard when the class probabilities are spread out, more than ``threshold_cross_entropy`` allows (0..1)."""

    NAME = "CrossEntropy"

    def __init__(self, threshold_cross_entropy: Any = 0.5, **parameters: Any) -> None:
        super().__init__(threshold_cross_entropy=threshold_cross_entropy, **parameters)


@ClassFactory.register(ClassType.HEM, alias="IBT")
class IBTFilter(_Named):
    """Hard when the share of unsure boxes, with scores up to ``threshold_box``, is at least 1 - ``threshold_img``."""

    NAME = "IBT"

    def __init__(self, threshold_img: Any = 0.5, threshold_box: Any = 0.5, **parameters: Any) -> None:
        super().__init__(threshold_img=threshold_img, threshold_box=threshold_box, **parameters)


@ClassFactory.register(ClassType.HEM, alias="Random")
class RandomFilter(_Named):
    """Hard with probability ``random_ratio``, whatever the answer."""

    NAME = "Random"

    def __init__(self, random_ratio: Any = 0.3, **parameters: Any) -> None:
        super().__init__(random_ratio=random_ratio, **parameters)

    def judge(self, infer_result: Any) -> Verdict:  # noqa: ARG002  # it ignores the answer
        """Decide at random, also without an answer."""
        return judge(self._miner, NOTHING)


@ClassFactory.register(ClassType.HEM, alias="CloudOnly")
class CloudOnlyFilter(_Named):
    """Every sample is hard, so that the cloud answers all."""

    NAME = "CloudOnly"

    def judge(self, infer_result: Any) -> Verdict:  # noqa: ARG002  # it ignores the answer
        """Return that the sample is hard, whatever the answer."""
        return Verdict(hard=True)


@ClassFactory.register(ClassType.HEM, alias="EdgeOnly")
class EdgeOnlyFilter(_Named):
    """No sample is hard, so that the edge answers all."""

    NAME = "EdgeOnly"

    def judge(self, infer_result: Any) -> Verdict:  # noqa: ARG002  # it ignores the answer
        """Return that the sample is easy, whatever the answer."""
        return Verdict(hard=False)


BertRouterFilter = ClassFactory.register(ClassType.HEM, alias="BertRouter")(unsupported_class("BertRouter", ROUTER))

#: an answer for the rule that ignores it
NOTHING = as_prediction({"value": None})
