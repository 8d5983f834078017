"""The models of a server, brought to what its wish says while they answer.

Level-triggered: ``apply`` takes the whole wish and does what is missing. A version that is new is tried in a child
process, opened beside the one that answers, run once, and takes its place between two requests; the old one answers
what it has and is freed. Whatever goes wrong on that way, the old one goes on, and ``in_use`` says why.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import structlog

from halimede.api.base import convert
from halimede.api.model import ModelSpec
from halimede.api.model import check as check_model
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.inference import ModelError
from halimede.messages import ModelInUse
from halimede.messages.trial import Trial, TrialReason
from halimede.models.archive import model_file
from halimede.models.desired import Desired, DesiredModel
from halimede.models.errors import FetchError
from halimede.models.trying import try_model
from halimede.serving.errors import NotFoundError, ServeError
from halimede.serving.figures import Figures
from halimede.serving.loaded import Loaded, open_loaded
from halimede.serving.tensors import Tensor
from halimede.serving.versions import ALL, Served, Version

log = structlog.get_logger()

CANARY_FAILED = "CanaryFailed"
UNREADABLE = "ModelUnreadable"
#: reasons that may pass by themselves, and seconds until such a version is tried again
PASSING = {TrialReason.FAILED, TrialReason.MEMORY, UNREADABLE}
RETRY_S = 10.0

Try = Callable[[Path, str], Awaitable[Trial]]


@dataclass(frozen=True, slots=True)
class Settings:
    """How models are run: rows of one call, threads of ONNX Runtime in it (0: one a core), calls at a time."""

    most: int = 64
    threads: int = 1
    instances: int = 1
    estimator: object | None = None


@dataclass(slots=True)
class Repository:
    """All models of a server, between ``async with`` and its end.

    ``said`` is called when a model that was refused before has been tried again.
    """

    settings: Settings = field(default_factory=Settings)
    attempt: Try = try_model
    figures: Figures = field(default_factory=Figures)
    said: Callable[[], None] = field(default=lambda: None)
    _models: dict[str, Served] = field(default_factory=dict)
    _wish: Desired | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free what is idle; what runs on dies with the process."""
        for task in list(self._tasks):
            task.cancel()
        for served in self._models.values():
            for version in (served.current, served.canary):
                if version and not version.loaded.waiting:
                    await version.loaded.retire()
        self._models.clear()

    async def apply(self, desired: Desired) -> None:
        """Do what the wish asks for; returns when it is done or refused. Raises InvalidFieldError for a wrong wish."""
        names = [wish.name for wish in desired.models]
        if len(set(names)) < len(names):
            raise InvalidFieldError("models", names, "name each model once")
        async with self._lock:
            self._wish = desired
            for name in set(self._models) - set(names):
                self._forget(self._models.pop(name))
            async with asyncio.TaskGroup() as group:
                for wish in desired.models:
                    served = self._models.setdefault(wish.name, Served(wish.name))
                    group.create_task(self._follow(served, wish), name=f"model {wish.name}")

    # --- answers --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Served:
        """Return a model by name. Raises NotFoundError."""
        served = self._models.get(name)
        if served is None:
            raise NotFoundError(f"there is no model {name[:80]!r} here")
        return served

    def names(self) -> list[str]:
        """Return the models' names, in the order of the wish."""
        return list(self._models)

    def not_ready(self) -> str:
        """Return which model cannot answer yet, nothing when all can."""
        if self._wish is None:
            return "no model is loaded yet"
        waiting = [served for served in self._models.values() if served.current is None]
        return "; ".join(f"{one.name}: {one.reason or 'loading'}" for one in waiting)

    def models(self) -> Mapping[str, Served]:
        """Return all models by name."""
        return self._models

    def in_use(self) -> dict[str, ModelInUse]:
        """Return for each model what reports say of it."""
        return {name: served.in_use() for name, served in self._models.items()}

    def busy_s(self) -> float:
        """Seconds that the longest model call under way has taken so far. Any thread may ask."""
        versions = [one for served in list(self._models.values()) for one in (served.current, served.canary) if one]
        return max((one.loaded.busy_s for one in versions), default=0.0)

    async def infer(
        self,
        name: str,
        version: str,
        given: Sequence[Tensor],
        wanted: Sequence[str] = (),
        until: float = float("inf"),
    ) -> tuple[Version, list[Tensor]]:
        """Answer one request; return the version that did. Raises ServeError."""
        served = self.get(name)
        chosen = served.choose(version)
        served.counts.requests += 1
        began = time.monotonic()
        try:
            answers = await chosen.loaded.infer(given, wanted, until)
        except ServeError as error:
            # a canary's mistake is nobody's loss: the version before it answers
            if chosen is not served.canary or version or served.current is None or error.status in {503, 504}:
                served.counts.failures += 1
                raise
            try:
                answers = await served.current.loaded.infer(given, wanted, until)
            except ServeError:
                served.counts.failures += 1
                raise
            self._strike(served, chosen, error)
            chosen = served.current
        self.figures.of(name).answered(time.monotonic() - began)
        return chosen, answers

    # --- from one version to the next -----------------------------------------------------------------------------

    async def _follow(self, served: Served, wish: DesiredModel) -> None:
        step = served.step(wish)
        if step != "keep":
            served.forgive()
        if step == "load":
            await self._take(served, wish)
        elif step == "share":
            served.percent = wish.canary_percent
        elif step != "keep":
            canary, served.canary = served.canary, None
            if canary and step == "promote":
                self._swap(served, canary)
            elif canary:
                self._retire(canary)
        for version in (served.current, served.canary):
            if version and version.wish.same(wish):
                version.wish = wish  # the same content may go by another version now
        served.mark = wish.mark

    async def _take(self, served: Served, wish: DesiredModel) -> None:
        """Try, open and use a new version, or note why not."""
        digest = wish.digest
        try:
            path = model_file(Path(wish.path))
            spec = spec_of(wish)
            digest = digest or await asyncio.to_thread(_digest, path)
            trial = Trial(skipped=True) if wish.tried else await self._tried(path, spec)
            if trial.reason:
                self._refuse(served, wish, digest, trial.reason, trial.message)
                return
            loaded = await asyncio.to_thread(self._open, path, spec)
        except (HalimedeError, OSError) as error:
            if isinstance(error, FetchError):
                reason = str(error.reason)
            else:
                reason = TrialReason.INVALID if isinstance(error, ModelError | InvalidFieldError) else UNREADABLE
            self._refuse(served, wish, digest, reason, str(error))
            return
        except MemoryError:
            self._refuse(served, wish, digest, TrialReason.MEMORY, "there is no memory for it beside the one in use")
            return
        except Exception as error:  # whatever a file makes a library do, what answers must go on
            log.exception("taking a model broke", model=served.name)
            self._refuse(served, wish, digest, TrialReason.INVALID, f"opening it broke: {type(error).__name__}")
            return
        name = served.name
        loaded.start(name, instances=self.settings.instances, ran=self.figures.of(name).ran)
        new = Version(wish, digest, loaded)
        if served.canary:
            self._retire(served.canary)
            served.canary = None
        if served.current and wish.canary_percent < ALL:
            served.canary, served.percent, served.strikes = new, wish.canary_percent, 0
            log.info("canary takes requests", model=name, version=wish.version, percent=wish.canary_percent)
        else:
            self._swap(served, new)

    async def _tried(self, path: Path, spec: ModelSpec) -> Trial:
        if self.settings.estimator is not None:
            return Trial(skipped=True)
        return await self.attempt(path, msgspec.json.encode(spec).decode())

    def _open(self, path: Path, spec: ModelSpec) -> Loaded:
        how = self.settings
        return open_loaded(path, spec, estimator=how.estimator, threads=how.threads, most=how.most)

    def _swap(self, served: Served, new: Version) -> None:
        """From the next request on, the new version answers."""
        old, served.current = served.current, new
        served.counts.rollouts += 1
        log.info("model in use", model=served.name, version=new.wish.version, digest=new.digest[:12])
        if old:
            self._retire(old)

    def _strike(self, served: Served, canary: Version, error: ServeError) -> None:
        if served.canary is not canary or not served.struck():
            return
        served.canary = None
        self._refuse(served, canary.wish, canary.digest, CANARY_FAILED, f"it failed where its predecessor did: {error}")
        self._retire(canary)

    def _refuse(self, served: Served, wish: DesiredModel, digest: str, reason: str, message: str) -> None:
        served.refuse(wish, digest, reason, message)
        if reason in PASSING:
            self._start(self._again(served, wish), "try a model again")
        goes_on = served.current.wish.version or served.current.digest[:12] if served.current else "none"
        log.warning("model refused", model=served.name, reason=reason, message=message[:512], in_use=goes_on)

    def _forget(self, served: Served) -> None:
        for version in (served.current, served.canary):
            if version:
                self._retire(version)

    def _retire(self, version: Version) -> None:
        self._start(version.loaded.retire(), "retire a model")

    async def _again(self, served: Served, wish: DesiredModel) -> None:
        await asyncio.sleep(RETRY_S)
        if served.refused is wish and self._wish is not None:
            served.refused = None
            await self.apply(self._wish)
            self.said()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def spec_of(wish: DesiredModel) -> ModelSpec:
    """Return the Model spec of a wish; without one it is plain ONNX. Raises InvalidFieldError."""
    spec = convert({"url": wish.path, "format": "onnx", **wish.spec}, ModelSpec, "spec")
    check_model(spec)
    return spec


def _digest(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
