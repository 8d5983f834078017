"""Applications: the stages that a frame goes through, found by the name that a resource gives.

A new application is a list of stages: registered under a name by a decorator or by an entry point of the group
``halimede.applications``, or a user's own module, which the resource's ``entry`` names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Self, TypeAlias

import numpy as np

from halimede.errors import HalimedeError, InvalidFieldError, describe_exception
from halimede.inference import Array, Model
from halimede.messages import Frame, Prediction
from halimede.multiedge.stage import Item, Joint, JointTools, Parameters, Stage, Tools

GROUP = "halimede.applications"
#: applications that ``applications.py`` registers
OWN = ("balance", "fusion", "reid")
StageFactory: TypeAlias = Callable[[Tools], Stage]
JointFactory: TypeAlias = Callable[[JointTools], Joint]


def accepts_all(prediction: Prediction) -> bool:  # noqa: ARG001
    """Whether the joint receives a finding: always."""
    return True


@dataclass(frozen=True, slots=True)
class Application:
    """A graph of stages: source, ``stages`` in their order, ``joint``, sink.

    Attributes:
        stages: run on each frame, on its worker or on a peer with free capacity.
        share: whether peers may run them. Stages that remember earlier frames of a camera must not be shared.
        joint: combines findings; None: each frame is answered by itself.
        joins: whether the joint receives a finding; if not, the worker answers alone.

    """

    stages: Sequence[StageFactory]
    share: bool = False
    joint: JointFactory | None = None
    joins: Callable[[Prediction], bool] = accepts_all


Maker: TypeAlias = Callable[[Parameters], Application]

_makers: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Register a function that makes an application from its parameters under a name."""

    def add(maker: Maker) -> Maker:
        if name in _makers:
            raise ValueError(f"application {name} is registered twice")
        _makers[name] = maker
        return maker

    return add


def create(name: str, entry: str, parameters: Parameters) -> Application:
    """Return the application of a resource. Raises InvalidFieldError."""
    maker = _maker_by_entry(entry) if entry else _maker_by_name(name)
    try:
        application = maker(parameters)
    except HalimedeError:
        raise
    except Exception as error:
        fix = f"its function failed: {describe_exception(error)}"
        raise InvalidFieldError(_field(entry), entry or name, fix) from error
    if not isinstance(application, Application):
        raise InvalidFieldError(_field(entry), entry or name, "its function must return a halimede Application")
    return application


def _maker_by_name(name: str) -> Maker:
    if name in OWN:
        importlib.import_module("halimede.multiedge.applications")  # not at the top: it imports this module
    if name in _makers:
        return _makers[name]
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name in installed:
        return _maker(installed[name].load(), name, "")
    names = ", ".join(sorted({*OWN, *_makers, *installed}))
    raise InvalidFieldError("spec.application.name", name, f"use one of {names}, or give entry: module:object")


def _maker_by_entry(entry: str) -> Maker:
    module, _, attribute = entry.partition(":")
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        fix = f"{describe_exception(error)}: check the name, and PYTHONPATH or workingDir of the template"
        raise InvalidFieldError("spec.application.entry", entry, fix) from error
    except Exception as error:
        fix = f"the module could not be loaded: {describe_exception(error)}"
        raise InvalidFieldError("spec.application.entry", entry, fix) from error
    return _maker(target, "", entry)


def _maker(target: object, name: str, entry: str) -> Maker:
    if isinstance(target, Application):
        return lambda _: target
    if not callable(target):
        raise InvalidFieldError(
            _field(entry), entry or name, "it must be an Application or a function that returns one"
        )
    return target


def _field(entry: str) -> str:
    return f"spec.application.{'entry' if entry else 'name'}"


class FramePicture(np.ndarray[Any, np.dtype[Any]]):
    """A decoded frame with its camera and id. It is a view: nothing is copied."""

    camera: str
    id: bytes
    sequence: int
    captured_ns: int

    @classmethod
    def of(cls, frame: Frame, image: Array) -> Self:
        """Return the picture of a frame."""
        picture = image.view(cls)
        picture.camera, picture.id = frame.camera, frame.id
        picture.sequence, picture.captured_ns = frame.sequence, frame.captured_ns
        return picture

    def __array_finalize__(self, source: object) -> None:
        """Views of a picture are of the same frame."""
        self.camera = getattr(source, "camera", "")
        self.id = getattr(source, "id", b"")
        self.sequence = getattr(source, "sequence", 0)
        self.captured_ns = getattr(source, "captured_ns", 0)


class StagesModel(Model):
    """Runs the stages of an application as one model, so that batches, isolation of bad samples and hot swaps work.

    Its models are closed with it.
    """

    def __init__(self, stages: Sequence[Stage], models: Mapping[str, Model]) -> None:
        self._stages = stages
        self._models = models

    @classmethod
    def make(
        cls, application: Application, models: Mapping[str, Model], parameters: Parameters, *, worker: str, node: str
    ) -> StagesModel:
        """Make the stages of an application. Raises InvalidFieldError for parameters that they cannot take."""
        tools = Tools(models, parameters, worker, node)
        stages: list[Stage] = []
        try:
            for make in application.stages:
                stages.append(make(tools))  # noqa: PERF401  # stages made so far are closed if the next one fails
        except BaseException:
            for stage in stages:
                stage.close()
            raise
        return cls(stages, models)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the worker's model."""
        model = self._models.get("model")
        return model.labels if model else ()

    def prepare(self, image: Array) -> Array:
        """Return the picture unchanged: stages prepare it themselves."""
        return image

    def prepare_frame(self, frame: Frame, image: Array) -> Array:
        """Return the picture with the camera and id of its frame."""
        return FramePicture.of(frame, image)

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Run all stages on pictures of equal size."""
        items = [_item(picture) for picture in batch]
        for stage in self._stages:
            stage.run(items)
        return [item.prediction for item in items]

    def close(self) -> None:
        """Close stages and models."""
        for stage in self._stages:
            stage.close()
        for model in self._models.values():
            model.close()


def _item(picture: Array) -> Item:
    image = np.asarray(picture)
    if not isinstance(picture, FramePicture):
        return Item(image)
    return Item(
        image,
        camera=picture.camera,
        id=picture.id,
        sequence=picture.sequence,
        captured_ns=picture.captured_ns,
    )
