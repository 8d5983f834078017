"""The REST addresses of the Open Inference Protocol (``RestHandlers``), and request limits (``accepted_requests``).

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
from halimede.serving.bounded_requests import BoundedRequests, answer_live, json_response, refuse, tensor_response
from halimede.serving.errors import ServeError
from halimede.serving.loaded_model import Loaded, Served
from halimede.serving.model_repository import Repository
from halimede.serving.request_budget import Charge, RequestBudget
from halimede.serving.server_access import OPEN_ACCESS, ServerAccess
from halimede.serving.tensors import BYTES

#: name of the server in its metadata
NAME = "halimede"
#: extensions of the protocol that it has
EXTENSIONS = ("binary_tensor_data", "model_repository")
#: most bytes of one request
MAX_REQUEST = 64 * 1024 * 1024
#: most open connections
CONNECTIONS = 1024
#: paths that need no token
PATHS_WITHOUT_TOKEN = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})


def accepted_requests(max_request: int, closing_s: float, access: ServerAccess = OPEN_ACCESS) -> Accepts:
    """Return what the HTTP server accepts: methods, bodies of up to ``max_request`` bytes, clients with the token.

    ``closing_s``: seconds that connections have at the server's end.
    """
    return Accepts(
        methods=frozenset({"GET", "HEAD", "POST"}),
        max_body=max_request,
        connections=CONNECTIONS,
        refuse=refuse,
        closing_s=closing_s,
        admits=lambda request: (
            request.path in PATHS_WITHOUT_TOKEN or access.is_admitted(request.headers.get("Authorization", ""))
        ),
        tls=access.tls,
    )


class RestHandlers(BoundedRequests):
    """The handlers of the addresses, which answer with the models of a repository.

    ``max_request``: most bytes of one request; ``budget``: bounds all requests together; None: a new one.
    """

    def __init__(
        self, repository: Repository, *, max_request: int = MAX_REQUEST, budget: RequestBudget | None = None
    ) -> None:
        super().__init__(max_request, budget)
        self._repository = repository

    def add_to(self, application: web.Application) -> None:
        """Register all addresses in an application."""
        get, post = application.router.add_get, application.router.add_post
        get("/v2", self._server)
        get("/v2/", self._server)
        get("/v2/health/live", answer_live)
        get("/v2/health/ready", self._ready)
        post("/v2/repository/index", self._index)
        # the most frequent addresses first: aiohttp matches in this order
        for model_path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            post(f"{model_path}/infer", self._handle_infer)
        for model_path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            get(model_path, self._model)
            get(f"{model_path}/ready", self._model_ready)

    # --- answers --------------------------------------------------------------------------------------------------

    async def _handle_infer(self, request: web.Request) -> web.StreamResponse:
        """Answer an inference request, within the limits of ``BoundedRequests``."""
        return await self.answer(request, self._infer)

    async def _infer(self, request: web.Request, body: bytes, charge: Charge) -> web.Response:
        """Return the answer to an inference request with this body. Raises ServeError."""
        json_size = rest_codec.json_length(body, request.headers.get(rest_codec.HEADER_LENGTH))
        query = await charge.convert(
            size=json_size, needs=rest_codec.COPIES * json_size, call=lambda: rest_codec.parse(body, json_size)
        )
        charge.take_tensors(query.tensors, len(body))
        model, version = _model_of(request)
        deadline = time.monotonic() + query.timeout_s
        used, answers = await self._repository.infer(model, version, query.tensors, query.outputs, deadline)
        size = charge.take_tensors(answers)
        answer = await charge.convert(
            size=size, needs=size, call=lambda: rest_codec.write(query, model, used.version, answers)
        )
        return tensor_response(*answer)

    async def _server(self, _: web.Request) -> web.StreamResponse:
        """Answer with the server's metadata."""
        return json_response({"name": NAME, "version": __version__, "extensions": EXTENSIONS})

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        """Answer 200 if every model is ready, else 503 with the reason."""
        reason = self._repository.not_ready()
        return refuse(503, reason) if reason else json_response({"ready": True})

    async def _index(self, _: web.Request) -> web.StreamResponse:
        """Answer with a row for each version in use, and one for each model that waits or was refused."""
        models = self._repository.models()
        return json_response([row for name, served in models.items() for row in index_rows(name, served)])

    async def _model(self, request: web.Request) -> web.StreamResponse:
        """Answer with a model's metadata, or with an error's status."""
        try:
            return json_response(metadata(self._repository, *_model_of(request)))
        except ServeError as error:
            return refuse(error.status, str(error))

    async def _model_ready(self, request: web.Request) -> web.StreamResponse:
        """Answer 200 if the model (and version, if named) can be called, else the error's status."""
        name, version = _model_of(request)
        try:
            self._repository.get(name).choose(version)
        except ServeError as error:
            return refuse(error.status, str(error))
        return json_response({"name": name, "ready": True})


def index_rows(name: str, served: Served) -> list[dict[str, str]]:
    """Return a model's rows in the index: one for each version in use, and one if it waits or was refused."""
    rollout = served.rollout
    # a model without versions has one row with an empty version
    versions = (served.versions() or [""]) if rollout.current else []
    rows = [{"name": name, "version": version, "state": "READY", "reason": ""} for version in versions]
    if rollout.reason or not rollout.current:
        version = rollout.refused.version if rollout.refused else ""
        rows.append({"name": name, "version": version, "state": "UNAVAILABLE", "reason": rollout.message or "loading"})
    return rows


def metadata(repository: Repository, name: str, version: str) -> dict[str, Any]:
    """Return the metadata of a model (``version``: empty: any), such as its inputs and outputs. Raises ServeError."""
    served = repository.get(name)
    loaded = served.choose(version).loaded
    return {
        "name": name,
        "versions": served.versions(),
        "platform": loaded.platform,
        "inputs": ports(loaded, inputs=True),
        "outputs": ports(loaded, inputs=False),
        "properties": properties(loaded),
    }


def ports(loaded: Loaded, *, inputs: bool) -> list[dict[str, Any]]:
    """Return a model's inputs (or outputs) as metadata; ``image`` (or ``prediction``) if it takes only pictures."""
    if not loaded.inputs:
        return [{"name": loaded.image if inputs else loaded.prediction, "datatype": BYTES, "shape": [-1]}]
    by_name = loaded.inputs if inputs else loaded.outputs
    return [{"name": p.name, "datatype": p.datatype, "shape": list(p.shape or ())} for p in by_name.values()]


def properties(loaded: Loaded) -> dict[str, str]:
    """Return what metadata says of a model in properties, because the protocol has no field for it."""
    fields = {"batched": str(loaded.batched).lower()}
    if loaded.takes_pictures:
        fields |= {"image_input": loaded.image, "prediction_output": loaded.prediction}
    return fields


def _model_of(request: web.Request) -> tuple[str, str]:
    """Return the names of the model and of its version (empty: any) in a request's address."""
    return request.match_info["model"], request.match_info.get("version", "")
