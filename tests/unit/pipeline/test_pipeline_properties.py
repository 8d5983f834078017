"""Whatever happens to a pipeline, in any order: each accepted sample is answered once, and nothing is kept after it.

Each example is a script of actions on one worker in simulated time. `PIPELINE_EXAMPLES=5000` tries more of them, and
not the same each time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.unit.pipeline.scripted_actions import Actions
from tests.unit.pipeline.scripted_checks import check_answers, check_cut_short, check_nothing_kept, check_timers
from tests.unit.pipeline.scripted_parts import BAD, BAD_FOR_CANARY, HARD, UNWRITABLE, ScriptedLoop
from tests.unit.pipeline.scripted_records import Setup
from tests.unit.pipeline.scripted_world import REQUESTERS, World

#: examples of each kind of worker
MORE = os.environ.get("PIPELINE_EXAMPLES")
EXAMPLES = int(MORE or settings.default.max_examples)
#: simulated seconds by which everything is over once all work again
PATIENCE_S = 400.0
#: simulated seconds after which no audit, timer or closing of a model is left
SETTLED_S = 40.0
#: in memory where there is such a place
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None

Step = tuple[Any, ...]

values = st.sampled_from((1, 2, HARD + 1, BAD, BAD_FOR_CANARY, UNWRITABLE))
shapes = st.sampled_from(("small", "small", "small", "medium", "large", "png", "colour", "huge", "garbage"))
numbers = st.integers(0, 11)


def step(name: str, **options: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(name), st.fixed_dictionaries(options))


OFFERS = (
    step("offer", number=numbers, value=values, shape=shapes, patient=st.booleans(), acked=st.booleans()),
    step("cancel_offer", number=numbers),
)
REQUESTS = (
    step(
        "request",
        number=numbers,
        value=values,
        shape=shapes,
        deadline_ms=st.sampled_from((0.0, 1.0, 15.0, 60.0, 2000.0)),
        requester=st.sampled_from((*REQUESTERS, *REQUESTERS, "nobody")),
        correlation=st.integers(0, 3),
    ),
)
BURSTS = (step("burst", count=st.integers(2, 6), value=values),)
PAUSES = step("pause", seconds=st.sampled_from((0.0, 0.001, 0.02, 0.3, 3.0, 70.0)))
DRAINS = step("drain", seconds=st.sampled_from((0.1, 2.0, 90.0)))
CHANGES = (
    step("model", mode=st.sampled_from(("good", "fails", "breaks batches"))),
    step("thread", call_s=st.sampled_from((0.0, 0.01, 0.2, 2.0)), stall_s=st.sampled_from((0.0, 0.0, 20.0))),
    step("replace"),
    step("promote"),
    step("try_out", percent=st.sampled_from((30, 60, 100)), blind=st.booleans()),
    step("withdraw"),
    step("network", fault=st.sampled_from(("cut", "blink", "restart", "refuse", "mute", "loss", "delay"))),
    step("network", fault=st.just("heal")),
)
NEXT = (
    step("next_tier", mode=st.sampled_from(("good", "late", "busy", "error", "expired", "silent", "forged", "dead"))),
    step("defect", broken=st.booleans()),
)
PEERS = (
    step("change_peers", mode=st.sampled_from(("away", "good", "late", "error", "shed", "fatal", "defect"))),
)  # fmt: skip


@st.composite
def scripts(draw: st.DrawFn, kind: str) -> tuple[Setup, list[Step], bool]:
    """Return a configuration, what happens to it, and whether it is cancelled at the end instead of drained."""
    next_tier = draw(st.booleans())
    setup = Setup(
        kind,
        next_tier=next_tier,
        short=draw(st.booleans()),
        lanes=draw(st.integers(1, 2)),
        delay_s=draw(st.sampled_from((0.0, 0.05))),
        mines_first=draw(st.booleans()),
        policy=next_tier and draw(st.booleans()),
        hard=draw(st.booleans()),
    )
    traffic = [*BURSTS]
    traffic += OFFERS if kind != "cloud" else ()
    traffic += REQUESTS if kind in {"cloud", "member"} else ()
    changes = [*CHANGES]
    changes += NEXT * 2 if next_tier else ()
    changes += PEERS * 4 if kind in {"edge-peers", "member"} else ()
    scenes = st.tuples(
        st.lists(st.one_of(changes), min_size=1, max_size=2),
        st.lists(st.one_of(traffic), min_size=2, max_size=6),
        PAUSES,
    )
    script = [
        each
        for change, some, pause in draw(st.lists(scenes, min_size=3, max_size=7))
        for each in (*change, *some, pause)
    ]
    if draw(st.booleans()):
        script += [draw(DRAINS), *draw(st.lists(st.one_of(traffic), max_size=3))]
    return setup, script, draw(st.sampled_from((False, False, False, True)))


async def play(setup: Setup, script: list[Step], *, cancelled: bool, folder: Path) -> World:
    loop = asyncio.get_running_loop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    before = asyncio.all_tasks()
    world = World(setup, folder)
    await world.start()
    try:
        await _perform(world, script)
        if cancelled:
            assert world.running
            world.running.cancel()
            await asyncio.wait([world.running])
            check_cut_short(world)
        else:
            await _settle(world)
            check_answers(world)
            check_nothing_kept(world)
        assert not world.records.problems
        assert world.bus.stats.failed_handlers == 0
    finally:
        await world.end()
    await asyncio.sleep(1)
    assert asyncio.all_tasks() == before
    assert not problems, problems
    return world


async def _perform(world: World, script: list[Step]) -> None:
    actions = Actions(world)
    for name, options in script:
        if name == "pause":
            await asyncio.sleep(options["seconds"])
        else:
            await getattr(actions, name)(**options)
        check_timers(world)
        assert world.running
        assert not world.running.done(), world.running.exception()


async def _settle(world: World) -> None:
    """Let everything work again; then all that waits is accepted, and all that was accepted is answered."""
    world.heal()
    offers = [offer.task for offer in world.records.offers if offer.task]
    if world.drained:  # nothing is accepted any more
        await asyncio.sleep(SETTLED_S)
        for task in offers:
            task.cancel()
    if offers:
        _, pending = await asyncio.wait(offers, timeout=PATIENCE_S)
        assert not pending, "a source waits for ever"
    assert await world.worker.drain(PATIENCE_S), "not drained"
    if world.requests:
        await world.pipeline.drain(PATIENCE_S)
        assert await world.requests.responder.outbox.drain(PATIENCE_S)
    await asyncio.sleep(SETTLED_S)  # audits end, models close, timers run out


def run(setup: Setup, script: list[Step], *, cancelled: bool = False) -> World:
    """Play a script, and return the world after it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, asyncio.Runner(loop_factory=ScriptedLoop) as runner:
        return runner.run(play(setup, script, cancelled=cancelled, folder=Path(folder)))


@pytest.mark.parametrize("kind", ["edge", "edge-peers", "member", "cloud"])
def test_whatever_happens_each_accepted_sample_is_answered_once_and_nothing_is_kept(kind: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=MORE is None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if MORE else (Phase.generate,),  # shrinking takes minutes
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(scripts(kind))
    def whatever(scripted: tuple[Setup, list[Step], bool]) -> None:
        setup, script, cancelled = scripted
        run(setup, script, cancelled=cancelled)

    whatever()


# --- scripts that once failed -------------------------------------------------------------------------------------


def offers(*numbers: int, value: int = 1, pause_s: float = 0.0) -> list[Step]:
    one = {"value": value, "shape": "small", "patient": True, "acked": True}
    steps = [[("offer", {"number": number, **one}), ("pause", {"seconds": pause_s})] for number in numbers]
    return [each for pair in steps for each in pair]


def requests(*numbers: int) -> list[Step]:
    one = {"value": 1, "shape": "small", "deadline_ms": 0.0, "requester": "e0", "correlation": 1}
    return [("request", {"number": number, **one}) for number in numbers]


@pytest.mark.parametrize("change", ["replace", "withdraw"])
@pytest.mark.parametrize("first", ["canary", "current"])
def test_a_model_that_is_replaced_before_its_part_of_a_batch_still_answers_it(first: str, change: str) -> None:
    of_canary = [number for number in range(1, 20) if zlib.crc32(number.to_bytes(16)) % 100 < 50]
    of_current = [number for number in range(1, 20) if number not in of_canary]
    pair = (of_canary[0], of_current[0]) if first == "canary" else (of_current[0], of_canary[0])
    script = [
        *requests(0),
        ("pause", {"seconds": 0.3}),
        ("try_out", {"percent": 50, "blind": False}),
        ("thread", {"call_s": 0.0, "stall_s": 0.2}),
        *requests(*pair),
        ("pause", {"seconds": 0.1}),
        (change, {}),
        ("pause", {"seconds": 3.0}),
    ]
    run(Setup("cloud"), script)


def test_a_source_that_is_cancelled_after_the_end_gives_everything_back() -> None:
    run(Setup("edge"), [("drain", {"seconds": 0.1}), *offers(1, 2)])


def test_an_audit_that_nobody_makes_any_more_is_not_counted_as_under_way() -> None:
    mined = {"next_tier": True, "policy": True, "mines_first": True}
    frames = offers(*range(8), pause_s=0.3)
    run(Setup("edge", hard=False, **mined), [("model", {"mode": "fails"}), *frames])
    run(Setup("edge-peers", **mined), [("change_peers", {"mode": "fatal"}), *frames])


def test_a_next_tier_that_is_busy_is_not_sent_those_that_wait_over_and_over() -> None:
    script = [
        ("next_tier", {"mode": "busy"}),
        *offers(1, 2, 3, value=HARD + 1),
        ("burst", {"count": 4, "value": HARD + 1}),
    ]
    world = run(Setup("edge", next_tier=True), [*script, ("pause", {"seconds": 3.0})])
    assert world.next.requests < 20
