"""A list of stages as one model, so that batches, isolation of bad samples and hot swaps come to stages for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from halimede.inference import Array, Model
from halimede.messages import Frame, Prediction
from halimede.multiedge.application import Application
from halimede.multiedge.stage import Item, Parameters, Stage, Tools


class PictureSize(np.ndarray[Any, np.dtype[Any]]):
    """A decoded frame that knows where it came from. It is a view: nothing is copied."""

    camera: str
    id: bytes
    sequence: int
    captured_ns: int

    @classmethod
    def of(cls, frame: Frame, image: Array) -> Self:
        """Return the picture of a frame."""
        made = image.view(cls)
        made.camera, made.id = frame.camera, frame.id
        made.sequence, made.captured_ns = frame.sequence, frame.captured_ns
        return made

    def __array_finalize__(self, of: object) -> None:
        """Views of a picture are of the same frame."""
        self.camera = getattr(of, "camera", "")
        self.id = getattr(of, "id", b"")
        self.sequence = getattr(of, "sequence", 0)
        self.captured_ns = getattr(of, "captured_ns", 0)


class StagesModel(Model):
    """Runs the stages of an application on frames. Its models are closed with it."""

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
                stages.append(make(tools))  # noqa: PERF401  # those that were made are closed if the next one fails
        except BaseException:
            for stage in stages:
                stage.close()
            raise
        return cls(stages, models)

    @property
    def labels(self) -> tuple[str, ...]:
        """Those of its model."""
        model = self._models.get("model")
        return model.labels if model else ()

    def prepare(self, image: Array) -> Array:
        """Stages look at the picture as it is."""
        return image

    def prepare_frame(self, frame: Frame, image: Array) -> Array:
        """Return the picture with what is known of its frame."""
        return PictureSize.of(frame, image)

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
    if not isinstance(picture, PictureSize):
        return Item(image)
    return Item(
        image,
        camera=picture.camera,
        id=picture.id,
        sequence=picture.sequence,
        captured_ns=picture.captured_ns,
    )
