"""Changes the model of a running worker: loads it in addition to the current one, and switches between batches.

The local controller writes the desired model to a file (``halimede.models.desired_state``). If a model cannot be used,
the worker only reports that: the current model stays in use.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from halimede.api.model import ModelSpec
from halimede.api.model_formats import ONNX, format_of
from halimede.errors import HalimedeError, InvalidFieldError, describe_exception
from halimede.inference import Model, ModelError, SampleError, open_model
from halimede.inference.graph_input import unscaled
from halimede.inference.model import Array
from halimede.inference.scripts import confine
from halimede.messages import Prediction
from halimede.models.archive import model_file
from halimede.models.desired_state import Desired, DesiredModel, changes, spec_of
from halimede.models.errors import FetchError
from halimede.models.model_trial import try_model
from halimede.models.rollout import ALL_PERCENT
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot

log = structlog.get_logger()

#: characters of a digest that stand for a version without a name
SHORT = 12
#: seconds for which a new model may load while the old one answers
OPEN_S = 600.0
#: seconds until an unreadable file is read again
AGAIN_S = 1.0


class UnfitError(HalimedeError):
    """A model that was refused. ``reason`` is one word for conditions."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ModelOpener:
    """Opens models for a worker: files of formats that halimede reads, or those of a user's own estimator."""

    estimator: object | None = None
    #: makes the worker's model from the opened one; called in the model's thread
    compose: Callable[[Model], Model] | None = None
    #: parallel calls of a model without user code, and threads of each
    sessions: int = 1
    threads: int = 1

    @property
    def again(self) -> bool:
        """Whether it can open a second model: a user's estimator object can hold only one."""
        return self.estimator is None or isinstance(self.estimator, type)

    async def open(self, wish: DesiredModel) -> LoadedModel:
        """Try a model and open it in its own thread. Raises UnfitError."""
        try:
            spec = spec_of(wish, "MODEL_FILE.spec")
        except InvalidFieldError as error:
            raise UnfitError("ModelInvalid", str(error)) from error
        path = await asyncio.to_thread(self._file, wish, spec)
        if self._untried(wish, path):
            await _try(path, spec)
        async with AsyncExitStack() as stack:
            thread = await stack.enter_async_context(ModelThread("model"))
            try:
                model = await thread.call(self._open, path, spec)
            except (ModelError, InvalidFieldError) as error:
                raise UnfitError(_reason(error), str(error)) from error
            more = self.sessions - 1 if model.ours else 0
            others = [await stack.enter_async_context(ModelThread("model")) for _ in range(more)]
            return LoadedModel(model, thread, wish.version, wish.digest, stack.pop_all(), others)

    def _open(self, path: str, spec: ModelSpec) -> Model:
        confine(spec)
        model = open_model(path, spec, self.estimator, threads=self.threads)
        if self.estimator is None and (doubt := unscaled(Path(path), spec)):
            log.warning("model input not scaled", advice=doubt)
        if self.compose is None:
            return model
        try:
            return self.compose(model)
        except BaseException:
            model.close()
            raise

    def _file(self, wish: DesiredModel, spec: ModelSpec) -> str:
        """Return the file to open; of an extracted archive, the model in its folder. Raises UnfitError."""
        form = format_of(spec.format)
        theirs = self.estimator is not None and form is not ONNX  # the user's code knows its folders
        # os.path only checks whether the path is a folder: an estimator's path may be empty, or a URL
        if form is None or theirs or not os.path.isdir(wish.path):  # noqa: PTH112
            return wish.path
        try:
            return str(model_file(Path(wish.path), form))
        except FetchError as error:
            raise UnfitError(str(error.reason), f"{wish.path}: {error}") from error

    def _untried(self, wish: DesiredModel, path: str) -> bool:
        return self.estimator is None and not wish.tried and bool(path) and Path(path).exists()


class NullModel(Model):
    """Answers nothing: the model of a worker that has none."""

    labels = ()

    def prepare(self, image: Array) -> Array:
        """Return the picture unchanged."""
        return image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Answer nothing. Raises SampleError."""
        raise SampleError(f"{len(batch)} samples for a worker without a model")

    def close(self) -> None:
        """Do nothing."""


class NullModelOpener(ModelOpener):
    """Opens no model: for a joint that needs none, and for training."""

    @property
    def again(self) -> bool:
        """Always False: there is no model to replace."""
        return False

    async def open(self, wish: DesiredModel) -> LoadedModel:  # noqa: ARG002  # of the class
        """Return a model thread without a model."""
        async with AsyncExitStack() as stack:
            thread = await stack.enter_async_context(ModelThread("model"))
            return LoadedModel(NullModel(), thread, owned=stack.pop_all())


class ModelReloader:
    """Watches the desired-state file and loads the model that it names into ``slot``.

    ``wish``: the model in the slot now. ``changed`` is called after each change of ``model``.
    """

    def __init__(self, slot: ModelSlot, wish: DesiredModel, opener: ModelOpener, changed: Callable[[], None]) -> None:
        self._slot = slot
        self._rollout = slot.rollout
        self._opener = opener
        self._changed = changed
        slot.current.desired = wish
        slot.audit_share = wish.audit_share
        self._rollout.settle(wish)
        #: reported: the current model, and the outcome of the last desired one
        self.model = self._rollout.in_use()

    async def run(self, path: Path) -> None:
        """Follow the file until cancelled."""
        while True:
            try:
                async for desired in changes(path, "MODEL_FILE"):
                    await self.follow(desired)
            except InvalidFieldError as error:
                self._refuse("WishInvalid", str(error))
            await asyncio.sleep(AGAIN_S)

    async def follow(self, desired: Desired) -> None:
        """Take one step from the current model to the desired one."""
        if len(desired.models) != 1:
            text = f"MODEL_FILE names {len(desired.models)} models: a worker answers with one"
            self._refuse("WishInvalid", text)
            return
        (wish,) = desired.models
        self._slot.audit_share = wish.audit_share
        if wish.mark == self._rollout.fingerprint:
            return
        try:
            await self._take(wish)
        except Exception as error:  # noqa: BLE001 (on any error the current model must stay in use)
            reason, text = _why(error)
            log.warning("model refused", version=wish.version, digest=wish.digest[:12], reason=reason, error=text)
            self._slot.try_out(None, 0)
            self._rollout.settle(wish)
            self._refuse(reason, text, wish)
            return
        log.info("model loaded", version=wish.version, digest=wish.digest[:12], percent=wish.canary_percent)
        self._rollout.forgive()
        self._rollout.settle(wish)
        self._report()

    async def _take(self, wish: DesiredModel) -> None:
        """Open a model if it is not open yet, and give it its share of the samples."""
        slot, new = self._slot, self._rollout.canary
        step = self._rollout.step(wish)
        if step == "withdraw":
            slot.try_out(None, 0)
            return
        if new is None or step in {"load", "keep"}:
            # also a model that was refused before: the desired state has changed since
            async with asyncio.timeout(OPEN_S):
                new = await self._opener.open(wish)
            new.desired = wish
        if wish.canary_percent < ALL_PERCENT:
            slot.try_out(new, wish.canary_percent, self._withdrawn)
        else:
            slot.replace(new)

    def _withdrawn(self) -> None:
        """Report that the canary failed too often: the rollout has refused it, with its last error."""
        wish, text = self._rollout.refused, self._rollout.message
        if wish is not None:
            log.warning("canary withdrawn", version=wish.version, digest=wish.digest[:12], error=text)
        self._report()

    def _refuse(self, reason: str, text: str, wish: DesiredModel | None = None) -> None:
        """Record and report why a model was refused."""
        self._rollout.refuse(reason, text, wish, wish.digest if wish else "")
        self._report()

    def _report(self) -> None:
        self.model = self._rollout.in_use()
        self._changed()


def _reason(error: HalimedeError) -> str:
    if isinstance(error, ModelError):
        return error.reason
    ours = isinstance(error, InvalidFieldError) and error.field.startswith("spec.application")
    return "ApplicationInvalid" if ours else "ModelInvalid"


def desired_of(path: str, spec: ModelSpec) -> DesiredModel:
    """Return the desired model of an environment without a desired-state file: that of a pod.

    Its digest is that of the file. Without a version it is named as on a node that starts workers itself.
    """
    told: dict[str, Any] = msgspec.to_builtins(spec)
    digest = _digest(Path(path)) if path else ""
    return DesiredModel(
        name="model",
        path=path,
        version=spec.target_version or digest[:SHORT],
        digest=digest,
        spec={k: v for k, v in told.items() if k != "url"},
        calibration=next((each.calibration for each in spec.versions if each.version == spec.target_version), ""),
    )


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; empty if there is no such file, such as for a folder or an address."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return ""


async def _try(path: str, spec: ModelSpec) -> None:
    trial = await try_model(Path(path), msgspec.json.encode(spec).decode())
    if not trial.ok and not trial.skipped:
        raise UnfitError(trial.reason, trial.message)


def _why(error: Exception) -> tuple[str, str]:
    if isinstance(error, UnfitError):
        return error.reason, str(error)
    if isinstance(error, TimeoutError):
        return "TooSlow", f"the model did not load within {OPEN_S:g} s: make it smaller"
    if isinstance(error, MemoryError):
        return "TooMuchMemory", "there is not enough memory for a second model: raise the memory limit"
    if not isinstance(error, HalimedeError):
        log.error("model not loaded", exc_info=error)
    return "ModelInvalid", describe_exception(error)
