"""The model of a broker's processor time by the size of a frame."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from bench.broker_capacity import (
    FITTED,
    LARGE,
    PAGE,
    TOLERANCE,
    Model,
    Row,
    bytes_of,
    fit,
    misses,
    model_of_page,
    table,
)
from halimede.errors import HalimedeError

#: microseconds by bytes, as docs/scale.md has them in frames a second
MOSQUITTO = {4_000: 21.2, 16_000: 25.0, 60_000: 35.7, 150_000: 94.9, 400_000: 199.7, 1_000_000: 449.2}
EMQX = {4_000: 49.5, 16_000: 78.1, 60_000: 187.6, 150_000: 435.2, 400_000: 1007.0, 1_000_000: 2272.7}


@pytest.mark.parametrize("times", [MOSQUITTO, EMQX], ids=["mosquitto", "emqx"])
def test_the_model_has_the_times_of_half_of_the_sizes_and_is_near_the_others(times: dict[int, float]) -> None:
    model = fit(times)
    assert [model.time_us(size) for size in FITTED] == pytest.approx([times[size] for size in FITTED])
    assert all(abs(miss) < TOLERANCE for miss in misses(model, times).values())


def test_each_kb_of_a_large_frame_takes_another_time() -> None:
    model = Model(20, 0.25, 0.25)
    assert model.time_us(100_000) == 45
    assert model.time_us(LARGE) == pytest.approx(20 + 0.25 * LARGE / 1000)
    assert model.time_us(200_000) == 120
    assert str(model) == "20 + 0.25 x KB; over 131 KB: 20 + 0.5 x KB"


def test_the_page_has_a_model_of_each_measured_broker_which_is_near_the_times_it_was_fitted_on() -> None:
    page = PAGE.read_text()
    for broker, times in (("mosquitto 2.0.11", MOSQUITTO), ("emqx 5.8.6", EMQX)):
        model = model_of_page(page, broker)
        assert [model.time_us(size) for size in FITTED] == pytest.approx([times[size] for size in FITTED], rel=0.03)
    with pytest.raises(HalimedeError, match="no model of flashmq 1"):
        model_of_page(page, "flashmq 1")


def test_a_table_compares_each_model_with_the_sizes_that_it_was_not_fitted_on() -> None:
    times = {4_000: 21.0, 10_000: 22.5, 60_000: 35.0, 400_000: 220.0}
    rows = table([Row("now", times, Model(20, 0.25, 0.25)), Row("page", times, Model(20, 0.7, 0))]).splitlines()
    assert rows[0].endswith("| model, us | off at 10 KB |")
    assert [row.rsplit("|", 2)[1].strip() for row in rows[2:]] == ["+0 %", "+20 %"]


@pytest.mark.parametrize("text", ["", "a", "10,nan", "inf", "0", "-1", "10,60", "20000"])
def test_sizes_that_cannot_be_compared_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="give numbers of KB up to 16000"):
        bytes_of(text)
    assert bytes_of("10,0.5") == [10_000, 500]
