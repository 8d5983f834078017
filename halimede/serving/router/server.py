"""``halimede router``: the router as a process: command line, REST addresses, connection to the bus."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import aiohttp
import structlog
from aiohttp import web
from prometheus_client.metrics_core import Metric

from halimede import __version__, topics
from halimede import log as logging
from halimede.api import inferencemodel
from halimede.api.mining import AFTER
from halimede.bus import Bus, Delivery
from halimede.bus.credentials import Credentials
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.port import NO_NODE
from halimede.errors import HalimedeError, InvalidFieldError, first_error
from halimede.messages import StatusDocument
from halimede.mining import create
from halimede.mining.pre_inference import modes_of
from halimede.names import check_label, check_name
from halimede.observe import Health, HttpServer, parse_bind
from halimede.observe.metrics import buses, counter, gauge, registry
from halimede.offload.limits import State
from halimede.serving.bounded_requests import BoundedRequests, answer_live, json_response, refuse, tensor_response
from halimede.serving.request_budget import Charge
from halimede.serving.rest_handlers import EXTENSIONS, MAX_REQUEST, NAME, accepted_requests
from halimede.serving.router.backend_client import PASSED, Backend, ResponseReader
from halimede.serving.router.camera_bridge import CameraBridge, RouterIdentity
from halimede.serving.router.router import Router, response_of
from halimede.serving.settings import seconds
from halimede.system.runtime import stop_on_signal
from halimede.worker.settings import BROKER

log = structlog.get_logger()
#: exit code after a mistake of the user
USERS_MISTAKE = 2
#: address of REST, health and metrics, unless ``--http`` names another
DEFAULT_HTTP = "127.0.0.1:8090"
#: states of the circuit breaker as values of its metric
CIRCUIT = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}
#: the end of ``--help``: examples
EXAMPLES = """\
Examples:
  halimede router --edge http://127.0.0.1:8501 --cloud http://gpu0:8501 --mining Margin --param threshold_margin=0.2
  halimede router --edge-service small --cloud-service big --mining IBT --camera cam0 --name helmet

exit code: 0 after SIGTERM or SIGINT, 2 after a mistake that you can correct (see the last line)
"""


def parser() -> argparse.ArgumentParser:
    """Return the command line's definition."""
    command = argparse.ArgumentParser(
        prog="halimede router",
        description="Ask the model at the edge, and the one in the cloud where mining calls a sample hard.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    for side in ("edge", "cloud"):
        one = command.add_mutually_exclusive_group(required=True)
        one.add_argument(f"--{side}", metavar="URL", help=f"the server of the {side} model, or URL/v2/models/NAME")
        one.add_argument(f"--{side}-service", metavar="NAME", help="or the InferenceModel whose status has the address")
    add("--mining", required=True, metavar="NAME", help="the mining algorithm, as in hardExampleMining")
    add("--param", action="append", default=[], metavar="KEY=VALUE", help="its parameters")
    add("--name", default="router", help="the model that it looks like, and its results' service (default router)")
    add("--output", default="", help="the output with the scores, if there are several")
    add("--activation", choices=("none", "softmax", "sigmoid"), default="none", help="what makes them probabilities")
    add("--deadline-ms", type=float, default=2000.0, help="what a hard sample waits for the cloud (default 2000)")
    add("--http", default=DEFAULT_HTTP, metavar="HOST:PORT", help=f"REST in, health, metrics (default {DEFAULT_HTTP})")
    add("--camera", action="append", default=[], metavar="NAME", help="also answer this camera's frames on the bus")
    add("--broker", default=os.environ.get("HALIMEDE_BROKER") or BROKER, help="host:port of the broker")
    add("--credentials", default=os.environ.get("HALIMEDE_CREDENTIALS", ""), help="folder of its credentials")
    add("--namespace", "-n", default=os.environ.get("NAMESPACE") or "default")
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Route requests until SIGTERM or SIGINT; return the exit code. ``arguments``: None: those of the process."""
    options = parser().parse_args(arguments)
    logging.configure(service="router")
    try:
        with first_error():
            asyncio.run(route(options, os.environ))
    except HalimedeError as error:
        sys.stderr.write(f"halimede router: {error}\n")
        return USERS_MISTAKE
    return 0


async def route(options: argparse.Namespace, environ: Mapping[str, str]) -> None:
    """Route requests until SIGTERM or SIGINT, then answer open ones within GRACE_S. Raises HalimedeError."""
    stop = stop_on_signal()
    name, namespace = check_name("--name", options.name), check_label("--namespace", options.namespace)
    parse_bind(options.http, "--http")
    if not options.deadline_ms > 0:
        raise InvalidFieldError("--deadline-ms", options.deadline_ms, "write a number above 0")
    try:
        miner = create(options.mining, _parameters(options.param))
    except InvalidFieldError as error:
        option = "--mining" if error.field.endswith(".name") else f"--param {error.field.rpartition('.')[2]}"
        raise InvalidFieldError(option, error.value.strip("'"), error.fix) from error
    if AFTER not in modes_of(miner):
        fix = "use an algorithm that judges answers, such as Margin: a router asks the edge first"
        raise InvalidFieldError("--mining", options.mining, fix)
    grace_s = seconds(environ, "GRACE_S", 10.0)
    async with contextlib.AsyncExitStack() as stack:
        client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256), cookie_jar=aiohttp.DummyCookieJar())
        session = await stack.enter_async_context(client)
        router = Router(
            Backend(session, "--edge", options.edge or ""),
            Backend(session, "--cloud", options.cloud or ""),
            miner,
            ResponseReader(options.output, options.activation),
            deadline_s=options.deadline_ms / 1000,
        )
        worker, node = environ.get("WORKER_NAME") or f"{name}-router", environ.get("NODE_NAME", "")
        names = RouterIdentity(namespace, name, worker, node)
        bus = await stack.enter_async_context(_bus(options, names))
        api = RouterHandlers(router, name)
        connections = [bus] if bus else []
        shown = await stack.enter_async_context(_http(options, router, api, connections, closing_s=grace_s, stop=stop))
        log.info("routing", http=shown.url, model=name)
        group = await stack.enter_async_context(asyncio.TaskGroup())
        cameras = CameraBridge(bus, router, names, options.camera) if bus and options.camera else None
        tasks = [group.create_task(cameras.run(), name="cameras")] if cameras else []
        for service, upstream in ((options.edge_service, router.edge), (options.cloud_service, router.cloud)):
            if bus and service:
                await follow_status(bus, namespace, check_name("InferenceModel", service), upstream)
        await stop.wait()
        shown.stop_listening()
        leaving = [group.create_task(cameras.drain(grace_s), name="drain")] if cameras else []
        if not await api.drain(grace_s):
            log.warning("requests not answered in the grace period")
        await asyncio.gather(*leaving)
        for task in tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def _bus(options: argparse.Namespace, names: RouterIdentity) -> AsyncIterator[Bus | None]:
    """Yield a connection to the broker; None if no option needs it. Raises HalimedeError."""
    if not (options.camera or options.edge_service or options.cloud_service):
        yield None
        return
    for camera in options.camera:
        check_label("--camera", camera)
    shown = Credentials.at(options.credentials, "--credentials") if options.credentials else None
    settings = MqttSettings.from_url(options.broker, variable="--broker", credentials=shown)
    client = check_name("--name", f"worker.{names.namespace}.{names.worker}")
    async with MqttBus(client, settings) as bus:
        bus.node = names.node or NO_NODE
        yield bus


@contextlib.asynccontextmanager
async def _http(
    options: argparse.Namespace,
    router: Router,
    api: RouterHandlers,
    connections: Sequence[Bus],
    *,
    closing_s: float,
    stop: asyncio.Event,
) -> AsyncIterator[HttpServer]:
    """Yield the running HTTP server with the router's addresses, health and metrics."""
    health = Health()
    health.ready("edge", lambda: "" if router.edge.has_address else "it is not known yet where it is")
    health.ready("broker", lambda: next(("not connected" for bus in connections if not bus.connected), ""))
    health.ready("stopping", lambda: "it is about to leave" if stop.is_set() else "")

    def collect() -> Iterator[Metric]:
        yield from buses(connections)
        answered = [({"by": by}, float(router.answered[by])) for by in ("edge", "cloud")]
        yield counter("router_answers", "Answered requests, by the model that answered.", answered)
        reasons = [({"reason": reason}, float(n)) for reason, n in sorted(router.degraded.items())]
        yield counter("router_degraded_answers", "Hard requests that the edge answered, by reason.", reasons)
        yield counter("router_hard_requests", "Requests that mining found hard.", router.hard)
        yield counter("router_failed_requests", "Requests that neither model answered.", router.failed)
        text = "Answers of the edge that mining could not read; they count as hard."
        yield counter("router_mining_errors", text, router.mining_errors)
        text = "Circuit breaker to the cloud: 0 closed, 1 half open, 2 open."
        yield gauge("router_circuit_state", text, CIRCUIT[router.circuit.state])

    metrics = registry("router", collect)
    lets_in = accepted_requests(MAX_REQUEST, closing_s)
    async with HttpServer(options.http, health=health, registry=metrics, routes=api.add_to, accepts=lets_in) as shown:
        yield shown


def _parameters(texts: Sequence[str]) -> dict[str, str]:
    """Return the parameters in texts ``KEY=VALUE``. Raises InvalidFieldError."""
    parameters = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InvalidFieldError("--param", text, "write KEY=VALUE")
        parameters[key] = value
    return parameters


async def follow_status(bus: Bus, namespace: str, service: str, upstream: Backend) -> None:
    """Set the address of a backend to that in the status of an InferenceModel ``service``, whenever GM publishes it.

    A status without an address leaves a known one as it is. Raises BusError when the subscription fails.
    """

    async def take_address(delivery: Delivery[StatusDocument]) -> None:
        """Set the backend's address to that of a status."""
        url = delivery.body.status.url or ""
        if not url and upstream.has_address:
            return
        try:
            upstream.move(url)
        except InvalidFieldError as error:
            log.warning("url not accepted", service=service, error=str(error))
        else:
            log.info("model found", service=service, url=url)

    await bus.subscribe(topics.STATUS.filter(ns=namespace, plural=inferencemodel.PLURAL, name=service), take_address)


class RouterHandlers(BoundedRequests):
    """The router's REST addresses, which are those of a server with one model, ``name``."""

    def __init__(self, router: Router, name: str) -> None:
        super().__init__(MAX_REQUEST)
        self._router = router
        self._name = name

    def add_to(self, application: web.Application) -> None:
        """Register all addresses in an application."""
        get, post = application.router.add_get, application.router.add_post
        get("/v2", self._server)
        get("/v2/health/live", answer_live)
        get("/v2/health/ready", self._ready)
        get("/v2/models/{model}/ready", self._ready)
        post("/v2/repository/index", self._index)
        post("/v2/models/{model}/infer", self._infer)

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        """Answer an inference request for the one model; 404 for any other."""
        if request.match_info["model"] != self._name:
            return refuse(404, f"there is no model {request.match_info['model'][:80]!r} here: this is {self._name}")
        return await self.answer(request, self._route)

    async def _route(self, request: web.Request, body: bytes, _: Charge) -> web.Response:
        """Return the router's answer to an inference request. Raises ModelUnavailableError."""
        headers = {name: request.headers[name] for name in PASSED if name in request.headers}
        headers.pop("Content-Encoding", None)  # aiohttp has decompressed the body
        routed = await self._router.answer(body, headers)
        answer, head = response_of(routed, self._name)
        return tensor_response(answer, head if head < len(answer) else 0, routed.answer.status)

    async def _server(self, _: web.Request) -> web.StreamResponse:
        """Answer with the router's metadata."""
        return json_response({"name": f"{NAME} router", "version": __version__, "extensions": EXTENSIONS})

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        """Answer 200 once the address of either backend is known, else 503; for the server and any model's name."""
        if not self._router.edge.has_address and not self._router.cloud.has_address:
            return refuse(503, "it is not known yet where the models are")
        return json_response({"ready": True})

    async def _index(self, _: web.Request) -> web.StreamResponse:
        """Answer with one row, for the router's model."""
        return json_response([{"name": self._name, "version": "", "state": "READY", "reason": ""}])
