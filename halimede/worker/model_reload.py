"""Opens the models of a worker (``ModelOpener``), and changes the model while the worker runs (``ModelReloader``).

A new model is opened in addition to the current one, and takes its place between two batches. The local controller
writes the desired model to a file (``halimede.models.desired_state`` has its form). If the model cannot be used, the
worker reports that, and the current model stays in use.
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
from halimede.inference.graph_input import scale_warning
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
DIGEST_DIGITS = 12
#: seconds that a new model has to open
LOAD_TIMEOUT_S = 600.0
#: seconds until a file that is not valid is read again
RETRY_S = 1.0


class UnfitError(HalimedeError):
    """A model is refused. ``reason``: one word for conditions, such as ``ModelInvalid``."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ModelOpener:
    """Opens models for a worker.

    Attributes:
        estimator: a user's object or class that opens them; None: the runtime of their format.
        compose: makes the worker's model from the opened one, in the model's thread; None: the opened one is used.
        sessions: simultaneous calls of a model without user code.
        threads: threads of each call.

    """

    estimator: object | None = None
    compose: Callable[[Model], Model] | None = None
    sessions: int = 1
    threads: int = 1

    @property
    def can_reopen(self) -> bool:
        """Whether it can open a second model: a user's estimator object has only one."""
        return self.estimator is None or isinstance(self.estimator, type)

    async def open(self, desired: DesiredModel) -> LoadedModel:
        """Return a model that was opened in its own thread, after a trial in a child process if it needs one.

        Raises UnfitError if the model cannot be used, and what a user's code raises.
        """
        try:
            spec = spec_of(desired, "MODEL_FILE.spec")
        except InvalidFieldError as error:
            raise UnfitError("ModelInvalid", str(error)) from error
        path = await asyncio.to_thread(self._file, desired, spec)
        if self._needs_trial(desired, path):
            await _require_trial(path, spec)
        async with AsyncExitStack() as stack:
            thread = await stack.enter_async_context(ModelThread("model"))
            try:
                model = await thread.call(self._open, path, spec)
            except (ModelError, InvalidFieldError) as error:
                raise UnfitError(_refusal_reason(error), str(error)) from error
            further = self.sessions - 1 if model.ours else 0
            further_threads = [await stack.enter_async_context(ModelThread("model")) for _ in range(further)]
            return LoadedModel(model, thread, desired.version, desired.digest, stack.pop_all(), further_threads)

    def _open(self, path: str, spec: ModelSpec) -> Model:
        """Return the opened and composed model, in its thread. Raises ModelError, InvalidFieldError."""
        confine(spec)  # if the model has scripts, this thread may write no files from now on
        model = open_model(path, spec, self.estimator, threads=self.threads)
        if self.estimator is None and (advice := scale_warning(Path(path), spec)):
            log.warning("model input not scaled", advice=advice)
        if self.compose is None:
            return model
        try:
            return self.compose(model)
        except BaseException:
            model.close()
            raise

    def _file(self, desired: DesiredModel, spec: ModelSpec) -> str:
        """Return the path to open: of an extracted archive, the model in its folder. Blocks. Raises UnfitError."""
        format_ = format_of(spec.format)
        estimator_reads = self.estimator is not None and format_ is not ONNX  # the user's code knows its folders
        # os.path only checks whether the path is a folder: an estimator's path may be empty, or a URL
        if format_ is None or estimator_reads or not os.path.isdir(desired.path):  # noqa: PTH112
            return desired.path
        try:
            return str(model_file(Path(desired.path), format_))
        except FetchError as error:
            raise UnfitError(str(error.reason), f"{desired.path}: {error}") from error

    def _needs_trial(self, desired: DesiredModel, path: str) -> bool:
        """Whether a model must be tried in a child process before it is opened."""
        return self.estimator is None and not desired.tried and bool(path) and Path(path).exists()


class NullModel(Model):
    """A ``Model`` for a worker that needs none: it answers no sample."""

    labels = ()

    def prepare(self, image: Array) -> Array:
        """Return the picture unchanged."""
        return image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        """Raise SampleError, always."""
        raise SampleError(f"{len(batch)} samples for a worker without a model")

    def close(self) -> None:
        """Do nothing."""


class NullModelOpener(ModelOpener):
    """A ``ModelOpener`` that opens no model: for a joint that needs none, and for training."""

    @property
    def can_reopen(self) -> bool:
        """Always False: there is no model to replace."""
        return False

    async def open(self, desired: DesiredModel) -> LoadedModel:  # noqa: ARG002  # of the class
        """Return a ``NullModel`` with a thread, whatever is desired."""
        async with AsyncExitStack() as stack:
            thread = await stack.enter_async_context(ModelThread("model"))
            return LoadedModel(NullModel(), thread, owned=stack.pop_all())


class ModelReloader:
    """Follows the desired-state file, and opens the model that it names for ``slot``.

    ``desired``: the model that is in the slot now. ``notify`` is called after each change of ``model``.

    Attributes:
        model: for the worker's report: the current model, and the outcome of the last desired one.

    """

    def __init__(self, slot: ModelSlot, desired: DesiredModel, opener: ModelOpener, notify: Callable[[], None]) -> None:
        self._slot = slot
        self._rollout = slot.rollout
        self._opener = opener
        self._notify = notify
        slot.current.desired = desired
        slot.audit_share = desired.audit_share
        self._rollout.settle(desired)
        self.model = self._rollout.in_use()

    async def run(self, path: Path) -> None:
        """Follow the desired-state file ``path`` until cancelled."""
        while True:
            try:
                async for state in changes(path, "MODEL_FILE"):
                    await self.follow(state)
            except InvalidFieldError as error:
                self._refuse("WishInvalid", str(error))
            await asyncio.sleep(RETRY_S)

    async def follow(self, state: Desired) -> None:
        """Open the desired model, or change its share of the samples; report success or error. Raises nothing."""
        if len(state.models) != 1:
            text = f"MODEL_FILE names {len(state.models)} models: a worker answers with one"
            self._refuse("WishInvalid", text)
            return
        (desired,) = state.models
        self._slot.audit_share = desired.audit_share
        if desired.fingerprint == self._rollout.fingerprint:
            return
        try:
            await self._apply(desired)
        except Exception as error:  # noqa: BLE001 (on any error the current model must stay in use)
            reason, text = _refusal_of(error)
            log.warning("model refused", version=desired.version, digest=desired.digest[:12], reason=reason, error=text)
            self._slot.try_out(None, 0)
            self._rollout.settle(desired)
            self._refuse(reason, text, desired)
            return
        log.info("model loaded", version=desired.version, digest=desired.digest[:12], percent=desired.canary_percent)
        self._rollout.forgive()
        self._rollout.settle(desired)
        self._report()

    async def _apply(self, desired: DesiredModel) -> None:
        """Open a model if it is not open yet, and give it its share of the samples. Raises any exception."""
        slot, new = self._slot, self._rollout.canary
        step = self._rollout.step(desired)
        if step == "withdraw":
            slot.try_out(None, 0)
            return
        if new is None or step in {"load", "keep"}:
            # also a model that was refused before: the desired state has changed since
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                new = await self._opener.open(desired)
            new.desired = desired
        if desired.canary_percent < ALL_PERCENT:
            slot.try_out(new, desired.canary_percent, self._report_withdrawal)
        else:
            slot.replace(new)

    def _report_withdrawal(self) -> None:
        """Report that the canary failed too often: the rollout has refused it, with its last error."""
        refused, text = self._rollout.refused, self._rollout.message
        if refused is not None:
            log.warning("canary withdrawn", version=refused.version, digest=refused.digest[:12], error=text)
        self._report()

    def _refuse(self, reason: str, text: str, desired: DesiredModel | None = None) -> None:
        """Record and report a refusal. ``desired``: the refused model; None: the file itself is refused."""
        self._rollout.refuse(reason, text, desired, desired.digest if desired else "")
        self._report()

    def _report(self) -> None:
        """Bring ``model`` up to date, and notify the reporter."""
        self.model = self._rollout.in_use()
        self._notify()


def _refusal_reason(error: HalimedeError) -> str:
    """Return the reason for an error at opening a model, in one word."""
    if isinstance(error, ModelError):
        return error.reason
    is_application = isinstance(error, InvalidFieldError) and error.field.startswith("spec.application")
    return "ApplicationInvalid" if is_application else "ModelInvalid"


def desired_of(path: str, spec: ModelSpec) -> DesiredModel:
    """Return the desired model of a worker without a desired-state file, such as a pod: the file or folder ``path``.

    Its version is the target version of ``spec``, or without one the begin of the file's digest. Blocks.
    """
    fields: dict[str, Any] = msgspec.to_builtins(spec)
    digest = _digest(Path(path)) if path else ""
    return DesiredModel(
        name="model",
        path=path,
        version=spec.target_version or digest[:DIGEST_DIGITS],
        digest=digest,
        spec={k: v for k, v in fields.items() if k != "url"},
        calibration=next((v.calibration for v in spec.versions if v.version == spec.target_version), ""),
    )


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; empty if there is no such file, such as for a folder or an address."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return ""


async def _require_trial(path: str, spec: ModelSpec) -> None:
    """Try a model in a child process. Raises UnfitError if it fails there."""
    trial = await try_model(Path(path), msgspec.json.encode(spec).decode())
    if not trial.ok and not trial.skipped:
        raise UnfitError(trial.reason, trial.message)


def _refusal_of(error: Exception) -> tuple[str, str]:
    """Return the reason, in one word, and the message of a model's refusal; log a defect."""
    if isinstance(error, UnfitError):
        return error.reason, str(error)
    if isinstance(error, TimeoutError):
        return "TooSlow", f"the model did not load within {LOAD_TIMEOUT_S:g} s: make it smaller"
    if isinstance(error, MemoryError):
        return "TooMuchMemory", "there is not enough memory for a second model: raise the memory limit"
    if not isinstance(error, HalimedeError):
        log.error("model not loaded", exc_info=error)
    return "ModelInvalid", describe_exception(error)
