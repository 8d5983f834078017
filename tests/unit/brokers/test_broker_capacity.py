"""The model of a broker's processor time by the size of a frame."""

from __future__ import annotations

import pytest

from bench.broker_capacity import FITTED, LARGE, TOLERANCE, Model, fit, misses

#: microseconds by bytes, as docs/scale.md has them in frames a second
MOSQUITTO = {4_000: 21.2, 16_000: 25.0, 60_000: 35.7, 150_000: 94.9, 400_000: 199.7, 1_000_000: 449.2}
EMQX = {4_000: 49.5, 16_000: 78.1, 60_000: 187.6, 150_000: 435.2, 400_000: 1007.0, 1_000_000: 2272.7}


@pytest.mark.parametrize("times", [MOSQUITTO, EMQX], ids=["mosquitto", "emqx"])
def test_the_model_has_the_times_of_half_of_the_sizes_and_is_near_the_others(times: dict[int, float]) -> None:
    model = fit(times)
    assert [model.time_us(size) for size in FITTED] == pytest.approx([times[size] for size in FITTED])
    assert all(abs(miss) < TOLERANCE for miss in misses(times).values())


def test_each_kb_of_a_large_frame_takes_another_time() -> None:
    model = Model(20, 0.25, 0.25)
    assert model.time_us(100_000) == 45
    assert model.time_us(LARGE) == pytest.approx(20 + 0.25 * LARGE / 1000)
    assert model.time_us(200_000) == 120
    assert str(model) == "20 + 0.25 x KB; over 131 KB: 20 + 0.5 x KB"
