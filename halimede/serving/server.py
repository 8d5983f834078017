"""``halimede serve``: the server as a process. Its parts start in this order: models, REST, gRPC, reports."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import AsyncIterator, Sequence

import structlog

from halimede import log as logging
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.inference import load_estimator
from halimede.messages import ModelInUse
from halimede.models import desired_state
from halimede.names import check_name
from halimede.observe import Health, HttpServer, parse_bind
from halimede.observe.metrics import registry
from halimede.pipeline.executor import LoopWatchdog
from halimede.serving.model_repository import Repository, RepositorySettings
from halimede.serving.request_budget import RequestBudget
from halimede.serving.rest_handlers import RestHandlers, accepted_requests
from halimede.serving.settings import ServerSettings, reachable_host, read_settings
from halimede.system.runtime import stop_on_signal
from halimede.worker.status_reporter import StatusReporter

log = structlog.get_logger()

#: exit code after a mistake of the user
USERS_MISTAKE = 2
#: exit code after any other error
CRASH = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code, or end the process with CRASH.

    ``arguments``: those of the command line; None: the process's own.
    """
    try:
        settings = read_settings(sys.argv[1:] if arguments is None else arguments, os.environ)
        reports = settings.reports
        logging.configure(service="serve", **({"node": reports.node, "worker": reports.worker} if reports else {}))
        asyncio.run(serve(settings))
    except InvalidFieldError as error:
        sys.stderr.write(f"halimede serve: {error}\n")
        return USERS_MISTAKE
    except HalimedeError as error:
        sys.stderr.write(f"halimede serve: {error}\n")
        sys.stderr.flush()
        os._exit(CRASH)  # a hanging model would keep the process alive
    return 0


async def serve(settings: ServerSettings) -> None:
    """Serve until SIGTERM or SIGINT, then answer open requests within the grace period. Raises HalimedeError."""
    stop = stop_on_signal()
    estimator = load_estimator(settings.estimator, "--estimator") if settings.estimator else None
    options = RepositorySettings(settings.most, settings.threads, settings.instances, estimator)
    async with contextlib.AsyncExitStack() as stack:
        models = Repository(options)
        stuck = f"halimede serve: a model has not answered for {settings.model_timeout_s:g} s (MODEL_TIMEOUT_S)"
        stack.enter_context(LoopWatchdog(models.busy_s, settings.model_timeout_s, text=stuck, code=CRASH))
        await stack.enter_async_context(models)
        budget = RequestBudget(settings.max_request)
        api = RestHandlers(models, max_request=settings.max_request, budget=budget)
        shown = await stack.enter_async_context(_http(settings, models, api, stop))
        at = await stack.enter_async_context(_grpc(settings, models, budget))
        reporter = await stack.enter_async_context(_report(settings, models, shown.url))
        models.on_retry = lambda: _report_ready(models, reporter)
        log.info("serving", http=shown.url, grpc=at)
        work = asyncio.ensure_future(_follow(settings, models, reporter))
        ending = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({work, ending}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            shown.stop_listening()
            if not await api.drain(settings.grace_s):
                log.warning("requests not answered in the grace period")
        finally:
            work.cancel()
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work


async def _follow(settings: ServerSettings, models: Repository, reporter: StatusReporter | None) -> None:
    """Apply the desired models, and each change of their file, until cancelled.

    Raises InvalidFieldError if a model of the command line cannot be served, HalimedeError if one of the file cannot
    and the server is strict.
    """
    if settings.file is None:
        await models.apply(settings.desired)
        gc.freeze()  # keep libraries and models out of later collections
        if models.not_ready():
            refused = {name: one.message or one.reason for name, one in models.in_use().items() if one.reason}
            raise InvalidFieldError("MODEL", ", ".join(refused), "; ".join(refused.values()))
        await asyncio.Event().wait()
    else:
        if not settings.desired.models:
            log.warning("no models yet: the server waits for its file", file=str(settings.file))
        while True:
            try:
                async for desired in desired_state.changes(settings.file, "--file"):
                    await models.apply(desired)
                    _report_ready(models, reporter)
                    gc.freeze()
                    if settings.strict and models.not_ready():
                        raise HalimedeError(f"a model is not there: {_refusal_text(models)}")
            except InvalidFieldError as error:
                # the file is not valid: its author may correct it, and the served models stay in use
                log.warning("desired model not loaded", error=str(error))
                await asyncio.sleep(desired_state.CHECK_PERIOD_S * 4)


def _refusal_text(models: Repository) -> str:
    """Return the reasons of all models that are refused."""
    reasons = (": ".join(filter(None, (one.reason, one.message))) for one in models.in_use().values() if one.reason)
    return "; ".join(reasons)


def _report_ready(models: Repository, reporter: StatusReporter | None) -> None:
    """Report to the local controller, if there is one, whether every model is ready."""
    if reporter is None:
        return
    waiting = next((one.rollout for one in models.models().values() if one.rollout.current is None), None)
    if waiting is None:
        reporter.set("running")
    else:
        reporter.set("starting", waiting.reason, waiting.message)


@contextlib.asynccontextmanager
async def _http(
    settings: ServerSettings, models: Repository, api: RestHandlers, stop: asyncio.Event
) -> AsyncIterator[HttpServer]:
    """Yield the running HTTP server with the models' addresses, health and metrics."""
    health = Health()
    health.live("model", lambda: _stuck(models.busy_s(), settings.model_timeout_s))
    health.ready("models", models.not_ready)
    health.ready("stopping", lambda: "it is about to leave" if stop.is_set() else "")
    metrics = registry("serve", models.metrics)
    lets_in = accepted_requests(settings.max_request, settings.grace_s, settings.access)
    async with HttpServer(settings.http, health=health, registry=metrics, routes=api.add_to, accepts=lets_in) as shown:
        yield shown


@contextlib.asynccontextmanager
async def _grpc(settings: ServerSettings, models: Repository, budget: RequestBudget) -> AsyncIterator[str]:
    """Serve gRPC in the block; yield its address, empty if it is off. Raises InvalidFieldError if it cannot be used."""
    address = parse_bind(settings.grpc, "--grpc")
    if address is None:
        yield ""
        return
    try:
        import grpc  # noqa: PLC0415 - an extra of its own: REST needs none

        from halimede.serving import grpc_handlers  # noqa: PLC0415
    except ModuleNotFoundError as error:
        fix = f"install it: pip install 'halimede[serve,grpc]' ({error.name} is missing); or use off"
        raise InvalidFieldError("--grpc", settings.grpc, fix) from error
    options = grpc_handlers.options(settings.max_request)
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=grpc_handlers.REQUESTS)
    server.add_generic_rpc_handlers((grpc_handlers.GrpcHandlers(models, budget, settings.access).handler(),))
    host, port = address
    shown = f"[{host}]" if ":" in host else host or "0.0.0.0"  # noqa: S104 - what the user asked for
    try:
        if settings.access.tls:
            pair = (settings.access.key, settings.access.certificate)
            bound = server.add_secure_port(f"{shown}:{port}", grpc.ssl_server_credentials([pair]))
        else:
            bound = server.add_insecure_port(f"{shown}:{port}")
    except RuntimeError as error:
        raise InvalidFieldError("--grpc", settings.grpc, "it cannot be used: another process may have it") from error
    await server.start()
    try:
        yield f"{shown}:{bound}"
    finally:
        await server.stop(settings.grace_s)


@contextlib.asynccontextmanager
async def _report(settings: ServerSettings, models: Repository, http: str) -> AsyncIterator[StatusReporter | None]:
    """Yield what reports to the local controller; None without one. ``http``: the URL of the REST server.

    The end of the block publishes that the server has completed.
    """
    identity = settings.reports
    if identity is None:
        yield None
        return
    broker = MqttSettings.from_url(identity.broker, credentials=identity.credentials)
    async with MqttBus(check_name("WORKER_NAME", f"worker.{identity.namespace}.{identity.worker}"), broker) as bus:
        bus.node = identity.node
        reporter = StatusReporter(bus, identity, owner_kind="inferencemodel")
        reporter.http = http
        reporter.model = lambda: next(iter(models.in_use().values()), ModelInUse())
        scheme, _, at = http.partition("://")
        host, port = parse_bind(at) or ("", 0)
        reporter.url = f"{scheme}://{reachable_host(host, identity.broker)}:{port}"
        reports = asyncio.ensure_future(reporter.run())
        try:
            yield reporter
        finally:
            reports.cancel()
            await reporter.publish_final("completed")


def _stuck(busy_s: float, limit_s: float) -> str:
    """Return why the process is not healthy; empty if no model call takes longer than the limit."""
    return f"a model call has taken {busy_s:.0f} s, more than {limit_s:g}" if busy_s > limit_s else ""
