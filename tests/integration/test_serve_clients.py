"""A server's process asked by clients that are not ours: tritonclient over HTTP and gRPC, and curl."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import ml_dtypes
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from halimede.frames import encode_image
from tests.graphs import FLOAT, write_graph
from tests.serving_world import Server, adds, echo, server
from tests.waiting import patience

SPEC = {
    "labels": ["dark", "bright"],
    "preprocess": [{"op": "grayscale"}, {"op": "resize", "width": 2, "height": 1}, {"op": "scale", "factor": 1 / 255},
                   {"op": "layout", "order": "flat"}, {"op": "cast", "dtype": "float32"}],
    "postprocess": {"activation": "softmax"},
}  # fmt: skip


def png(left: int, right: int) -> bytes:
    return encode_image(np.array([[left, right]], np.uint8))


def images(*files: bytes) -> dict[str, tuple[str, np.ndarray]]:
    return {"image": ("BYTES", np.array(files, object))}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A server of several models, as its file names them."""
    folder = tmp_path_factory.mktemp("models")
    rows = (FLOAT, ["N", 2])
    nodes = [("Add", ["a", "b"], ["sum"], {}), ("Sub", ["a", "b"], ["difference"], {})]
    both = write_graph(folder / "both.onnx", nodes, {"a": rows, "b": rows}, {"sum": rows, "difference": rows})
    models: list[dict[str, Any]] = [
        {"name": "adds", "path": str(adds(folder / "adds.onnx", 1)), "version": "3"},
        {"name": "both", "path": str(both)},
        {"name": "text", "path": str(echo(folder / "text.onnx", TensorProto.STRING, ["N"]))},
        {"name": "half", "path": str(echo(folder / "half.onnx", TensorProto.FLOAT16))},
        {"name": "brain", "path": str(echo(folder / "brain.onnx", TensorProto.BFLOAT16))},
        {"name": "pictures", "path": str(adds(folder / "pictures.onnx", 0)), "spec": SPEC},
    ]
    wish = folder / "models.json"
    wish.write_text(json.dumps({"models": models}))
    async with server(folder, "--file", str(wish)) as made:
        await made.ready()
        yield made


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, running: Server) -> Any:
    """Tritonclient, over both protocols."""
    kit = triton_http if request.param == "http" else triton_grpc
    url = running.http.partition("://")[2] if request.param == "http" else running.grpc
    made = kit.InferenceServerClient(url)
    made.kit = kit  # type: ignore[union-attr]
    return made


def ask(client: Any, model: str, tensors: dict[str, tuple[str, np.ndarray]], **more: Any) -> Any:
    inputs = []
    for name, (kind, array) in tensors.items():
        given = client.kit.InferInput(name, list(array.shape), kind)
        given.set_data_from_numpy(array)
        inputs.append(given)
    return client.infer(model, inputs, **more)


@pytest.mark.slow
def test_it_is_there_and_says_what_it_has(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("adds")
    assert client.is_model_ready("adds", "3")
    as_json = {} if client.kit is triton_http else {"as_json": True}
    assert client.get_server_metadata(**as_json)["name"] == "halimede"
    said = client.get_model_metadata("both", **as_json)
    assert said["platform"] == "onnx_onnxv1"
    assert [(t["name"], t["datatype"], [int(n) for n in t["shape"]]) for t in said["inputs"]] == [
        ("a", "FP32", [-1, 2]), ("b", "FP32", [-1, 2]),
    ]  # fmt: skip
    assert client.get_model_metadata("adds", **as_json)["versions"] == ["3"]


@pytest.mark.slow
def test_tensors_go_in_and_come_out(client: Any) -> None:
    array = np.array([[1, 2], [3, 4]], np.float32)
    found = ask(client, "adds", {"x": ("FP32", array)}, request_id="7")
    assert np.array_equal(found.as_numpy("y"), array + 1)
    said = found.get_response()
    identity = (said["id"], said["model_name"], said["model_version"]) if isinstance(said, dict) else (
        said.id, said.model_name, said.model_version)  # fmt: skip
    assert identity == ("7", "adds", "3")


def test_only_the_outputs_that_are_asked_for_come(client: Any) -> None:
    a, b = np.array([[5, 6]], np.float32), np.array([[1, 2]], np.float32)
    wanted = [client.kit.InferRequestedOutput("difference")]
    found = ask(client, "both", {"a": ("FP32", a), "b": ("FP32", b)}, outputs=wanted)
    assert np.array_equal(found.as_numpy("difference"), a - b)
    assert found.as_numpy("sum") is None


def test_text_and_half_precision(client: Any) -> None:
    for model, kind, array in (
        ("text", "BYTES", np.array([b"a", "ü".encode(), b""], object)),
        ("half", "FP16", np.array([[0.5, -2]], np.float16)),
        ("brain", "BF16", np.array([[0.5, -2]], ml_dtypes.bfloat16)),
    ):
        assert ask(client, model, {"x": (kind, array)}).as_numpy("y").tolist() == array.tolist()


def test_pictures_are_answered_with_predictions(client: Any) -> None:
    said = ask(client, "pictures", images(png(20, 200), png(200, 20))).as_numpy("prediction")
    assert [json.loads(item)["label"] for item in said] == ["bright", "dark"]
    raw = ask(client, "pictures", {"x": ("FP32", np.array([[1, 2]], np.float32))})
    assert raw.as_numpy("y").tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("model", "tensors", "more", "what"),
    [
        ("nosuch", {"x": ("FP32", np.zeros((1, 2), np.float32))}, {}, "there is no model 'nosuch'"),
        ("adds", {"x": ("FP32", np.zeros((1, 2), np.float32))}, {"model_version": "9"}, "there is no version '9'"),
        ("adds", {"x": ("FP32", np.zeros((1, 3), np.float32))}, {}, "has shape"),
        ("adds", {"x": ("FP64", np.zeros((1, 2), np.float64))}, {}, "is FP32, not FP64"),
        ("pictures", {"image": ("BYTES", np.array([b"no picture"], object))}, {}, "neither a JPEG nor a PNG"),
        (
            "pictures",
            {"image": ("BYTES", np.array([png(1, 2), png(1, 2)[:50]], object))},
            {},
            "image[1]: no readable png",
        ),
    ],
)
def test_what_cannot_be_answered_says_why(client: Any, model: str, tensors: Any, more: Any, what: str) -> None:
    with pytest.raises(InferenceServerException) as refused:
        ask(client, model, tensors, **more)
    assert what in str(refused.value)


def curl(*arguments: str) -> tuple[int, Any]:
    """Return curl's status and the body's JSON."""
    command = ["curl", "-sS", "-w", "\n%{http_code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience(30))
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body)


def test_curl_infers(running: Server) -> None:
    body = '{"id": "c", "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}'
    for path in ("/v2/models/adds/infer", "/v2/models/adds/versions/3/infer"):
        assert curl("-d", body, f"{running.http}{path}") == (200, {
            "model_name": "adds", "model_version": "3", "id": "c",
            "outputs": [{"name": "y", "shape": [1, 2], "datatype": "FP32", "data": [2.0, 3.0]}],
        })  # fmt: skip
    picture = base64.b64encode(png(9, 200)).decode()
    body = json.dumps({"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [picture]}]})
    status, said = curl("-d", body, f"{running.http}/v2/models/pictures/infer")
    assert (status, json.loads(said["outputs"][0]["data"][0])["label"]) == (200, "bright")


def test_curl_hears_what_is_wrong(running: Server) -> None:
    at = running.http
    assert curl("-d", "{", f"{at}/v2/models/adds/infer")[0] == 400
    assert curl(f"{at}/v2/nowhere") == (404, {"error": "Not Found"})
    assert curl("-X", "PUT", f"{at}/v2/models/adds")[0] == 405
    assert curl("-H", "Host: evil.example", f"{at}/v2")[0] == 421
    status, said = curl("-X", "POST", f"{at}/v2/repository/index")
    assert status == 200
    assert [(row["name"], row["version"], row["state"]) for row in said][:2] == [
        ("adds", "3", "READY"), ("both", "", "READY"),
    ]  # fmt: skip


def test_compressed_requests_are_understood(running: Server) -> None:
    made = triton_http.InferenceServerClient(running.http.partition("://")[2])
    given = triton_http.InferInput("x", [1, 2], "FP32")
    given.set_data_from_numpy(np.array([[1, 2]], np.float32))
    found = made.infer("adds", [given], request_compression_algorithm="gzip")
    assert found.as_numpy("y").tolist() == [[2, 3]]


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_too_large_is_refused_before_it_is_read(running: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(running.http.rpartition(":")[2]))
    writer.write(b"POST /v2/models/adds/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n")
    async with asyncio.timeout(patience(30)):
        assert b" 413 " in await reader.readline()
    writer.close()
    async with aiohttp.ClientSession() as session:

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(80):
                yield b" " * 1024 * 1024

        try:
            async with session.post(f"{running.http}/v2/models/adds/infer", data=endless()) as reply:
                assert (reply.status, "error" in await reply.json()) == (413, True)
        except aiohttp.ClientConnectionError:
            pass  # it hung up in the middle, which is an answer as well
