"""`halimede seen` asks a real matcher over a real broker, by identity, by a picture, and follows what comes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import UnreachableError
from halimede.cli.commands import seen
from halimede.cli.options import Format
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.messages import IdentityQuery
from halimede.multiedge.reid import Matcher
from services.broker import MosquittoProcess
from tests.graphs import write_describer
from tests.integration.cli.conftest import Output, Printed, background, connected
from tests.integration.gm_world import model
from tests.simulated import eventually
from tests.staged import FLAT
from tests.typed import typed
from tests.unit.multiedge.reid.scene import finding, looks, matcher, who

LOBBY = seen.ServiceQuery("default", "lobby")
A, B = looks(2)


class Gallery:
    """A worker in which findings come together, in short."""

    def __init__(self, bus: MqttBus, matcher: Matcher) -> None:
        self.bus = bus
        self.matcher = matcher

    async def start(self) -> None:
        await self.bus.subscribe(topics.IDENTITY_QUERY.filter(ns="default", service="lobby"), self._ask)

    async def _ask(self, delivery: Delivery[IdentityQuery]) -> None:
        await self.bus.reply(delivery, topics.IDENTITY_ANSWER, self.matcher.ask(delivery.body))

    async def see(self, number: int) -> str:
        outcome = self.matcher.take([finding(A, [(50, 50)], number=number, ms=1000 * number)], float(number))
        for track in outcome.tracks:
            await self.bus.publish(topics.TRACK.at(ns="default", service="lobby"), track)
        return str(who(outcome)[0])


@pytest.fixture
async def gallery(mosquitto: MosquittoProcess, tmp_path: Path) -> AsyncIterator[Gallery]:
    async with connected("lobby-door-edge0", mosquitto) as bus:
        gallery = Gallery(bus, matcher(tmp_path))
        await gallery.start()
        yield gallery


async def test_where_somebody_was_seen(broker: BrokerAddress, gallery: Gallery, capsys: Output) -> None:
    identity, *_ = [await gallery.see(number) for number in range(3)]
    await seen.show_sightings(broker, LOBBY, IdentityQuery(identity=identity), Format.TABLE)
    shown = capsys.readouterr().out
    assert identity in shown
    assert shown.count("36,36,64,64") == 3
    await seen.show_sightings(broker, LOBBY, IdentityQuery(), Format.JSON)
    (one,) = json.loads(capsys.readouterr().out)["identities"]
    assert (one["identity"], one["count"], one["cameras"]) == (identity, 3, ["door"])


async def test_what_cannot_be_answered_is_one_clear_line(broker: BrokerAddress, gallery: Gallery) -> None:
    with pytest.raises(HalimedeError, match="lobby has no identity 0123"):
        await seen.show_sightings(broker, LOBBY, IdentityQuery(identity="0123"), Format.TABLE)
    with pytest.raises(HalimedeError, match="could not answer"):
        await seen.show_sightings(broker, LOBBY, IdentityQuery(embedding=b"\0"), Format.TABLE)
    with pytest.raises(UnreachableError, match=r"service hall.*its application is reid"):
        await seen.show_sightings(broker, seen.ServiceQuery("default", "hall"), IdentityQuery(), Format.TABLE)


async def test_who_is_seen_now_is_followed(broker: BrokerAddress, gallery: Gallery, printed: Printed) -> None:
    number = 0

    async def three_lines() -> bool:
        nonlocal number
        number += 1
        await gallery.see(number)
        return printed.out.count("\n") >= 3

    async with background(seen.follow_tracks(broker, LOBBY, "", "door", Format.TABLE)):
        await eventually(three_lines, 30, 0.1)
    header, row, *_ = printed.out.splitlines()
    assert "IDENTITY" in header
    assert "door" in row
    assert "36,36,64,64" in row


def test_a_picture_is_described_by_the_services_model(tmp_path: Path) -> None:
    write_describer(tmp_path / "describe.onnx", 16)
    manifest = tmp_path / "model.yaml"
    processing = {"preprocess": msgspec.to_builtins(FLAT), "postprocess": {"task": "embedding"}}
    manifest.write_text(json.dumps(model("look", url="describe.onnx", **processing)))
    Image.linear_gradient("L").save(tmp_path / "who.png")
    Image.new("RGB", (20, 30), (200, 120, 40)).save(tmp_path / "blank.png")
    vector = seen.features(str(tmp_path / "who.png"), str(manifest))
    assert len(vector) % 2 == 0
    assert any(vector)
    for file, error in (("blank.png", "no features"), ("model.yaml", "neither JPEG nor PNG")):
        with pytest.raises(HalimedeError, match=error):
            seen.features(str(tmp_path / file), str(manifest))
    manifest.write_text(manifest.read_text().replace("describe.onnx", "https://example.com/m.onnx"))
    with pytest.raises(InvalidFieldError, match="download the model"):
        seen.features(str(tmp_path / "who.png"), str(manifest))


@pytest.mark.parametrize("options", ["--picture a.png", "x --picture a.png --model m.yaml", "-f --since 1h"])
def test_options_that_do_not_go_together_are_refused(options: str) -> None:
    typed("seen", "lobby", *options.split(), code=2)
