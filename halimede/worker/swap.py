"""A running worker takes another model: opened beside the one that answers, then put in its place between two batches.

Which one it shall be stands in a file that the local controller writes (``halimede.models.desired``). A model that
cannot be taken changes nothing but what the worker says of it: the one that answers goes on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog

from halimede.api.base import convert
from halimede.api.model import ModelSpec
from halimede.api.model import check as check_model
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.frames.loaded import Loaded
from halimede.frames.slot import Slot
from halimede.inference import Model, ModelError, open_model
from halimede.messages import ModelInUse
from halimede.models.archive import model_file
from halimede.models.desired import Desired, DesiredModel, changes
from halimede.models.errors import FetchError
from halimede.models.trying import try_model
from halimede.pipeline.executor import ModelThread

log = structlog.get_logger()

#: seconds that a new model may take to open while the old one answers
OPEN_S = 600.0
#: seconds until the next look at a file that could not be read
AGAIN_S = 1.0
MAX_REASON, MAX_MESSAGE = 256, 4096
CANARY_FAILED = "CanaryFailed"
#: in place of the url, which is nobody's business here: the file is at hand, or an estimator needs none
HERE = "/"


class UnfitError(HalimedeError):
    """A model that is not taken. ``reason`` is one word for conditions."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens models for a worker: ONNX files, or what its user's own estimator reads."""

    estimator: object | None = None
    #: what the worker answers with, made of the opened model; called in the model's thread
    compose: Callable[[Model], Model] | None = None
    #: calls of a model of ours at a time, and threads of each
    sessions: int = 1
    threads: int = 1

    @property
    def again(self) -> bool:
        """Whether it can open a second model beside the first: one live object of a user's can hold only one."""
        return self.estimator is None or isinstance(self.estimator, type)

    async def open(self, wish: DesiredModel) -> Loaded:
        """Try a model and open it in a thread of its own. Raises UnfitError."""
        spec = spec_of(wish)
        path = await asyncio.to_thread(_file, wish, spec)
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
            return Loaded(model, thread, wish.version, wish.digest, stack.pop_all(), others)

    def _open(self, path: str, spec: ModelSpec) -> Model:
        model = open_model(path, spec, self.estimator, threads=self.threads)
        if self.compose is None:
            return model
        try:
            return self.compose(model)
        except BaseException:
            model.close()
            raise

    def _untried(self, wish: DesiredModel, path: str) -> bool:
        return self.estimator is None and not wish.tried and Path(path).is_file()


class Swapper:
    """Follows the file: what it asks for is in ``slot`` as soon as it can be. ``wish``: what the slot holds now.

    ``said`` is called whenever ``model`` says something new.
    """

    def __init__(self, slot: Slot, wish: DesiredModel, opener: Opener, said: Callable[[], None]) -> None:
        self._slot = slot
        self._wish = wish
        self._opener = opener
        self._canary: DesiredModel | None = None
        self._tell = said
        #: what answers now, and what became of the last wish
        self.model = ModelInUse(digest=wish.digest, version=wish.version, mark=wish.mark)

    async def run(self, path: Path) -> None:
        """Follow the file until cancelled."""
        while True:
            try:
                async for desired in changes(path):
                    await self.follow(desired)
            except InvalidFieldError as error:
                self._say(ModelInUse(reason="WishInvalid", message=str(error), mark=self.model.mark))
            await asyncio.sleep(AGAIN_S)

    async def follow(self, desired: Desired) -> None:
        """Take the step from what is there to what is asked for."""
        if len(desired.models) != 1:
            text = f"MODEL_FILE names {len(desired.models)} models: a worker answers with one"
            return self._say(ModelInUse(reason="WishInvalid", message=text, mark=self.model.mark))
        (wish,) = desired.models
        if wish.mark == self.model.mark:
            return None
        try:
            await self._take(wish)
        except Exception as error:  # noqa: BLE001 (whatever it is, the model that answers must go on)
            reason, text = _why(error)
            log.warning("model refused", version=wish.version, digest=wish.digest[:12], reason=reason, error=text)
            self._slot.try_out(None, 0)
            self._canary = None
            return self._say(ModelInUse(refused=wish.digest, reason=reason, message=text, mark=wish.mark))
        log.info("model taken", version=wish.version, digest=wish.digest[:12], percent=wish.canary_percent)
        return self._say(ModelInUse(mark=wish.mark))

    async def _take(self, wish: DesiredModel) -> None:
        slot, canary = self._slot, self._canary
        if wish.same(self._wish):
            slot.try_out(None, 0)
            self._canary, self._wish = None, wish
            slot.current.version = wish.version
            return
        if canary and wish.same(canary) and slot.canary:
            new = slot.canary
        else:
            async with asyncio.timeout(OPEN_S):
                new = await self._opener.open(wish)
        if wish.canary_percent < 100:
            slot.try_out(new, wish.canary_percent, self._withdrawn)
            self._canary = wish
        else:
            if slot.canary is not new:
                slot.try_out(None, 0)
            slot.replace(new)
            self._canary, self._wish = None, wish

    def _withdrawn(self, error: str) -> None:
        """The canary failed too often: say so, as of a model that was not taken."""
        wish, self._canary = self._canary, None
        if wish is None:
            return
        text = f"it failed where the model before it did not: {error}"[:MAX_MESSAGE]
        log.warning("canary withdrawn", version=wish.version, digest=wish.digest[:12], error=text)
        self._say(ModelInUse(refused=wish.digest, reason=CANARY_FAILED, message=text, mark=wish.mark))

    def _say(self, what: ModelInUse) -> None:
        """Say it, with what answers now."""
        self.model = msgspec.structs.replace(
            what,
            digest=self._wish.digest,
            version=self._wish.version,
            canary_version=self._canary.version if self._canary else "",
        )
        self._tell()


def _reason(error: HalimedeError) -> str:
    ours = isinstance(error, InvalidFieldError) and error.field.startswith("spec.application")
    return "ApplicationInvalid" if ours else "ModelInvalid"


def spec_of(wish: DesiredModel) -> ModelSpec:
    """Return the spec that a model is opened by. Raises UnfitError."""
    try:
        spec = convert({**wish.spec, "url": HERE}, ModelSpec, "MODEL_FILE.spec")
        check_model(spec)
    except InvalidFieldError as error:
        raise UnfitError("ModelInvalid", str(error)) from error
    return spec


def as_wish(path: str, spec: ModelSpec) -> DesiredModel:
    """Return the wish that an environment without a file stands for."""
    told: dict[str, Any] = msgspec.to_builtins(spec)
    return DesiredModel(name="model", path=path, spec={k: v for k, v in told.items() if k != "url"})


def _file(wish: DesiredModel, spec: ModelSpec) -> str:
    """Return what is to be opened: of the folder that an archive became, the model in it. Raises UnfitError."""
    # os.path asks no more of a path than whether it is a folder: an estimator's may be empty, or a URL
    if not (spec.is_onnx and os.path.isdir(wish.path)):  # noqa: PTH112
        return wish.path
    try:
        return str(model_file(Path(wish.path)))
    except FetchError as error:
        raise UnfitError(str(error.reason), f"{wish.path}: {error}") from error


async def _try(path: str, spec: ModelSpec) -> None:
    trial = await try_model(Path(path), msgspec.json.encode(spec).decode())
    if not trial.ok and not trial.skipped:
        raise UnfitError(trial.reason, trial.message)


def _why(error: Exception) -> tuple[str, str]:
    if isinstance(error, UnfitError):
        return error.reason[:MAX_REASON], str(error)[:MAX_MESSAGE]
    if isinstance(error, TimeoutError):
        return "TooSlow", f"the model was not open after {OPEN_S:g} s: make it smaller"
    if isinstance(error, MemoryError):
        return "TooMuchMemory", "there is no memory for it beside the model that answers: raise the memory limit"
    if not isinstance(error, HalimedeError):
        log.error("taking a model broke", exc_info=error)
    return "ModelInvalid", f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
