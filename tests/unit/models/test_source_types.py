"""How fast something comes."""

from __future__ import annotations

from halimede.models import TransferRate


def test_speed_is_that_of_the_last_seconds() -> None:
    at = [0.0]
    speed = TransferRate(lambda: at[0])
    assert speed.update(5_000_000) == 0.0  # was here before
    for second in range(1, 21):
        at[0] = float(second)
        rate = speed.update(5_000_000 + second * 1000)
    assert rate == 1000.0
    for second in range(21, 41):
        at[0] = float(second)
        rate = speed.update(5_020_000 + (second - 20) * 50)
    assert rate == 50.0


def test_a_download_that_begins_anew_has_no_negative_speed() -> None:
    at = [0.0]
    speed = TransferRate(lambda: at[0])
    speed.update(1000)
    at[0] = 1.0
    assert speed.update(2000) == 1000.0
    at[0] = 2.0
    assert speed.update(0) == 0.0
    at[0] = 3.0
    assert speed.update(10) == 10.0
