"""The protocol's REST addresses, and the limits that refuse requests before they are read.

| address | |
|---|---|
| GET /v2, /v2/health/live, /v2/health/ready | the server |
| GET /v2/models/NAME[/versions/V], .../ready | a model |
| POST /v2/models/NAME[/versions/V]/infer | answers |
| POST /v2/repository/index | all models |
"""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from halimede import __version__
from halimede.observe import Accepts
from halimede.serving import rest_codec
from halimede.serving.bounded_requests import BoundedRequests, json_response, live, refuse, tensor_response
from halimede.serving.errors import ServeError
from halimede.serving.loaded_model import Loaded, ModelVersionState
from halimede.serving.model_repository import Repository
from halimede.serving.request_budget import SMALL, Charge, RequestBudget
from halimede.serving.server_access import OPEN_ACCESS, ServerAccess
from halimede.serving.tensors import BYTES

NAME = "halimede"
EXTENSIONS = ("binary_tensor_data", "model_repository")
#: most bytes of one request
MAX_REQUEST = 64 * 1024 * 1024
CONNECTIONS = 1024
#: addresses that need no token
OPEN = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})


def accepts(max_request: int, closing_s: float, access: ServerAccess = OPEN_ACCESS) -> Accepts:
    """Return the limits of the server."""
    methods = frozenset({"GET", "HEAD", "POST"})
    return Accepts(
        methods,
        max_body=max_request,
        connections=CONNECTIONS,
        refuse=refuse,
        closing_s=closing_s,
        admits=lambda request: request.path in OPEN or access.is_admitted(request.headers.get("Authorization", "")),
        tls=access.tls,
    )


class RestHandlers(BoundedRequests):
    """The handlers, on a repository."""

    def __init__(
        self, repository: Repository, *, max_request: int = MAX_REQUEST, budget: RequestBudget | None = None
    ) -> None:
        super().__init__(max_request, budget)
        self._repository = repository

    def add_to(self, application: web.Application) -> None:
        """Register all addresses."""
        get, post = application.router.add_get, application.router.add_post
        get("/v2", self._server)
        get("/v2/", self._server)
        get("/v2/health/live", live)
        get("/v2/health/ready", self._ready)
        post("/v2/repository/index", self._index)
        # the most frequent addresses first: aiohttp matches in this order
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            post(f"{model}/infer", self._infer)
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            get(model, self._model)
            get(f"{model}/ready", self._model_ready)

    # --- answers --------------------------------------------------------------------------------------------------

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request, self._answer)

    async def _answer(self, request: web.Request, body: bytes, charge: Charge) -> web.Response:
        """Answer a request. Raises ServeError."""
        end = rest_codec.json_length(body, request.headers.get(rest_codec.HEADER_LENGTH))
        if end <= SMALL:
            query = rest_codec.parse(body, end)
        else:
            query = await charge.convert(end, rest_codec.COPIES * end, lambda: rest_codec.parse(body, end))
        charge.take_tensors(query.tensors, len(body))
        names = request.match_info
        until = time.monotonic() + query.timeout_s
        version, answers = await self._repository.infer(
            names["model"], names.get("version", ""), query.tensors, query.outputs, until
        )
        size = charge.take_tensors(answers)
        model = names["model"]
        if size <= SMALL:
            return tensor_response(*rest_codec.write(query, model, version.version, answers))
        body, head = await charge.convert(size, size, lambda: rest_codec.write(query, model, version.version, answers))
        return tensor_response(body, head)

    async def _server(self, _: web.Request) -> web.StreamResponse:
        return json_response({"name": NAME, "version": __version__, "extensions": EXTENSIONS})

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        reason = self._repository.not_ready()
        return refuse(503, reason) if reason else json_response({"ready": True})

    async def _index(self, _: web.Request) -> web.StreamResponse:
        rows = []
        for name, served in self._repository.models().items():
            rollout = served.rollout
            rows += [
                {"name": name, "version": version, "state": "READY", "reason": ""}
                for version in (served.versions() or [""] if rollout.current else [])
            ]
            if rollout.reason or not rollout.current:
                row = {"name": name, "version": rollout.refused.version if rollout.refused else ""}
                rows.append({**row, "state": "UNAVAILABLE", "reason": rollout.message or "loading"})
        return json_response(rows)

    async def _model(self, request: web.Request) -> web.StreamResponse:
        try:
            return json_response(metadata(self._repository, *_model_of(request)))
        except ServeError as error:
            return refuse(error.status, str(error))

    async def _model_ready(self, request: web.Request) -> web.StreamResponse:
        name, version = _model_of(request)
        try:
            self._repository.get(name).choose(version)
        except ServeError as error:
            return refuse(error.status, str(error))
        return json_response({"name": name, "ready": True})


def metadata(repository: Repository, name: str, version: str) -> dict[str, Any]:
    """Return the inputs and outputs of a model. Raises ServeError."""
    served = repository.get(name)
    version_state: ModelVersionState = served.choose(version)
    loaded = version_state.loaded
    return {
        "name": name,
        "versions": served.versions(),
        "platform": loaded.platform,
        "inputs": ports(loaded, inputs=True),
        "outputs": ports(loaded, inputs=False),
        "properties": properties(loaded),
    }


def ports(loaded: Loaded, *, inputs: bool) -> list[dict[str, Any]]:
    """Return a model's inputs or outputs; without tensors of its own ``image`` or ``prediction``."""
    if not loaded.inputs:
        return [{"name": loaded.image if inputs else loaded.prediction, "datatype": BYTES, "shape": [-1]}]
    by_name = loaded.inputs if inputs else loaded.outputs
    return [{"name": p.name, "datatype": p.datatype, "shape": list(p.shape or ())} for p in by_name.values()]


def properties(loaded: Loaded) -> dict[str, str]:
    """Return properties for which the protocol has no field."""
    fields = {"batched": str(loaded.batched).lower()}
    if loaded.takes_pictures:
        fields |= {"image_input": loaded.image, "prediction_output": loaded.prediction}
    return fields


def _model_of(request: web.Request) -> tuple[str, str]:
    return request.match_info["model"], request.match_info.get("version", "")
