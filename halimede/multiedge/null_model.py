"""In place of a model where there is none: bringing findings together need not take one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from halimede.inference import Array, Model
from halimede.messages import Prediction
from halimede.models.desired_state import DesiredModel
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel
from halimede.worker.model_reload import ModelOpener


class Nothing(Model):
    """No model: nothing is ever given to it."""

    @property
    def labels(self) -> tuple[str, ...]:
        """None."""
        return ()

    def prepare(self, image: Array) -> Array:
        """Refuse: nobody asks for it."""
        raise NotImplementedError

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Refuse: nobody asks for it."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to do."""


class NullModel(ModelOpener):
    """Opens nothing."""

    @property
    def again(self) -> bool:
        """There is nothing to swap."""
        return False

    async def open(self, wish: DesiredModel) -> LoadedModel:  # noqa: ARG002  # of the class
        """Return nothing, with a thread."""
        async with contextlib.AsyncExitStack() as stack:
            thread = await stack.enter_async_context(ModelThread("model"))
            return LoadedModel(Nothing(), thread, owned=stack.pop_all())
