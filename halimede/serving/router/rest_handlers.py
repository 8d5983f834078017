"""The router's own REST addresses: one model that looks like any other."""

from __future__ import annotations

from aiohttp import web

from halimede import __version__
from halimede.serving.bounded_requests import BoundedRequests, json_response, refuse
from halimede.serving.rest_codec import BINARY, JSON
from halimede.serving.rest_handlers import EXTENSIONS, HEADER_LENGTH, NAME
from halimede.serving.router.backend_client import PASSED
from halimede.serving.router.router import Router, response_of


class RouterHandlers:
    """The handlers, on a router that serves a model ``name``."""

    def __init__(self, router: Router, name: str, *, max_request: int) -> None:
        self._router = router
        self._name = name
        self._requests = BoundedRequests(max_request)

    async def drain(self, timeout_s: float) -> bool:
        """Answer what is under way, and let each connection end with it; return whether all was answered in time."""
        return await self._requests.drain(timeout_s)

    def add_to(self, application: web.Application) -> None:
        """Register all addresses."""
        get, post = application.router.add_get, application.router.add_post
        get("/v2", self._server)
        get("/v2/health/live", self._live)
        get("/v2/health/ready", self._ready)
        get("/v2/models/{model}/ready", self._ready)
        post("/v2/repository/index", self._index)
        post("/v2/models/{model}/infer", self._infer)

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["model"] != self._name:
            return refuse(404, f"there is no model {request.match_info['model'][:80]!r} here: this is {self._name}")
        return await self._requests.answer(request, self._routed)

    async def _routed(self, request: web.Request, body: bytes) -> web.Response:
        headers = {name: request.headers[name] for name in PASSED if name in request.headers}
        headers.pop("Content-Encoding", None)  # aiohttp has unpacked it
        routed = await self._router.answer(body, headers)
        said, head = response_of(routed, self._name)
        if head == len(said):
            return web.Response(status=routed.answer.status, body=said, content_type=JSON)
        return web.Response(
            status=routed.answer.status, body=said, headers={HEADER_LENGTH: str(head), "Content-Type": BINARY}
        )

    async def _server(self, _: web.Request) -> web.StreamResponse:
        return json_response({"name": f"{NAME} router", "version": __version__, "extensions": EXTENSIONS})

    async def _live(self, _: web.Request) -> web.StreamResponse:
        return json_response({"live": True})

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        if not self._router.edge.known and not self._router.cloud.known:
            return refuse(503, "it is not known yet where the models are")
        return json_response({"ready": True})

    async def _index(self, _: web.Request) -> web.StreamResponse:
        return json_response([{"name": self._name, "version": "", "state": "READY", "reason": ""}])
