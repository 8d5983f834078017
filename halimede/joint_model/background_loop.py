"""``BackgroundLoop``: the thread of a JointModel, with its own event loop and in it one worker for each local model.

Callers submit their samples from any thread or event loop, and no call of a model blocks them.
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
from halimede.joint_model.in_process_edge import CREDENTIALS, InProcessEdge, closed_error
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
#: seconds in which callers that still wait receive the final error
FINAL_ERRORS_S = 1.0
P = ParamSpec("P")
#: seconds that Python waits at exit for a running call of a model: interrupted native code would abort the process
CALL_S = 2.0


class BackgroundLoop:
    """Runs the local tiers of a plan in a thread. Call ``start``, then ``submit`` samples, then ``stop`` and ``join``.

    ``broker`` None: all tiers run here, over a bus in memory; else the last local tier requests a service's tiers over
    that broker. ``node``: the name of this machine in messages. ``model_timeout_s``: most seconds of one call of a
    model. ``pid`` is the process that made it: it does not work in a forked one.
    """

    def __init__(self, plan: TierPlan, broker: MqttSettings | None, node: str, model_timeout_s: float) -> None:
        self.pid = os.getpid()
        self._plan = plan
        self._broker = broker
        self._node = node
        self._model_timeout_s = model_timeout_s
        self._thread = threading.Thread(target=self._run, name="joint-model", daemon=True)
        self._lock = threading.Lock()
        #: samples are refused
        self._is_over = False
        #: answers that callers wait for
        self._pending: set[Future[Any]] = set()
        self._opened: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._edge: InProcessEdge | None = None

    def start(self) -> None:
        """Open the models; block until samples are accepted. Raises HalimedeError and ImportError."""
        self._thread.start()
        self._opened.result()

    def submit(self, payload: Callable[[], bytes], field: str, timeout_s: float) -> Future[Answer]:
        """Submit a sample from any thread; return the future of its answer. Raises HalimedeError after the end.

        ``payload`` returns the sample as a camera message, and is called in another thread. ``field`` names the sample
        in errors. The future has NoAnswerError, InvalidFieldError, TimeoutError after ``timeout_s`` seconds, or the
        error by which the loop or a worker has ended.
        """
        return self._begin(self._answer(payload, field, timeout_s))

    def stop(self) -> None:
        """Let pending samples be answered and all parts be closed; return at once. ``join`` waits for this."""
        if self._loop and self._stop:
            with contextlib.suppress(RuntimeError):  # it has already ended
                self._loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        """Block until all parts are closed, at most for ``END_S``."""
        if self._thread is not threading.current_thread():
            self._thread.join(END_S)

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop; return the future of its result. Raises HalimedeError after the end."""
        with self._lock:
            if self._loop is None or self._is_over:
                work.close()
                raise closed_error()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    async def _answer(self, payload: Callable[[], bytes], field: str, timeout_s: float) -> Answer:
        """Return the answer to a sample, whose message is made in another thread."""
        assert self._edge is not None  # noqa: S101  # it is open
        try:
            data = await asyncio.to_thread(payload)
            return await self._edge.answer(data, field, timeout_s)
        except asyncio.CancelledError:
            if self._is_over:  # cancelled by the end of the loop, not by the caller
                raise closed_error() from None
            raise

    # --- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Run the loop to its end; an error before the models are open is raised by ``start``."""
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 (the caller gets it in its own thread)
            self._refuse_samples()
            if not self._opened.done():
                self._opened.set_exception(_root_cause(error))
            else:
                log.warning("joint model ended", error=str(_root_cause(error)))

    async def _main(self) -> None:
        """Open the workers, the last tier first, wait for ``stop``, and close them."""
        self._loop, self._stop, self._edge = asyncio.get_running_loop(), asyncio.Event(), InProcessEdge()
        connect, broker = await self._connect()
        with tempfile.TemporaryDirectory(prefix="halimede-", ignore_cleanup_errors=True) as folder:
            async with AsyncExitStack() as stack:
                for stage in reversed(self._plan.stages):
                    await stack.enter_async_context(self._open_worker(stage, connect, Path(folder), broker))
                self._opened.set_result(None)
                await self._stop.wait()
        self._edge.fail(closed_error())
        self._refuse_samples()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINAL_ERRORS_S):
                while self._pending:  # noqa: ASYNC110  # other threads empty it, too
                    await asyncio.sleep(0.001)

    def _refuse_samples(self) -> None:
        with self._lock:
            self._is_over = True

    async def _connect(self) -> tuple[BusFactory, str]:
        """Return a function that makes connections, and the broker's address (empty: in memory).

        It tries the credentials first: raises NotAllowedError, and BrokerNameError for a certificate of another name.
        That the broker is away is only logged: connections are tried again while samples are answered.
        """
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
    async def _open_worker(
        self, stage: RunnableTier, connect: BusFactory, folder: Path, broker: str
    ) -> AsyncIterator[None]:
        """Run a tier's worker within the block, which begins when the worker is ready. Raises an error of its start."""
        assert self._edge is not None  # noqa: S101  # ``_main`` has made it
        settings = self._settings(stage, folder, broker)
        stop, ready = asyncio.Event(), asyncio.Event()
        job = self._job(stage, settings)

        async def run(context: WorkerContext, on_ready: Callable[[], None]) -> None:
            def mark_ready() -> None:
                on_ready()
                ready.set()

            await job.run(context, mark_ready)

        opener = InProcessOpener(stage=stage)
        worker = asyncio.create_task(
            serve(settings, connect, stop, stage.estimator, replace(job, run=run, opener=opener)), name=stage.name
        )
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({worker, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if worker.done():
            await worker
        worker.add_done_callback(partial(self._on_end, stop))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait({worker})

    def _on_end(self, stop: asyncio.Event, worker: asyncio.Task[None]) -> None:
        """Handle the end of a worker; unless it was stopped, no more samples can be answered."""
        error = None if worker.cancelled() else worker.exception()
        if error and not stop.is_set() and self._edge:
            self._edge.fail(_root_cause(error))

    def _job(self, stage: RunnableTier, settings: WorkerSettings) -> RoleJob:
        """Return what a tier's worker does: the edge answers callers, others answer requests over the bus."""
        plan = self._plan
        if stage is plan.stages[0]:
            assert self._edge is not None  # noqa: S101  # ``_main`` has made it
            return RoleJob(partial(self._edge.run, alone=stage.rule is None))
        return tier_job(settings) if stage.rule else joint_inference(settings)

    def _settings(self, stage: RunnableTier, folder: Path, broker: str) -> WorkerSettings:
        """Return the settings of a tier's worker, which keeps its files in ``folder``.

        ``broker``: its URL; empty: the broker is in memory.
        """
        plan, names = self._plan, [tier.name for tier in self._plan.stages]
        index = names.index(stage.name)
        next_tier = plan.next_tier if index + 1 == len(names) else names[index + 1]
        rule = stage.rule or Rule(mining="EdgeOnly")  # the last tier has no next one

        worker = f"{stage.name}-{secrets.token_hex(6)}"
        return WorkerSettings(
            role="edge" if index == 0 else "cloud",
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
            tier=stage.name if plan.has_middle_tiers else "",
            next_tier=next_tier if plan.has_middle_tiers and stage.rule else "",
            deadline_s=plan.deadline_s,
            hard_samples=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcessOpener(ModelOpener):
    """A ``ModelOpener`` that opens a tier's model in this process, without a trial: the model is the caller's own."""

    stage: RunnableTier

    async def open(self, desired: DesiredModel) -> LoadedModel:  # noqa: ARG002  # there is one model to open
        """Open the tier's model in a thread of its own. Raises UnfitError if it cannot be opened."""
        async with AsyncExitStack() as stack:
            thread = await stack.enter_async_context(ModelThread("model", DaemonExecutor))
            try:
                model = await thread.call(_open, self.stage)
            except (ModelError, InvalidFieldError) as error:
                reason = error.reason if isinstance(error, ModelError) else "ModelInvalid"
                raise UnfitError(reason, f"{self.stage.name} model: {error}") from error
            return LoadedModel(model, thread, self.stage.version, "", stack.pop_all())


def _open(stage: RunnableTier) -> Model:
    """Return a tier's open model, with the further models of its committee."""
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
    """Return a connection to the broker in memory, with the parameters of a ``BusFactory``."""
    return MemoryBus(client_id, broker, announce, receive_maximum=receive_maximum or 1000, session_s=session_s)


def _root_cause(error: BaseException) -> BaseException:
    """Return the first error in nested groups of errors: the cause, on which a user can act."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return HalimedeError(str(error)) if isinstance(error, WorkerError) else error


def quiet_logs() -> None:
    """Drop halimede's log events below warnings, unless the program has configured structlog itself."""
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(30),  # the level of warnings
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
            cache_logger_on_first_use=False,
        )


class DaemonExecutor(Executor):
    """An ``Executor`` with one daemon thread, for which Python waits only ``CALL_S`` at exit."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"{name}_0", daemon=True)
        self._thread.start()
        atexit.register(self._end_at_exit)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Return the future of a call of ``fn``, which runs after earlier submissions."""
        future: Future[T] = Future()
        self._queue.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """End the thread after earlier submissions, or after the running call if ``cancel_futures``.

        ``wait``: block until the thread has ended.
        """
        while cancel_futures:
            try:
                queued = self._queue.get_nowait()
            except Empty:
                break
            if queued:
                queued[0].cancel()
        self._queue.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        """Make the queued calls, until ``shutdown``."""
        while queued := self._queue.get():
            future, work = queued
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # as ThreadPoolExecutor: its caller gets it
                future.set_exception(error)
            del queued, future, work  # keep no references while it waits
        atexit.unregister(self._end_at_exit)

    def _end_at_exit(self) -> None:
        """End the thread when Python exits; wait for a running call, at most ``CALL_S``."""
        self.shutdown(wait=False, cancel_futures=True)
        self._thread.join(CALL_S)
