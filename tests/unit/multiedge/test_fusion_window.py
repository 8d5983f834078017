"""Which findings belong together, and how long they wait: times of capture say the one, monotonic time the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.messages import Prediction
from halimede.multiedge import Finding
from halimede.multiedge.fusion.time_window import MAX_CAMERAS, MAX_KEYS, Instant, Window

MS = 1_000_000
NOON = 1_795_262_400_000 * MS
CAMERAS = ("left", "middle", "right")


def finding(camera: str, ms: float, sequence: int = 0, key: bytes = b"") -> Finding:
    captured = NOON + round(ms * MS)
    key = key or f"{camera}/{ms}/{sequence}".encode()
    return Finding(key, camera, f"w-{camera}", "edge0", sequence, captured, Prediction(label="x"))


def window(*cameras: str, limit: int = 8) -> Window:
    return Window(spread_ns=50 * MS, wait_s=0.5, absent_s=5.0, limit=limit, cameras=cameras or CAMERAS)


def put(to: Window, camera: str, ms: float, now: float = 0.0, *, sequence: int = 0, key: bytes = b"") -> str:
    return to.add(finding(camera, ms, sequence, key), camera, 0, now)[0]


def times(instant: Instant) -> dict[str, float]:
    return {camera: (entry.name[1] - NOON) / MS for camera, entry in instant.entries.items()}


def closed(of: Window, now: float) -> list[dict[str, float]]:
    return [times(instant) for instant in of.ready(now)]


def test_an_instant_is_complete_when_all_cameras_are_there():
    of = window()
    put(of, "left", 0)
    put(of, "middle", 20)
    assert closed(of, 0.1) == []
    put(of, "right", 50, now=0.1)
    assert closed(of, 0.1) == [{"left": 0, "middle": 20, "right": 50}]
    assert len(of) == 0
    assert of.next_due() is None


def test_what_does_not_come_is_waited_for_until_the_time_is_over():
    of = window()
    put(of, "left", 0, now=10.0)
    assert of.next_due() == 10.5
    assert closed(of, 10.49) == []
    (instant,) = of.ready(10.5)
    assert of.missing_cameras(instant) == ["middle", "right"]


@pytest.mark.parametrize(
    ("cameras", "pictures", "instants"),
    [
        (("left", "right"), [("left", 0), ("right", 50.001)], [{"left": 0}, {"right": 50.001}]),
        # the right one is near enough to the middle one, not to the left one
        (CAMERAS, [("middle", 0), ("left", -30), ("right", 30)], [{"middle": 0, "left": -30}, {"right": 30}]),
        (
            ("left", "right"),
            [("left", 0), ("left", 40), ("left", 80), ("right", 41), ("right", 1), ("right", 79)],
            [{"left": 0, "right": 1}, {"left": 40, "right": 41}, {"left": 80, "right": 79}],
        ),
        (("left",), [("left", 0), ("left", 1)], [{"left": 0}, {"left": 1}]),
    ],
    ids=[
        "no pictures further apart than the window",
        "no two further apart than the window",
        "the nearest that has nothing of the camera",
        "never two pictures of one camera",
    ],
)
def test_which_pictures_are_one_instant(cameras, pictures, instants):
    of = window(*cameras)
    for sequence, (camera, ms) in enumerate(pictures):
        put(of, camera, ms, sequence=sequence)
    assert closed(of, 1.0) == instants


def test_a_camera_that_is_silent_for_long_is_not_waited_for_until_it_is_back():
    of = window("left", "right")
    put(of, "right", 0)
    put(of, "left", 0)
    assert len(closed(of, 0.0)) == 1
    put(of, "left", 5000, now=5.0)
    assert closed(of, 5.0) == []
    put(of, "left", 5100, now=5.1)
    (first, second) = of.ready(5.1)
    assert of.missing_cameras(first) == of.missing_cameras(second) == ["right"]
    put(of, "right", 9000, now=9.0)
    put(of, "left", 9100, now=9.1)
    assert closed(of, 9.1) == []


def test_a_camera_of_which_later_pictures_come_has_none_of_this_instant():
    of = window("fast", "slow")
    put(of, "slow", 0)
    put(of, "fast", 100)
    assert closed(of, 0.0) == []
    put(of, "fast", 130)
    assert closed(of, 0.0) == [{"slow": 0}]


def test_a_late_finding_is_told_its_instant():
    of = window("left", "right")
    put(of, "left", 0)
    assert len(closed(of, 0.5)) == 1
    place, instant = of.add(finding("right", 10), "right", 0, 0.6)
    assert place == "late"
    assert instant is not None
    assert times(instant) == {"left": 0, "right": 10}
    assert len(of) == 0


def test_a_finding_that_comes_again_is_known_open_and_closed():
    of = window("left", "right")
    assert put(of, "left", 0, key=b"a") == "joined"
    assert put(of, "left", 0, key=b"b") == "repeated"
    assert put(of, "left", 0, key=b"a") == "repeated"
    (instant,) = of.ready(0.5)
    assert instant.entries["left"].keys == [b"a", b"b"]
    assert put(of, "left", 0, key=b"c") == "repeated"
    assert instant.entries["left"].keys == [b"a", b"b"]


def test_a_clock_that_is_ahead_is_set_right():
    of = window("left", "right")
    of.add(finding("left", 0), "left", 0, 0.0)
    of.add(finding("right", 3_600_010), "right", 3_600_000 * MS, 0.0)
    (instant,) = of.ready(0.0)
    assert instant.middle_ns == NOON + 5 * MS


def test_everything_is_bounded():
    of = window("left", "right")
    ended = 0
    for i in range(100):
        put(of, "left", 1000 * i, sequence=i)
        ended += len(closed(of, 0.0))
        assert len(of) <= 8
    assert ended == 92
    for i in range(MAX_CAMERAS + 10):
        place = put(of, f"cam{i}", 1e6, now=0.0)
        assert place == ("joined" if i < MAX_CAMERAS - 2 else "refused")
    assert [put(of, "left", 99_000, sequence=99, key=bytes([i])) for i in range(MAX_KEYS)].count("refused") == 1
    list(of.ready(100.0))
    assert len(of._closed) <= 8
    assert len(of._by_name) <= 8 * MAX_CAMERAS


def test_a_camera_nobody_has_listed_is_forgotten_when_it_is_gone():
    of = window("left")
    put(of, "guest", 0)
    (instant,) = of.ready(0.5)
    assert of.missing_cameras(instant) == ["left"]
    put(of, "left", 6000, now=6.0)
    (instant,) = of.ready(6.0)
    assert of.missing_cameras(instant) == []


events = st.lists(
    st.tuples(st.sampled_from(CAMERAS), st.integers(0, 400), st.integers(0, 3), st.floats(0, 0.2)), max_size=60
)


@given(events)
def test_each_finding_that_joins_is_in_one_instant_and_each_instant_ends_in_time(given_):
    of, now, out = window(limit=4), 0.0, []

    def ended(at: float) -> Iterator[Instant]:
        for instant in of.ready(at):
            assert instant.latest - instant.earliest <= 50 * MS
            yield instant

    put_in = []
    for camera, ms, sequence, pause in given_:
        now += pause
        if put(of, camera, ms, now, sequence=sequence) == "joined":
            put_in.append((camera, ms, sequence))
        out += [(c, t, e.name[2]) for i in ended(now) for c, e in i.entries.items() for t in [times(i)[c]]]
        assert len(of) <= 4
        due = of.next_due()
        assert due is None or due > now
    out += [(c, t, e.name[2]) for i in ended(now + 0.5) for c, e in i.entries.items() for t in [times(i)[c]]]
    assert len(of) == 0
    assert sorted(out) == sorted(put_in)
