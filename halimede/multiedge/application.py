"""Applications: the stages that a frame goes through and an optional joint, found by the name that a resource gives.

A new application is registered under a name, by the decorator ``register`` or by an entry point of the group
``halimede.applications``; or it is in a user's own module, which the resource names as ``entry`` (``module:object``).
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

#: group of entry points, each an application or a ``Maker``
GROUP = "halimede.applications"
#: applications that ``applications.py`` registers
OWN = ("balance", "fusion", "reid")
#: makes a stage for a worker; raises InvalidFieldError for invalid parameters
StageFactory: TypeAlias = Callable[[Tools], Stage]
#: makes the joint of a cloud worker; raises InvalidFieldError for invalid parameters
JointFactory: TypeAlias = Callable[[JointTools], Joint]


def accepts_all(prediction: Prediction) -> bool:  # noqa: ARG001
    """Whether the joint receives a finding with this prediction: always."""
    return True


@dataclass(frozen=True, slots=True)
class Application:
    """What happens with each frame: ``stages`` in their order, then the joint if there is one.

    Attributes:
        stages: make the stages that each frame goes through.
        share: a peer with free capacity may run the stages of a frame. Stages that remember earlier frames of a camera
            must not be shared.
        joint: makes the joint, which combines the findings of all workers; None: each frame is answered by itself.
        joins: whether the joint receives a finding with this prediction; if not, its worker answers alone.

    """

    stages: Sequence[StageFactory]
    share: bool = False
    joint: JointFactory | None = None
    joins: Callable[[Prediction], bool] = accepts_all


#: makes an application from the parameters of a resource; raises InvalidFieldError for invalid ones
Maker: TypeAlias = Callable[[Parameters], Application]

_makers: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Return a decorator that registers a ``Maker`` under a name; it raises ValueError if the name is taken."""

    def add(maker: Maker) -> Maker:
        if name in _makers:
            raise ValueError(f"application {name} is registered twice")
        _makers[name] = maker
        return maker

    return add


def create(name: str, entry: str, parameters: Parameters) -> Application:
    """Return the application of a resource: the object ``entry`` (``module:object``), or else the one of this name.

    Raises InvalidFieldError if it is not found or cannot be imported, if it is no application, or if it refuses its
    parameters.
    """
    maker = _maker_by_entry(entry) if entry else _maker_by_name(name)
    try:
        application = maker(parameters)
    except HalimedeError:
        raise
    except Exception as error:
        raise _refusal(name, entry, f"its function failed: {describe_exception(error)}") from error
    if not isinstance(application, Application):
        raise _refusal(name, entry, "its function must return a halimede Application")
    return application


def _maker_by_name(name: str) -> Maker:
    """Return the maker of a registered or installed application. Raises InvalidFieldError."""
    if name in OWN:
        importlib.import_module("halimede.multiedge.applications")  # not at the top: it imports this module
    if name in _makers:
        return _makers[name]
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name in installed:
        try:
            target = installed[name].load()
        except Exception as error:
            raise _refusal(name, "", f"its package could not be loaded: {describe_exception(error)}") from error
        return _maker(target, name, "")
    names = ", ".join(sorted({*OWN, *_makers, *installed}))
    raise _refusal(name, "", f"use one of {names}, or give entry: module:object")


def _maker_by_entry(entry: str) -> Maker:
    """Return the maker of an application in a user's module. Raises InvalidFieldError."""
    module, _, attribute = entry.partition(":")
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        fix = f"{describe_exception(error)}: check the name, and PYTHONPATH or workingDir of the template"
        raise _refusal("", entry, fix) from error
    except Exception as error:
        raise _refusal("", entry, f"the module could not be loaded: {describe_exception(error)}") from error
    return _maker(target, "", entry)


def _maker(target: object, name: str, entry: str) -> Maker:
    """Return the maker of an application that was imported: ``target`` is a maker, or the application itself.

    Raises InvalidFieldError if ``target`` is neither.
    """
    if isinstance(target, Application):
        return lambda _: target
    if not callable(target):
        raise _refusal(name, entry, "it must be an Application or a function that returns one")
    return target


def _refusal(name: str, entry: str, fix: str) -> InvalidFieldError:
    """Return the error of a resource whose application has this ``entry``, or else this name."""
    return InvalidFieldError(f"spec.application.{'entry' if entry else 'name'}", entry or name, fix)


class FramePicture(np.ndarray[Any, np.dtype[Any]]):
    """A decoded picture that knows its frame. It is a view: nothing is copied.

    Attributes:
        camera: the frame's camera; empty if unknown.
        id: the frame's id, 16 bytes; empty if unknown.
        sequence: the camera's own number of the frame; 0 if unknown.
        captured_ns: time of capture by the camera's clock, in nanoseconds since 1970; 0 if unknown.

    """

    camera: str
    id: bytes
    sequence: int
    captured_ns: int

    @classmethod
    def of(cls, frame: Frame, image: Array) -> Self:
        """Return ``image`` as the picture of ``frame``."""
        picture = image.view(cls)
        picture.camera, picture.id = frame.camera, frame.id
        picture.sequence, picture.captured_ns = frame.sequence, frame.captured_ns
        return picture

    def __array_finalize__(self, source: object) -> None:
        """Let a view of a picture know the same frame; numpy calls this for each new view."""
        self.camera = getattr(source, "camera", "")
        self.id = getattr(source, "id", b"")
        self.sequence = getattr(source, "sequence", 0)
        self.captured_ns = getattr(source, "captured_ns", 0)


class StagesModel(Model):
    """A ``Model`` that runs the stages of an application, so that the pipeline treats them as one model.

    ``models``: the models that stages use, by name; they are closed with it.
    """

    def __init__(self, stages: Sequence[Stage], models: Mapping[str, Model]) -> None:
        self._stages = stages
        self._models = models

    @classmethod
    def make(
        cls, application: Application, models: Mapping[str, Model], parameters: Parameters, *, worker: str, node: str
    ) -> StagesModel:
        """Make the stages of an application for a worker and its node, which use these ``models``.

        Raises InvalidFieldError for parameters or models that the stages cannot use.
        """
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
        """The labels of the worker's own model; none if it has no model."""
        model = self._models.get("model")
        return model.labels if model else ()

    def prepare(self, image: Array) -> Array:
        """Return the picture unchanged: stages prepare it themselves."""
        return image

    def prepare_frame(self, frame: Frame, image: Array) -> Array:
        """Return the picture as a ``FramePicture``, for stages that need its camera or time."""
        return FramePicture.of(frame, image)

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Run all stages on pictures of equal size; return the finding of each. Raises SampleError as stages do."""
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
    """Return a picture as the first stage gets it."""
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
