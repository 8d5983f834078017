"""The models of a server: ``Repository`` reconciles them with the desired state while they answer.

``Repository.apply`` takes the whole desired state and makes the missing changes. A new version is tried in a child
process, opened in addition to the current one, and run once. Then it replaces the current version between two requests,
or gets a share of them as a canary. The old version answers its pending requests and is freed. If a step fails, the
old version stays in use, and ``in_use`` reports why.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from halimede.api.model import ModelSpec
from halimede.api.model_formats import ONNX, format_of
from halimede.errors import HalimedeError, InvalidFieldError, describe_exception
from halimede.inference import ModelError
from halimede.inference.scripts import confine
from halimede.messages import ModelInUse
from halimede.messages.file_facts import Trial, TrialReason
from halimede.models.archive import model_file
from halimede.models.desired_state import Desired, DesiredModel, spec_of
from halimede.models.errors import FetchError
from halimede.models.model_trial import try_model
from halimede.observe.metrics import PREFIX, counter, gauge, sizes, times
from halimede.pipeline.executor import ModelThread
from halimede.serving.errors import ModelNotFoundError, ServeError
from halimede.serving.loaded_model import Loaded, ModelVersionState, Served, open_loaded
from halimede.serving.tensors import Tensor

log = structlog.get_logger()
#: reason of a version whose file cannot be read
UNREADABLE = "ModelUnreadable"
#: reasons for which a version is refused, but which may pass
TEMPORARY_REASONS = {TrialReason.FAILED, TrialReason.MEMORY, UNREADABLE}
#: seconds until a version that was refused for one of TEMPORARY_REASONS is tried again
RETRY_S = 10.0
#: tries the model at a path with the JSON of its spec in a child process
Try = Callable[[Path, str], Awaitable[Trial]]


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """Options for all models of a server.

    Attributes:
        most: samples of one call.
        threads: of one call; 0: one for each core.
        instances: calls of one model at a time.
        estimator: a user's object that replaces the model files; None: there is none.

    """

    most: int = 64
    threads: int = 1
    instances: int = 1
    estimator: object | None = None


@dataclass(slots=True)
class Repository:
    """All models of a server. An asynchronous context manager: use it inside its block.

    ``attempt`` tries a new version in a child process; ``on_retry`` is called after a refused version was tried again.
    """

    settings: RepositorySettings = field(default_factory=RepositorySettings)
    attempt: Try = try_model
    on_retry: Callable[[], None] = field(default=lambda: None)
    _models: dict[str, Served] = field(default_factory=dict)
    _desired: Desired | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel all tasks, and free idle models; a running one ends with the process."""
        for task in list(self._tasks):
            task.cancel()
        for served in self._models.values():
            for version in served.open_versions():
                if not version.loaded.waiting:
                    await version.loaded.retire()
        self._models.clear()

    async def apply(self, desired: Desired) -> None:
        """Apply a desired state, and return when each of its models is in use or refused.

        Models that it does not name are retired. Raises InvalidFieldError if it has two models of one name.
        """
        names = [model.name for model in desired.models]
        if len(set(names)) < len(names):
            raise InvalidFieldError("models", names, "name each model once")
        async with self._lock:
            self._desired = desired
            for name in set(self._models) - set(names):
                self._retire(self._models.pop(name).open_versions())
            async with asyncio.TaskGroup() as group:
                for model in desired.models:
                    served = self._models.setdefault(model.name, Served(model.name))
                    group.create_task(self._reconcile(served, model), name=f"model {model.name}")

    # --- answers --------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Served:
        """Return a model by its name. Raises ModelNotFoundError."""
        served = self._models.get(name)
        if served is None:
            raise ModelNotFoundError(f"there is no model {name[:80]!r} here")
        return served

    def not_ready(self) -> str:
        """Return for users which models cannot answer yet, and why; empty if all can."""
        if self._desired is None:
            return "no model is loaded yet"
        waiting = [served for served in self._models.values() if served.rollout.current is None]
        return "; ".join(f"{served.name}: {served.rollout.reason or 'loading'}" for served in waiting)

    def models(self) -> Mapping[str, Served]:
        """Return all models by name."""
        return self._models

    def in_use(self) -> dict[str, ModelInUse]:
        """Return the state of each model's rollout, by its name, in the form for reports."""
        return {name: served.rollout.in_use() for name, served in self._models.items()}

    def busy_s(self) -> float:
        """Return the seconds for which the longest running model call has run; 0 without one. For any thread."""
        versions = [version for served in list(self._models.values()) for version in served.open_versions()]
        return max((version.loaded.busy_s for version in versions), default=0.0)

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics of all models for Prometheus."""

        def by(value: Callable[[Served], float]) -> list[tuple[dict[str, str], float]]:
            return [({"model": name}, value(served)) for name, served in self._models.items()]

        yield counter("serve_requests", "Requests for a model.", by(lambda s: s.counts.requests))
        yield counter("serve_failures", "Failed requests, including invalid ones.", by(lambda s: s.counts.failures))
        text = "Versions that became current, the first one included."
        yield counter("serve_rollouts", text, by(lambda s: s.counts.rollouts))
        text = "Refused versions; the log and the worker's report have the reason."
        yield counter("serve_refused_versions", text, by(lambda s: s.counts.refusals))
        waiting = by(lambda s: sum(version.loaded.waiting for version in s.open_versions()))
        yield gauge("serve_waiting_requests", "Open requests.", waiting)
        text = "The versions that answer: current, and canary."
        versions = GaugeMetricFamily(f"{PREFIX}serve_version_info", text, labels=["model", "version", "digest", "as"])
        for name, served in self._models.items():
            for role, version in (("current", served.rollout.current), ("canary", served.rollout.canary)):
                if version:
                    versions.add_metric([name, version.version, version.digest[:12], role], 1)
        yield versions
        times_by_model = {name: served.times for name, served in self._models.items() if served.counts.rollouts}
        steps = [
            ({"model": name, "step": step}, distribution.histogram, distribution.total)
            for name, t in times_by_model.items()
            for step, distribution in (("queue", t.queue), ("compute", t.compute), ("total", t.request))
        ]
        yield times("serve_seconds", "Time of a step of requests: queue, compute (a call), total.", steps)
        rows = [({"model": name}, t.batch.histogram, t.batch.total) for name, t in times_by_model.items()]
        yield sizes("serve_batch_samples", "Rows in one call of a model.", rows)

    async def infer(
        self,
        name: str,
        version: str,
        tensors: Sequence[Tensor],
        outputs: Sequence[str] = (),
        until: float = float("inf"),
    ) -> tuple[ModelVersionState, list[Tensor]]:
        """Return the version that answered a request, and its output tensors. Raises ServeError.

        If a canary fails, the current version answers, unless the request named the canary, the server is overloaded
        or the deadline is over.

        Args:
            name: the model.
            version: the requested version; empty: any.
            tensors: the inputs.
            outputs: names of the requested outputs; empty: all.
            until: the deadline, in monotonic seconds.

        """
        served = self.get(name)
        chosen = served.choose(version)
        served.counts.requests += 1
        began = time.monotonic()
        try:
            answers = await chosen.loaded.infer(tensors, outputs, until)
        except ServeError as error:
            # a canary's error must not reach the client: the current version answers
            current = served.rollout.current
            if chosen is not served.rollout.canary or version or current is None or error.status in {503, 504}:
                served.counts.failures += 1
                raise
            try:
                answers = await current.loaded.infer(tensors, outputs, until)
            except ServeError:
                served.counts.failures += 1
                raise
            self._strike(served, chosen, error)
            chosen = current
        served.times.request.record((time.monotonic() - began) * 1000)
        return chosen, answers

    # --- rollout --------------------------------------------------------------------------------------------------

    async def _reconcile(self, served: Served, desired: DesiredModel) -> None:
        """Take the step from the present versions of a model to the desired one."""
        rollout = served.rollout
        step, canary = rollout.step(desired), rollout.canary
        if step == "load":
            rollout.forgive()
            await self._load(served, desired)
        elif step == "withdraw":
            rollout.forgive()
            self._retire(rollout.withdraw())
        elif canary and step in {"share", "promote"}:
            self._use(served, canary, desired.canary_percent)
        rollout.settle(desired)

    async def _load(self, served: Served, desired: DesiredModel) -> None:
        """Try, open and use a new version, or record why it is refused."""
        digest = desired.digest
        loaded: Loaded | None = None
        try:
            spec = spec_of(desired, "spec")
            path = model_file(Path(desired.path), format_of(spec.format) or ONNX)
            digest = digest or await asyncio.to_thread(_digest, path)
            needs_trial = not desired.tried and self.settings.estimator is None
            trial = await self.attempt(path, msgspec.json.encode(spec).decode()) if needs_trial else Trial(skipped=True)
            reason, message = trial.reason, trial.message
            if not reason:
                async with ModelThread("open") as thread:  # a thread that opens a script loses rights
                    loaded = await thread.call(self._open, path, spec)
        except (HalimedeError, OSError) as error:
            reason, message = UNREADABLE, str(error)
            if isinstance(error, FetchError | ModelError):
                reason = str(error.reason)
            elif isinstance(error, InvalidFieldError):
                reason = TrialReason.INVALID
        except MemoryError:
            reason, message = TrialReason.MEMORY, "there is no memory for it beside the one in use"
        except Exception as error:  # any error that a file causes in a library must leave the current version in use
            log.exception("model not loaded", model=served.name)
            reason, message = TrialReason.INVALID, f"it cannot be opened: {describe_exception(error)}"
        if loaded is None:
            self._refuse(served, desired, digest, reason, message)
            return
        name = served.name
        loaded.start(name, instances=self.settings.instances, ran=served.times.record_call)
        new = ModelVersionState(desired, desired.version, digest, loaded)
        self._use(served, new, desired.canary_percent)
        if served.rollout.canary is new:
            log.info("canary takes requests", model=name, version=desired.version, percent=desired.canary_percent)

    def _open(self, path: Path, spec: ModelSpec) -> Loaded:
        """Open a model's file, in a thread of its own. Raises what ``open_loaded`` raises."""
        settings = self.settings
        confine(spec)
        return open_loaded(path, spec, estimator=settings.estimator, threads=settings.threads, most=settings.most)

    def _use(self, served: Served, version: ModelVersionState, percent: int) -> None:
        """Give a version ``percent`` of the requests, from the next one on.

        For 100, or if there is no current version, it becomes the current one.
        """
        before = served.rollout.current
        to_close = served.rollout.use(version, percent)
        if served.rollout.current is not before:
            served.counts.rollouts += 1
            log.info("model in use", model=served.name, version=version.version, digest=version.digest[:12])
        self._retire(to_close)

    def _strike(self, served: Served, canary: ModelVersionState, error: ServeError) -> None:
        """Count a request at which only the canary failed; after ``rollout.MAX_STRIKES`` of them, withdraw it."""
        if served.rollout.strike(canary, f"it failed where its predecessor did: {error}"):
            self._record_refusal(served)
            self._retire([canary])

    def _refuse(self, served: Served, desired: DesiredModel, digest: str, reason: str, message: str) -> None:
        """Record that a desired version is refused, and try it again later if the reason may pass."""
        served.rollout.refuse(reason, message, desired, digest)
        self._record_refusal(served)
        if reason in TEMPORARY_REASONS:
            self._start(self._retry(served, desired), "try a model again")

    def _record_refusal(self, served: Served) -> None:
        """Count and log the latest refusal."""
        served.counts.refusals += 1
        rollout = served.rollout
        version_in_use = rollout.current.version or rollout.current.digest[:12] if rollout.current else "none"
        reason, message = rollout.reason, rollout.message[:512]
        log.warning("model refused", model=served.name, reason=reason, message=message, in_use=version_in_use)

    def _retire(self, versions: Sequence[ModelVersionState]) -> None:
        """Begin to close versions, each after it has answered its pending requests."""
        for version in versions:
            self._start(version.loaded.retire(), "retire a model")

    async def _retry(self, served: Served, desired: DesiredModel) -> None:
        """Try a refused version again after RETRY_S, if it is still desired."""
        await asyncio.sleep(RETRY_S)
        if served.rollout.refused is desired and self._desired is not None:
            served.rollout.retry()
            await self.apply(self._desired)
            self.on_retry()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task, which ends at the end of the block at the latest."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; of a folder that of its files' names and digests. Raises OSError."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        digests = "".join(f"{_digest(file)}  {file.relative_to(path)}\n" for file in files)
        return hashlib.sha256(digests.encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
