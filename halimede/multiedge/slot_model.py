"""The cloud worker's model as its joint sees it: whichever answers now, and none is closed while the joint asks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from halimede.inference import Array, Model
from halimede.messages import Frame, Prediction
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import ModelSlot

P = ParamSpec("P")
T = TypeVar("T")


class SlotModel(Model):
    """Stands for the model in a slot; which one that is changes between two calls of a joint, never within one."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def labels(self) -> tuple[str, ...]:
        """Those of the model."""
        return self.model.labels

    def prepare(self, image: Array) -> Array:
        """Have the model prepare it."""
        return self.model.prepare(image)

    def prepare_frame(self, frame: Frame, image: Array) -> Array:
        """Have the model prepare it."""
        return self.model.prepare_frame(frame, image)

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Have the model answer."""
        return self.model.predict(batch)

    def close(self) -> None:
        """Nothing to do: it is the slot's."""


class HoldingThread(ModelThread):
    """A thread whose calls may use the model in a slot, by way of ``model``."""

    def __init__(self, name: str, slot: ModelSlot) -> None:
        super().__init__(name)
        self._slot = slot
        self.model = SlotModel(slot.current.model)

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` in the thread; the model that is in the slot now is kept open until it is done."""
        loaded = self._slot.current

        def run() -> T:
            self.model.model = loaded.model
            return work(*args, **kwargs)

        with loaded.holding():
            return await super().call(run)
