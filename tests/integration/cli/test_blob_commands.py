"""``halimede blob`` against a real broker, GM's store and a node's cache."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from halimede.bus.mqtt import MqttBus
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.commands import blob
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.models import Cache, FetchError
from services.broker import MosquittoProcess
from services.gm.app import BlobServing
from services.lc.app import NodeBlobs
from tests.integration.cli.conftest import Output
from tests.integration.conftest import serving
from tests.unit.blobs.world import digest_of, some_bytes

FILE = some_bytes(5_000_000)
DIGEST = digest_of(FILE)


@pytest.fixture
async def peers(mosquitto: MosquittoProcess, tmp_path: Path) -> AsyncIterator[None]:
    gm = BlobServing(MqttBus("gm-blobs", mosquitto.url), tmp_path / "gm-blobs")
    node = NodeBlobs("edge0", MqttBus("lc.edge0-blobs", mosquitto.url), Cache(tmp_path / "models"))
    async with serving(gm, node):
        yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(FILE)
    return path


@pytest.mark.parametrize("keeper", ["gm", "edge0"])
async def test_a_file_is_put_listed_and_got(
    broker: BrokerAddress, peers: None, file: Path, keeper: str, capsys: Output
) -> None:
    await blob.put_file(broker, file, keeper)
    assert capsys.readouterr().out == f"url: bus://{keeper}/sha256/{DIGEST}\nsha256: {DIGEST}\n"
    await blob.list_files(broker, keeper, as_json=True)
    line = json.loads(capsys.readouterr().out)
    assert line == {"digest": DIGEST, "size": len(FILE), "url": f"bus://{keeper}/sha256/{DIGEST}"}
    await blob.list_files(broker, keeper, as_json=False)
    assert f"{DIGEST}   5,000,000" in capsys.readouterr().out
    out = file.with_name("out")
    for name, source in ((DIGEST, "any"), (line["url"], keeper), (f"sha256:{DIGEST}", "edge9")):
        out.unlink(missing_ok=True)
        await blob.fetch_file(broker, name, out, source)
        assert out.read_bytes() == FILE
    assert not list(file.parent.glob(".*")), "nothing is left beside it"


async def test_gm_forgets_what_is_deleted(broker: BrokerAddress, peers: None, file: Path, capsys: Output) -> None:
    await blob.put_file(broker, file, "gm")
    await blob.delete_file(broker, DIGEST)
    capsys.readouterr()
    await blob.list_files(broker, "gm", as_json=True)
    assert capsys.readouterr().out == ""
    with pytest.raises(HalimedeError, match="is not here"):
        await blob.delete_file(broker, DIGEST)


@pytest.mark.slow
async def test_what_cannot_be_is_said_in_one_line(
    broker: BrokerAddress, peers: None, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    for path, keeper, kind, reason in (
        (tmp_path / "no", "gm", InvalidFieldError, "cannot be read"),
        (tmp_path, "gm", InvalidFieldError, "cannot be read|regular"),
        (tmp_path / "empty", "gm", InvalidFieldError, "empty"),
        (file, "A/b", InvalidFieldError, "--to"),
        (file, "edge9", HalimedeError, "edge9 is not on the bus"),
    ):
        with pytest.raises(kind, match=reason):
            await blob.put_file(broker, path, keeper)
    for name, out, kind, reason in (
        ("../../etc/passwd", tmp_path / "out", InvalidFieldError, "DIGEST"),
        (DIGEST, tmp_path, InvalidFieldError, "it is a folder"),
        ("0" * 64, tmp_path / "out", FetchError, "no source on the bus has"),
    ):
        with pytest.raises(kind, match=reason):
            await blob.fetch_file(broker, name, out, "any")
