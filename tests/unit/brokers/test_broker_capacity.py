"""The model of a broker's processor time by the size of a frame."""

from __future__ import annotations

import pytest

from bench.broker_capacity import FITTED, PAGE, TOLERANCE, fit, misses, model_of_page
from halimede.errors import HalimedeError

#: microseconds by bytes, as docs/scale.md has them in frames a second
MOSQUITTO = {4_000: 21.2, 16_000: 25.0, 60_000: 35.7, 150_000: 94.9, 400_000: 199.7, 1_000_000: 449.2}
EMQX = {4_000: 49.5, 16_000: 78.1, 60_000: 187.6, 150_000: 435.2, 400_000: 1007.0, 1_000_000: 2272.7}


@pytest.mark.parametrize("times", [MOSQUITTO, EMQX], ids=["mosquitto", "emqx"])
def test_the_model_has_the_times_of_half_of_the_sizes_and_is_near_the_others(times: dict[int, float]) -> None:
    model = fit(times)
    assert [model.time_us(size) for size in FITTED] == pytest.approx([times[size] for size in FITTED])
    assert all(abs(miss) < TOLERANCE for miss in misses(model, times).values())


def test_the_page_has_a_model_of_each_measured_broker_which_is_near_the_times_it_was_fitted_on() -> None:
    page = PAGE.read_text()
    for broker, times in (("mosquitto 2.0.11", MOSQUITTO), ("emqx 5.8.6", EMQX)):
        model = model_of_page(page, broker)
        assert [model.time_us(size) for size in FITTED] == pytest.approx([times[size] for size in FITTED], rel=0.03)
    with pytest.raises(HalimedeError, match="no model of flashmq 1"):
        model_of_page(page, "flashmq 1")
