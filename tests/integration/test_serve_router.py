"""The router between two servers of pictures: REST and MQTT in, the cloud there and away, models found by status."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import tritonclient.http as triton_http

from halimede import topics
from halimede.bus.mqtt import MqttBus
from halimede.frames import new_frame, pack
from halimede.messages import DeadLetter, Frame, Result, Status, StatusDocument
from services.broker import MosquittoProcess
from tests.inbox import Inbox
from tests.integration.test_serve_clients import SPEC, png
from tests.scraping import scrape, value
from tests.serving_world import Server, adds, port_of, server
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.slow

#: a contrast that the small model is sure of, and one that it is not
EASY, HARD = png(0, 255), png(100, 110)
MINING = ("--mining", "Margin", "--param", "threshold_margin=0.2")


@dataclass
class World:
    edge: Server
    cloud: Server
    folder: Path

    @contextlib.asynccontextmanager
    async def router(self, *arguments: str, **told: str) -> AsyncIterator[Server]:
        ways = () if any(text.endswith("-service") for text in arguments) else (
            "--edge", self.edge.http, "--cloud", f"{self.cloud.http}/v2/models/big")  # fmt: skip
        async with server(
            self.folder / "router", *ways, *MINING, "--name", "helmet", *arguments,
            program="router", event="routing", **told,
        ) as made:  # fmt: skip
            await made.ready("/v2")
            yield made


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A small model at the edge, and one in the cloud that calls everything by another name."""
    small, big = tmp_path / "small.json", tmp_path / "big.json"
    small.write_text(json.dumps(SPEC))
    big.write_text(json.dumps({**SPEC, "labels": ["surely dark", "surely bright"]}))
    model = adds(tmp_path / "m.onnx", 0)
    async with (
        server(tmp_path / "edge", f"small={model}", "--spec", str(small)) as edge,
        server(tmp_path / "cloud", f"big={model}", "--spec", str(big)) as cloud,
    ):
        await edge.ready()
        await cloud.ready()
        yield World(edge, cloud, tmp_path)


def ask(router: Server, picture: bytes) -> tuple[str, dict[str, Any]]:
    """Return the label and what the router says of it, as tritonclient reads it."""
    client = triton_http.InferenceServerClient(router.http.partition("://")[2])
    given = triton_http.InferInput("image", [1], "BYTES")
    given.set_data_from_numpy(np.array([picture], object))
    found = client.infer("helmet", [given])
    said = found.get_response()
    assert said["model_name"] == "helmet"
    return json.loads(found.as_numpy("prediction")[0])["label"], said["parameters"]


async def test_easy_ones_stay_at_the_edge_and_hard_ones_go_to_the_cloud_while_there_is_one(world: World) -> None:
    async with world.router() as router:
        easy = ("bright", {"by": "edge", "hard": False, "degraded": False})
        assert await asyncio.to_thread(ask, router, EASY) == easy
        hard = ("surely bright", {"by": "cloud", "hard": True, "degraded": False})
        assert await asyncio.to_thread(ask, router, HARD) == hard
        assert await world.cloud.terminate() == 0
        reasons: list[str] = []

        async def is_open() -> bool:
            label, parameters = await asyncio.to_thread(ask, router, HARD)
            reasons.append(parameters.pop("reason"))
            assert (label, parameters) == ("bright", {"by": "edge", "hard": True, "degraded": True})
            return reasons[-1] == "circuit-open"

        await eventually(is_open)
        # a slow machine may ask after the pause: then the cloud is tried again, and the pause doubled
        assert set(reasons) == {"no-cloud", "circuit-open"}
        assert await asyncio.to_thread(ask, router, EASY) == easy
        async with aiohttp.ClientSession() as session:
            found = await scrape(session, router.http)
            assert value(found, "halimede_router_answers_total", by="edge") == 2 + len(reasons)
            degraded = value(found, "halimede_router_degraded_answers_total", reason="no-cloud")
            assert degraded == reasons.count("no-cloud")
            assert value(found, "halimede_router_circuit_state") == 2
            await world.edge.terminate()
            body = {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [""]}]}
            async with session.post(f"{router.http}/v2/models/helmet/infer", json=body) as answer:
                assert (answer.status, "neither model answers" in (await answer.json())["error"]) == (503, True)
        assert await router.terminate() == 0


async def test_a_mistake_in_a_request_is_told_as_the_edge_tells_it(world: World) -> None:
    async with world.router() as router, aiohttp.ClientSession() as session:
        body = {"inputs": [{"name": "nothing", "shape": [1], "datatype": "FP32", "data": [1]}]}
        async with session.post(f"{router.http}/v2/models/helmet/infer", json=body) as answer:
            assert (answer.status, "there is no input 'nothing'" in (await answer.json())["error"]) == (400, True)
        async with session.post(f"{router.http}/v2/models/other/infer", json=body) as answer:
            assert answer.status == 404


async def test_what_is_under_way_at_sigterm_is_answered_and_nobody_else_comes_in(world: World) -> None:
    async with world.router() as router:
        port = port_of(router.http)
        given = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [base64.b64encode(EASY).decode()]}
        body = json.dumps({"inputs": [given]}).encode()
        head = f"POST /v2/models/helmet/infer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nExpect: 100-continue\r\n"
        async with asyncio.timeout(patience(60)):
            asking, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
            assert await asking.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body[:20])
            router.process.send_signal(signal.SIGTERM)
            while True:
                try:
                    _, other = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionError:
                    break
                other.close()
                await asyncio.sleep(0.05)
            assert router.process.poll() is None, "it waits for the rest of the request"
            writer.write(body[20:])
            answer = (await asking.read()).decode()  # to the end of the connection
            writer.close()
        assert answer.startswith("HTTP/1.1 200 "), answer
        assert '"by":"edge"' in answer.replace(" ", "")
        assert await asyncio.to_thread(router.process.wait, patience(30)) == 0
        assert not router.said("requests not answered in the grace period")


async def test_raw_scores_are_judged_too(world: World) -> None:
    async with world.router("--output", "y", "--activation", "softmax") as router, aiohttp.ClientSession() as session:
        for row, by in (([0, 9], "edge"), ([1, 1], "cloud")):
            body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": row}]}
            async with session.post(f"{router.http}/v2/models/helmet/infer", json=body) as answer:
                said = await answer.json()
            assert (said["parameters"]["by"], said["outputs"][0]["data"]) == (by, row)


async def test_frames_of_a_camera_get_one_result_each(world: World, own_broker: MosquittoProcess) -> None:
    results: Inbox[Result] = Inbox()
    letters: Inbox[DeadLetter] = Inbox()

    def results_of(frame: Frame) -> list[Result]:
        return [result for result in results.read(lambda body: body) if result.id == frame.id.hex()]

    async with MqttBus("camera", own_broker.url) as bus:
        await bus.wait_connected(patience(5))
        await bus.subscribe(topics.RESULT.filter(service="helmet"), results)
        await bus.subscribe(topics.DEAD_LETTER.filter(), letters)
        async with world.router("--camera", "cam0", "--broker", own_broker.url) as router:
            to = topics.CAMERA_FRAME.at(ns="default", camera="cam0")

            async def heard() -> bool:
                return await bus.publish(to, b"no picture")

            await eventually(heard, 30)
            easy = new_frame(np.array([[0, 255]], np.uint8), camera="cam0")
            hard = new_frame(np.array([[100, 110]], np.uint8), camera="cam0", encoding="png")
            easy.file, easy.captured_ns = "street.png", 1_700_000_000_000_000_000
            for frame in (easy, hard, easy, hard):
                await bus.publish(to, pack(frame))
            await eventually(lambda: results_of(easy) and results_of(hard), 30)
            (one,), (other,) = results_of(easy), results_of(hard)
            assert (one.by, one.hard, one.label, one.camera) == ("edge", False, "bright", "cam0")
            assert (one.file, one.captured_ns) == (easy.file, easy.captured_ns)
            assert (other.by, other.hard, other.label, other.edge and other.edge.label) == (
                "cloud", True, "surely bright", "bright",
            )  # fmt: skip
            await world.cloud.terminate()
            late = new_frame(np.array([[100, 110]], np.uint8))
            await bus.publish(to, pack(late))
            await eventually(lambda: results_of(late), 30)
            (third,) = results_of(late)
            assert (third.by, third.degraded, third.reason) == ("edge", True, "no-cloud")

            async def refused() -> bool:  # a client that has just connected may have no connection for its letter yet
                return await bus.publish(to, b"no picture") and bool(letters.deliveries)

            await eventually(refused, 30, 0.2)
            assert await router.terminate() == 0
    assert len(set(results.read(lambda result: result.id))) == len(results.deliveries)


async def test_models_are_found_by_the_status_of_their_services(world: World, own_broker: MosquittoProcess) -> None:
    async with MqttBus("gm", own_broker.url) as gm:
        await gm.wait_connected(patience(5))

        async def tell(name: str, url: str | None) -> None:
            to = topics.STATUS.at(ns="default", plural="inferencemodels", name=name)
            status = Status(phase="Running", observed_generation=1, conditions=[], url=url)
            body = StatusDocument(api_version="sedna.io/v1alpha1", kind="InferenceModel", namespace="default",
                                  name=name, uid="u-1", generation=1, status=status)  # fmt: skip
            await gm.publish(to, body)

        await tell("little", world.edge.http)
        services = ("--edge-service", "little", "--cloud-service", "large", "--broker", own_broker.url)
        async with world.router(*services) as router:
            await eventually(lambda: router.said("model found"), 30)
            _, said = await asyncio.to_thread(ask, router, HARD)
            assert (said["by"], said["reason"]) == ("edge", "no-cloud")
            await tell("large", world.cloud.http)
            await eventually(lambda: len(router.said("model found")) == 2, 30)
            _, said = await asyncio.to_thread(ask, router, HARD)
            assert said["by"] == "cloud"
