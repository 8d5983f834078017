"""A model on a server of the protocol, for the router: forwards bodies unchanged, and reads predictions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from msgspec import Raw, Struct

from halimede.errors import HalimedeError, InvalidFieldError, cause_of
from halimede.inference import SampleError
from halimede.inference.postprocess import Activation, classify
from halimede.messages import Prediction
from halimede.serving.errors import ServeError
from halimede.serving.loaded_model import PREDICTION
from halimede.serving.rest_codec import BINARY_SIZE, HEADER_LENGTH, TensorHeader
from halimede.serving.tensors import BYTES, Tensor, from_bytes, from_values

#: most bytes of an answer
MAX_ANSWER = 64 * 1024 * 1024
PASSED = ("Content-Type", "Content-Encoding", HEADER_LENGTH)
FIX = "write http://host:port, with /v2/models/NAME behind it where the server has several models"
_model = re.compile(r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?")
FLOATS = {"FP16", "FP32", "FP64", "BF16"}


class UpstreamError(HalimedeError):
    """A server that did not answer: unreachable, too slow, or failing.

    ``slow``: the request timed out. ``broken``: the server is reachable, and failed on this request.
    """

    def __init__(self, text: str, *, slow: bool = False, broken: bool = False) -> None:
        self.slow, self.broken = slow, broken
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class BackendResponse:
    """A server's response. ``head``: bytes of the body that are JSON."""

    status: int
    body: bytes
    head: int


class Backend:
    """One model server. ``name`` is for log events and errors; ``move`` sets its address."""

    def __init__(self, session: aiohttp.ClientSession, name: str, url: str = "") -> None:
        self.name = name
        self._session = session
        self._base = ""
        self._path = ""
        #: the only model of its server, if none was named
        self._only_model = ""
        if url:
            self.move(url)

    @property
    def has_address(self) -> bool:
        """Whether its address is known."""
        return bool(self._base)

    def move(self, url: str) -> None:
        """Set another address, empty for none. Raises InvalidFieldError."""
        if not url:
            self._base = self._path = self._only_model = ""
            return
        match = re.fullmatch(r"(https?://[^/\s?#]+)(/[^\s?#]*)?", url)
        path = (match[2] or "").rstrip("/") if match else ""
        model = _model.fullmatch(path)
        if not match or (path and not model):
            raise InvalidFieldError(self.name, url, FIX)
        if match[1] != self._base or model:
            self._base, self._path, self._only_model = match[1], model[0] if model else "", ""

    async def ask(self, body: bytes, headers: dict[str, str], timeout_s: float) -> BackendResponse:
        """Send a request's body. Raises UpstreamError."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._send(f"{await self._where()}/infer", body, headers)
                if answer.status == 404:
                    self._only_model = ""  # the server may have another model now: ask again
                return answer
        except TimeoutError:
            raise UpstreamError(f"{self.name} did not answer within {timeout_s:.3g} s", slow=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamError(f"{self.name} cannot be reached: {cause_of(error)}") from error

    async def _send(self, url: str, body: bytes, headers: dict[str, str]) -> BackendResponse:
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as reply:
            content = await reply.content.read(MAX_ANSWER + 1)
            while not reply.content.at_eof() and len(content) <= MAX_ANSWER:
                content += await reply.content.read(MAX_ANSWER + 1 - len(content))
            if len(content) > MAX_ANSWER:
                raise UpstreamError(f"{self.name} answers with more than {MAX_ANSWER} bytes")
            if reply.status >= 500 or reply.status in {301, 302, 303, 307, 308}:
                text = f"{self.name} answers {reply.status}: {content[:200].decode(errors='replace')}"
                raise UpstreamError(text, broken=reply.status == 500)
            head = reply.headers.get(HEADER_LENGTH, "")
            length = int(head) if head.isascii() and head.isdigit() and len(head) < 12 else len(content)
            return BackendResponse(reply.status, content, min(length, len(content)))

    async def _where(self) -> str:
        """Return the model's address; on a server with one model that of this model."""
        base = self._base
        if not base:
            raise UpstreamError(f"it is not known where {self.name} is")
        path = self._path or self._only_model
        if not path:
            async with self._session.post(f"{base}/v2/repository/index", json={}) as reply:
                body = await reply.content.read(1024 * 1024)
            try:
                rows = msgspec.json.decode(body, type=list[dict[str, str]]) if reply.status == 200 else []
            except msgspec.DecodeError:
                rows = []
            names = sorted({row.get("name", "") for row in rows} - {""})
            if len(names) != 1:
                raise UpstreamError(f"{self.name} has {', '.join(names)[:200] or 'no models that it names'}: {FIX}")
            path = f"/v2/models/{quote(names[0], safe='')}"
            if self._base == base:  # otherwise it has moved meanwhile
                self._only_model = path
        return base + path


class UnreadableError(HalimedeError):
    """An answer that mining cannot judge."""


class Body(Struct):
    """An answer's JSON. Parts that the router does not change stay undecoded."""

    outputs: Raw
    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ResponseReader:
    """Finds the predictions in an answer: the output's name (empty: the one that fits), its activation, labels."""

    output: str = ""
    activation: Activation = "none"
    labels: Sequence[str] = ()

    def read(self, answer: BackendResponse) -> tuple[Body, list[Prediction]]:
        """Return an answer's JSON and its predictions. Raises UnreadableError."""
        try:
            body = msgspec.json.decode(memoryview(answer.body)[: answer.head], type=Body)
            outputs = msgspec.json.decode(body.outputs, type=list[TensorHeader])
            return body, self._predictions(outputs, answer)
        except (msgspec.DecodeError, ServeError, SampleError, UnicodeDecodeError, ValueError) as error:
            raise UnreadableError(f"the answer cannot be judged: {error}") from error

    def _predictions(self, outputs: Sequence[TensorHeader], answer: BackendResponse) -> list[Prediction]:
        tensors, end = [], answer.head
        for output in outputs:
            size = output.parameters.get(BINARY_SIZE)
            at, end = end, end + (size if type(size) is int and size >= 0 else 0)
            if not self._has_scores(output):
                continue
            if size is None:
                tensors.append(from_values(output.name, output.datatype, output.shape, output.data))
            else:
                data = memoryview(answer.body)[at:end]
                tensors.append(from_bytes(output.name, output.datatype, output.shape, data))
        if len(tensors) != 1:
            listed = ", ".join(f"{output.name} ({output.datatype} {output.shape})" for output in outputs)
            raise UnreadableError(f"{len(tensors)} outputs could hold scores, of {listed}: name one with --output")
        return self._of(tensors[0])

    def _has_scores(self, output: TensorHeader) -> bool:
        if self.output:
            return output.name == self.output
        if output.datatype == BYTES:
            return output.name.startswith(PREDICTION)
        return output.datatype in FLOATS and len(output.shape) == 2 and output.shape[1] > 1

    def _of(self, tensor: Tensor) -> list[Prediction]:
        if tensor.datatype == BYTES:
            return [msgspec.json.decode(item, type=Prediction) for item in tensor.array.ravel()]
        if tensor.array.ndim != 2:
            raise UnreadableError(
                f"output {tensor.name} has shape {list(tensor.array.shape)}, and is no list of scores"
            )
        return [classify(row, self.labels, self.activation) for row in tensor.array]
