"""Health, addresses and figures as Prometheus reads them."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from halimede.errors import InvalidFieldError
from halimede.messages import Histogram
from halimede.observe import Health, parse_bind
from halimede.observe.http import is_loopback
from halimede.observe.metrics import BOUNDS, counter, gauge, registry, spread, times
from halimede.stats import histogram


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:8686", ("::1", 8686)),
        (":9100", ("", 9100)),
        ("localhost:65535", ("localhost", 65535)),
        ("off", None),
        ("OFF", None),
    ],
)
def test_an_address_to_serve_at(text: str, address: tuple[str, int] | None) -> None:
    assert parse_bind(text) == address


@given(st.text(max_size=30))
def test_any_other_text_is_refused_with_what_to_do(text: str) -> None:
    with contextlib.suppress(InvalidFieldError):  # any other error is a defect
        found = parse_bind(text, "--http")
        assert found is None or 0 <= found[1] < 65_536
    with pytest.raises(InvalidFieldError, match=r"--http: .*write host:port"):
        parse_bind(f"{text}@", "--http")


@pytest.mark.parametrize(
    ("host", "own"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("", False), ("0.0.0.0", False)]
)
def test_only_loopback_is_this_machines_own(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def test_what_does_not_live_is_not_ready_and_every_check_says_why() -> None:
    health = Health()
    reasons = {"model": "", "broker": "not connected"}
    health.live("model", lambda: reasons["model"])
    health.ready("broker", lambda: reasons["broker"])
    assert health.report(readiness=False) == (True, {"model": "ok"})
    assert health.report(readiness=True) == (False, {"model": "ok", "broker": "not connected"})
    reasons.update(broker="", model="stuck")
    assert health.report(readiness=True) == (False, {"model": "stuck", "broker": "ok"})


def test_a_check_that_raises_has_failed() -> None:
    health = Health()
    health.live("broken", lambda: str(1 / 0))
    assert health.report(readiness=False) == (False, {"broken": "the check failed: ZeroDivisionError"})


@given(st.lists(st.floats(min_value=0.001, max_value=100_000), max_size=60))
def test_buckets_grow_and_hold_every_value(values: list[float]) -> None:
    taken = Histogram(buckets={})
    for value in values:
        histogram.record(taken, value)
    buckets, total = spread(taken, BOUNDS, unit=1000.0)
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert counts[-1] == len(values)
    assert math.isclose(total, sum(values) / 1000, rel_tol=0.06, abs_tol=1e-5)
    for (bound, count), limit in zip(buckets, BOUNDS, strict=False):
        surely = sum(value / 1000 <= limit / 1.05 for value in values)
        perhaps = sum(value / 1000 <= limit * 1.05 for value in values)
        assert surely <= count <= perhaps, bound


def test_every_family_is_read_by_prometheus_own_parser() -> None:
    taken = Histogram(buckets={})
    histogram.record(taken, 3.0)
    made = registry(
        "test",
        lambda: [
            counter("frames", "Frames.", 7),
            gauge("depth", "Depth.", [({"queue": 'a"b\n'}, 2)]),
            times("wait_seconds", "Wait.", [({"step": "queue"}, taken, 3.0)]),
            gauge("nothing", "Nothing yet.", []),
        ],
    )
    families = {family.name: family for family in text_string_to_metric_families(generate_latest(made).decode())}
    assert families["halimede_frames"].samples[0].name == "halimede_frames_total"
    assert families["halimede_depth"].samples[0].labels == {"queue": 'a"b\n'}
    (total,) = [s for s in families["halimede_wait_seconds"].samples if s.name.endswith("_sum")]
    assert total.value == pytest.approx(0.003)
    assert families["halimede_build_info"].samples[0].labels["role"] == "test"
    assert "process_resident_memory_bytes" in families


def test_each_check_is_a_metric_that_shows_whether_it_passes() -> None:
    health = Health()
    health.live("model", lambda: "")
    health.ready("broker", lambda: "not connected")
    (states,) = health.metrics()
    assert {sample.labels["check"]: sample.value for sample in states.samples} == {"model": 1.0, "broker": 0.0}
