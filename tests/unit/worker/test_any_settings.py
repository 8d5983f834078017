"""The environment, the ledger and the folder's memory may hold anything: a worker starts, or says which is wrong."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import codec, mining, topics
from halimede.errors import InvalidFieldError
from halimede.frames.payloads import ID_BYTES
from halimede.messages import Count, WorkerInfo
from halimede.stats.ledger import HEADER, MAGIC, SIZE, SLOTS, Ledger
from halimede.worker.settings import Role, read
from halimede.worker.sources.folder import SubmittedIds
from tests.anything import attempt, json_values, spoiled, texts
from tests.unit.worker.test_settings import EDGE

env_texts = texts.map(lambda text: text.replace("\0", "")) | json_values.map(json.dumps)
UID = "u-1"
OTHERS = ["SOURCE_LOOP", "MODEL_TIMEOUT_S", "ESTIMATOR", "UPLOAD_ENCODING", "UPLOAD_MAX_BYTES"]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def started(role: Role, environ: dict[str, str]) -> None:
    settings, refused = attempt(read, role, environ, refusal=InvalidFieldError)
    if settings is None:
        assert refused.field.split(".")[0].split("[")[0] in {*EDGE, *OTHERS}
        return
    assert 0 < settings.period_s <= 3600
    assert 0 <= settings.grace_s <= 3600
    assert 0 < settings.deadline_s <= 600
    with contextlib.suppress(InvalidFieldError):
        settings.client_id("intake")  # three names in one may be too long: then it is refused by its length
    with contextlib.suppress(InvalidFieldError):
        mining.create(settings.hem_name, settings.hem_parameters)


@pytest.mark.parametrize("role", ["edge", "cloud"])
@given(changes=st.dictionaries(st.sampled_from([*EDGE, *OTHERS]), env_texts))
def test_any_environment_is_read_or_refused_by_variable(role: Role, changes: dict[str, str]) -> None:
    started(role, {**EDGE, **changes})


@pytest.mark.parametrize("name", ["MODEL_SPEC", "HEM_PARAMETERS", "SOURCE"])
@given(data=st.data())
def test_a_spoiled_json_variable_is_read_or_refused(name: str, data: st.DataObject) -> None:
    started("edge", {**EDGE, name: json.dumps(data.draw(spoiled(json.loads(EDGE[name]))))})


@st.composite
def ledgers(draw: st.DrawFn) -> bytes:
    """Return a ledger of the right form with any counts, or one with a few bytes of it changed."""
    started_at = draw(st.integers(0, 2**64 - 1))
    counts = draw(st.lists(st.integers(0, 2**64 - 1), min_size=SLOTS, max_size=SLOTS))
    words = b"".join(count.to_bytes(8, "little") for count in counts)
    whole = bytearray((HEADER.pack(MAGIC, UID.encode(), started_at) + words).ljust(SIZE, b"\0"))
    for _ in range(draw(st.integers(0, 3))):
        whole[draw(st.integers(0, SIZE - 1))] = draw(st.integers(0, 255))
    return bytes(whole)


@given(content=st.binary(max_size=300) | ledgers())
def test_any_ledger_is_gone_on_with_or_set_aside(folder: Path, content: bytes) -> None:
    (folder / "ledger").write_bytes(content)
    with Ledger(folder, UID) as ledger:
        before = ledger.info()
        ledger.add(Count.ACCEPTED)
        ledger.add(Count.ANSWERED)
        assert ledger.info().inference_number == before.inference_number + 1
        assert ledger.open == 0
        _in_bounds(ledger)
    with Ledger(folder, UID) as ledger:
        assert ledger.info().inference_number == before.inference_number + 1


def _in_bounds(ledger: Ledger) -> None:
    """What is reported can be read by whoever gets it."""
    info = WorkerInfo(name="w", namespace="n", owner_name="o", status="running", task_info=ledger.info())
    assert codec.decode(topics.WORKER_INFO, codec.encode(topics.WORKER_INFO, info)) == info


@given(content=st.binary(max_size=100), added=st.lists(st.binary(min_size=ID_BYTES, max_size=ID_BYTES), max_size=3))
def test_any_memory_of_a_folder_is_gone_on_with(folder: Path, content: bytes, added: list[bytes]) -> None:
    path = folder / "done"
    path.write_bytes(content)
    known = SubmittedIds(path).read()
    for id_ in added:
        SubmittedIds(path).add(id_)
    assert SubmittedIds(path).read() == known | set(added)
    assert all(len(id_) == ID_BYTES for id_ in known)
