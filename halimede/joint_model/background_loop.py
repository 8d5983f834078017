"""The background of a JointModel: a thread with its own event loop, and in it one worker for each local model.

So it works in scripts, threads and event loops of all kinds: callers submit their samples, and no call of a model
blocks their threads.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

import structlog

from halimede.bus import Announce, Bus
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import BrokerNameError, DisconnectedError, HalimedeError, InvalidFieldError, NotAllowedError
from halimede.inference import Model, ModelError, open_committee, open_model
from halimede.joint_model.answer import Answer
from halimede.joint_model.in_process_edge import CREDENTIALS, InProcessEdge, closed
from halimede.joint_model.tiers import Rule, RunnableTier, TierPlan
from halimede.models.desired_state import DesiredModel
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel
from halimede.worker.bootstrap import serve
from halimede.worker.errors import WorkerError
from halimede.worker.joint_inference import joint_inference
from halimede.worker.main import connect_to
from halimede.worker.model_reload import ModelOpener, UnfitError
from halimede.worker.roles import BusFactory, RoleJob, WorkerContext
from halimede.worker.settings import WorkerSettings
from halimede.worker.tier_worker import tier as tier_job

T = TypeVar("T")
log = structlog.get_logger()
#: seconds to connect to a broker before samples are answered only here
CONNECT_S = 5.0
#: seconds for a stopped worker to answer pending samples, and for the thread to end
GRACE_S, END_S = 5.0, 15.0
#: seconds in which waiting callers receive the final error
LAST_S = 1.0
P = ParamSpec("P")
#: seconds that Python waits for a running call at exit: native code that is interrupted would abort the process
CALL_S = 2.0


class BackgroundLoop:
    """Runs a plan. ``broker`` None: all tiers run here, over a bus in memory."""

    def __init__(self, plan: TierPlan, broker: MqttSettings | None, node: str, model_timeout_s: float) -> None:
        self.pid = os.getpid()
        self._plan = plan
        self._broker = broker
        self._node = node
        self._model_timeout_s = model_timeout_s
        self._thread = threading.Thread(target=self._run, name="joint-model", daemon=True)
        self._lock = threading.Lock()
        #: whether samples are refused; the pending answers
        self._over = False
        self._answering: set[Future[Any]] = set()
        self._opened: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._desk: InProcessEdge | None = None

    def start(self) -> None:
        """Open the models; return when samples are accepted. Raises HalimedeError, ImportError."""
        self._thread.start()
        self._opened.result()

    def submit(self, payload: Callable[[], bytes], field: str, timeout_s: float) -> Future[Answer]:
        """Submit a sample from any thread; ``payload`` is called in another one."""
        return self._begin(self._answer(payload, field, timeout_s))

    def stop(self) -> None:
        """Answer pending samples, and close all parts; returns at once. ``join`` waits for it."""
        if self._loop and self._stop:
            with contextlib.suppress(RuntimeError):  # it has already ended
                self._loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        """Wait until all parts are closed."""
        if self._thread is not threading.current_thread():
            self._thread.join(END_S)

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._loop is None or self._over:
                work.close()
                raise closed()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._answering.add(future)
        future.add_done_callback(self._answering.discard)
        return future

    async def _answer(self, payload: Callable[[], bytes], field: str, timeout_s: float) -> Answer:
        assert self._desk is not None  # noqa: S101  # it is open
        try:
            data = await asyncio.to_thread(payload)
            return await self._desk.answer(data, field, timeout_s)
        except asyncio.CancelledError:
            if self._over:  # cancelled by the end of the loop, not by the caller
                raise closed() from None
            raise

    # --- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 (the caller gets it in its own thread)
            self._end()
            if not self._opened.done():
                self._opened.set_exception(_plain(error))
            else:
                log.warning("joint model ended", error=str(_plain(error)))

    async def _main(self) -> None:
        self._loop, self._stop, self._desk = asyncio.get_running_loop(), asyncio.Event(), InProcessEdge()
        connect, broker = await self._connect()
        with tempfile.TemporaryDirectory(prefix="halimede-", ignore_cleanup_errors=True) as folder:
            async with AsyncExitStack() as stack:
                for stage in reversed(self._plan.stages):
                    await stack.enter_async_context(self._running(stage, connect, Path(folder), broker))
                self._opened.set_result(None)
                await self._stop.wait()
        self._desk.fail(closed())
        self._end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                while self._answering:  # noqa: ASYNC110  # other threads empty it, too
                    await asyncio.sleep(0.001)

    def _end(self) -> None:
        with self._lock:
            self._over = True

    async def _connect(self) -> tuple[BusFactory, str]:
        """Return a connection factory, after a test of the credentials. Raises NotAllowedError."""
        if self._broker is None:
            return partial(_in_memory, MemoryBroker()), ""
        try:
            async with asyncio.timeout(CONNECT_S):
                await MqttBus(f"sdk.{secrets.token_hex(8)}", self._broker).check_reachable()
        except BrokerNameError:
            raise
        except NotAllowedError as error:
            raise NotAllowedError(f"{error}. What to do: {CREDENTIALS}") from error
        except (OSError, TimeoutError, DisconnectedError) as error:
            log.warning(
                "broker not configured: samples are answered by the edge only",
                broker=self._broker.where,
                error=str(error),
            )
        return connect_to(self._broker), self._broker.url

    @contextlib.asynccontextmanager
    async def _running(
        self, stage: RunnableTier, connect: BusFactory, folder: Path, broker: str
    ) -> AsyncIterator[None]:
        """Run a tier's worker within the block."""
        assert self._desk is not None  # noqa: S101  # ``_main`` has made it
        settings = self._settings(stage, folder, broker)
        stop, ready = asyncio.Event(), asyncio.Event()
        job = self._job(stage, settings)

        async def run(parts: WorkerContext, said: Callable[[], None]) -> None:
            def both() -> None:
                said()
                ready.set()

            await job.run(parts, both)

        opener = Here(stage=stage)
        working = asyncio.create_task(
            serve(settings, connect, stop, stage.estimator, replace(job, run=run, opener=opener)), name=stage.name
        )
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if working.done():
            await working
        working.add_done_callback(partial(self._ended, stop))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait({working})

    def _ended(self, stop: asyncio.Event, working: asyncio.Task[None]) -> None:
        """Handle the end of a worker; unless it was stopped, no more samples can be answered."""
        error = None if working.cancelled() else working.exception()
        if error and not stop.is_set() and self._desk:
            self._desk.fail(_plain(error))

    def _job(self, stage: RunnableTier, settings: WorkerSettings) -> RoleJob:
        plan = self._plan
        if stage is plan.stages[0]:
            assert self._desk is not None  # noqa: S101  # ``_main`` has made it
            return RoleJob(partial(self._desk.run, alone=stage.rule is None))
        return tier_job(settings) if stage.rule else joint_inference(settings)

    def _settings(self, stage: RunnableTier, folder: Path, broker: str) -> WorkerSettings:
        plan, names = self._plan, [each.name for each in self._plan.stages]
        place = names.index(stage.name)
        asked = plan.next_tier if place + 1 == len(names) else names[place + 1]
        rule = stage.rule or Rule(mining="EdgeOnly")  # the last tier has no next one
        named = plan.tiers
        worker = f"{stage.name}-{secrets.token_hex(6)}"
        return WorkerSettings(
            role="edge" if place == 0 else "cloud",
            namespace=plan.namespace,
            service=plan.service,
            worker=worker,
            node=self._node,
            uid="",
            model_path=stage.path,
            model=stage.spec,
            estimator="",
            broker=broker,
            state=folder / worker,
            period_s=3600,  # there is no local controller
            grace_s=GRACE_S,
            model_timeout_s=self._model_timeout_s,
            hem_name=rule.mining,
            hem_parameters=rule.texts(),
            hem_mode=rule.mode,
            calibration=rule.calibration,
            target_upload_ratio=rule.target_upload_ratio,
            audit_share=rule.audit_share,
            fusion=rule.fusion,
            costs=rule.costs,
            tier=stage.name if named else "",
            next_tier=asked if named and stage.rule else "",
            deadline_s=plan.deadline_s,
            hard_samples=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Here(ModelOpener):
    """Opens a model in this process. It is the caller's own, and not tried in a child process first."""

    stage: RunnableTier

    async def open(self, wish: DesiredModel) -> LoadedModel:  # noqa: ARG002  # there is one model to open
        """Open the tier's model in its own thread. Raises UnfitError."""
        async with AsyncExitStack() as stack:
            thread = await stack.enter_async_context(ModelThread("model", DaemonExecutor))
            try:
                model = await thread.call(_open, self.stage)
            except (ModelError, InvalidFieldError) as error:
                reason = error.reason if isinstance(error, ModelError) else "ModelInvalid"
                raise UnfitError(reason, f"{self.stage.name} model: {error}") from error
            return LoadedModel(model, thread, self.stage.version, "", stack.pop_all())


def _open(stage: RunnableTier) -> Model:
    model = stage.opened or open_model(stage.path, stage.spec, stage.estimator)
    try:
        return open_committee(model, stage.committee)
    except BaseException:
        model.close()
        raise


def _in_memory(
    broker: MemoryBroker,
    client_id: str,
    *,
    announce: Announce | None = None,
    receive_maximum: int | None = None,
    session_s: int = 0,
) -> Bus:
    return MemoryBus(client_id, broker, announce, receive_maximum=receive_maximum or 1000, session_s=session_s)


def _plain(error: BaseException) -> BaseException:
    """Return the cause, which a user can act on, in place of its wrappers."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return HalimedeError(str(error)) if isinstance(error, WorkerError) else error


def quiet() -> None:
    """Exclude the library's log events below warnings if the program has not configured structlog."""
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(30),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
            cache_logger_on_first_use=False,
        )


class DaemonExecutor(Executor):
    """One thread. Unlike with a ThreadPoolExecutor, Python waits for it only briefly at exit."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"{name}_0", daemon=True)
        self._thread.start()
        atexit.register(self._last)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call ``fn`` after earlier submissions."""
        future: Future[T] = Future()
        self._queue.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """End the thread after earlier submissions, or after the running call if ``cancel_futures``."""
        while cancel_futures:
            try:
                waiting = self._queue.get_nowait()
            except Empty:
                break
            if waiting:
                waiting[0].cancel()
        self._queue.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        while waiting := self._queue.get():
            future, work = waiting
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # as ThreadPoolExecutor: its caller gets it
                future.set_exception(error)
            del waiting, future, work  # keep no references while it waits
        atexit.unregister(self._last)

    def _last(self) -> None:
        self.shutdown(wait=False, cancel_futures=True)
        self._thread.join(CALL_S)
