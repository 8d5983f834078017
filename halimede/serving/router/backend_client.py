"""A model on a server of the Open Inference Protocol, for the router.

``Backend`` forwards the bodies of requests unchanged; ``ResponseReader`` finds the predictions in an answer.
"""

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
#: headers that describe a request's body; the router forwards them, except an encoding that it has removed
PASSED = ("Content-Type", "Content-Encoding", HEADER_LENGTH)
#: what to do about an address that is not valid
FIX = "write http://host:port, with /v2/models/NAME behind it where the server has several models"
_model = re.compile(r"/v2/models/(?P<model>[^/]+)(/versions/(?P<version>[^/]+))?")
#: types of tensors that may hold scores
FLOATS = {"FP16", "FP32", "FP64", "BF16"}


class UpstreamError(HalimedeError):
    """A server did not answer: it cannot be reached, is too slow, or fails.

    ``slow``: the request timed out. ``broken``: the server failed on this request only.
    """

    def __init__(self, text: str, *, slow: bool = False, broken: bool = False) -> None:
        self.slow, self.broken = slow, broken
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class BackendResponse:
    """A server's response. ``status``: that of HTTP; ``head``: how many bytes of the body are JSON."""

    status: int
    body: bytes
    head: int


class Backend:
    """One model on a server. ``name``: for messages; ``url``: as for ``move``; empty: it is not known yet.

    ``session``: of the HTTP client, which the caller closes.
    """

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
        """Whether the server's address is known."""
        return bool(self._base)

    def move(self, url: str) -> None:
        """Set the address: ``http://host:port``, optionally with ``/v2/models/NAME``; empty for none.

        Raises InvalidFieldError for an address of another form.
        """
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
        """Send a request's body and return the response. Raises UpstreamError, also after ``timeout_s``."""
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
        """Send a request's body to an address. Raises UpstreamError, aiohttp.ClientError, OSError."""
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
        """Return the URL of the model. If none was named, ask the server for its only model. Raises UpstreamError."""
        base = self._base
        if not base:
            raise UpstreamError(f"it is not known where {self.name} is")
        path = self._path or self._only_model
        if not path:
            async with self._session.post(f"{base}/v2/repository/index", json={}) as reply:
                body = await reply.content.read(1024 * 1024)  # enough for the index of thousands of models
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
    """An answer in which the router finds no predictions, so that mining cannot judge it."""


class Body(Struct):
    """The JSON of an answer. ``outputs`` stays undecoded, because the router does not change it."""

    outputs: Raw
    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ResponseReader:
    """Finds the predictions in an answer.

    Attributes:
        output: name of the output with the scores, or with the predictions as JSON; empty: the only one that fits.
        activation: makes probabilities of the scores.
        labels: names of the classes; empty: their numbers.

    """

    output: str = ""
    activation: Activation = "none"
    labels: Sequence[str] = ()

    def read(self, answer: BackendResponse) -> tuple[Body, list[Prediction]]:
        """Return an answer's JSON and a prediction for each of its samples. Raises UnreadableError."""
        try:
            body = msgspec.json.decode(memoryview(answer.body)[: answer.head], type=Body)
            outputs = msgspec.json.decode(body.outputs, type=list[TensorHeader])
            return body, self._predictions(outputs, answer)
        except (msgspec.DecodeError, ServeError, SampleError, UnicodeDecodeError, ValueError) as error:
            raise UnreadableError(f"the answer cannot be judged: {error}") from error

    def _predictions(self, outputs: Sequence[TensorHeader], answer: BackendResponse) -> list[Prediction]:
        """Return the predictions in the output that holds them."""
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
        return self._read_tensor(tensors[0])

    def _has_scores(self, output: TensorHeader) -> bool:
        """Whether an output holds scores or predictions, by its name, type and shape."""
        if self.output:
            return output.name == self.output
        if output.datatype == BYTES:
            return output.name.startswith(PREDICTION)
        return output.datatype in FLOATS and len(output.shape) == 2 and output.shape[1] > 1

    def _read_tensor(self, tensor: Tensor) -> list[Prediction]:
        """Return the predictions that a tensor holds: as JSON, or as a row of scores for each sample."""
        if tensor.datatype == BYTES:
            return [msgspec.json.decode(item, type=Prediction) for item in tensor.array.ravel()]
        if tensor.array.ndim != 2:
            shape = list(tensor.array.shape)
            raise UnreadableError(f"output {tensor.name} has shape {shape}, and is no list of scores")
        return [classify(row, self.labels, self.activation) for row in tensor.array]
