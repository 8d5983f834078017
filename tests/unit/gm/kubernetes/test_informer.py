"""An informer in simulated time: whatever becomes of its watches, it ends up with what there is."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from services.gm.cluster.kubernetes.api_paths import DEPLOYMENTS, Object
from services.gm.cluster.kubernetes.client import ForbiddenError, GoneError, NotFoundError, UnavailableError
from services.gm.cluster.kubernetes.informer import LAST_PAUSE, CachedObject, Informer
from tests.simulated import eventually, simulate
from tests.unit.gm.kubernetes.shelf import Shelf

pytestmark = pytest.mark.simulated


class Heard:
    """What the handler was told, as text: ``+name``, ``-name``, ``~name``."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, old: CachedObject[Object] | None, new: CachedObject[Object] | None, ours: bool) -> None:
        of = new or old
        sign = "+" if old is None else "-" if new is None else "~"
        self.told.append(f"{sign}{of.name}{'!' if ours else ''}")


@contextlib.asynccontextmanager
async def informer(shelf: Shelf, heard: Heard | None = None, *, synced: bool = True) -> AsyncIterator[Informer[Object]]:
    made = Informer(shelf, DEPLOYMENTS, lambda body: body, heard or Heard())
    task = asyncio.create_task(made.run())
    try:
        if synced:
            await made.synced.wait()
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def same(made: Informer[Object], shelf: Shelf) -> bool:
    there = {name: body["metadata"]["resourceVersion"] for (_, name), body in shelf.objects.items()}
    return {item.name: item.version for item in made} == there


@pytest.fixture
def heard() -> Heard:
    return Heard()


async def test_everything_is_listed_page_by_page_then_followed(shelf: Shelf, heard: Heard) -> None:
    for name in ("a", "b", "c"):
        shelf.put(name)
    async with informer(shelf, heard) as made:
        assert sorted(heard.told) == ["+a", "+b", "+c"]
        heard.told.clear()
        shelf.put("d")
        shelf.put("a", spec={"x": 1})
        shelf.drop("b")
        await eventually(lambda: same(made, shelf))
        assert heard.told == ["+d", "~a", "-b"]
        assert (made.get("default", "a").value["kind"], made.lists) == ("Deployment", 1)


async def test_a_watch_that_ends_quietly_goes_on_where_it_was(shelf: Shelf) -> None:
    async with informer(shelf) as made:
        shelf.put("a")
        await asyncio.sleep(600)
        assert len([call for call in shelf.calls if call.startswith("watch")]) < 15
        shelf.put("b")
        await eventually(lambda: same(made, shelf), timeout_s=1.0)
        assert made.lists == 1
        assert not made.trouble


async def test_a_watch_that_works_again_is_no_trouble_even_if_nothing_happens(shelf: Shelf) -> None:
    async with informer(shelf) as made:
        shelf.errors = [UnavailableError("watch", 500, "broken")] * 4
        await eventually(lambda: made.trouble, timeout_s=80.0)
        await eventually(lambda: not made.trouble, timeout_s=20.0)
        assert made.lists == 1


async def test_watches_that_end_at_once_are_not_begun_again_at_once(shelf: Shelf) -> None:
    shelf.ends = True
    async with informer(shelf) as made:
        await asyncio.sleep(120)
        assert len(shelf.calls) < 40
        shelf.ends = False
        shelf.put("a")
        await eventually(lambda: same(made, shelf), timeout_s=LAST_PAUSE + 1)


async def test_a_version_that_is_too_old_means_a_new_list_and_only_differences_are_told(
    shelf: Shelf, heard: Heard
) -> None:
    for name in ("kept", "edited", "dropped", "replaced"):
        shelf.put(name)
    async with informer(shelf, heard) as made:
        heard.told.clear()
        shelf.errors.append(UnavailableError("watch", 0, "cut"))
        shelf.down = True
        await asyncio.sleep(90)
        shelf.put("edited", spec={"x": 1})
        for name in ("dropped", "replaced"):
            shelf.drop(name)
        shelf.put("replaced")
        shelf.put("new")
        shelf.forget()
        shelf.log.clear()
        shelf.down, shelf.errors = False, []
        await eventually(lambda: same(made, shelf), timeout_s=LAST_PAUSE + 1)
        assert sorted(heard.told) == sorted(["~edited", "-dropped", "-replaced", "+replaced", "+new"])
        assert made.lists == 2


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("list", 500, "etcd is away"),
        UnavailableError("list", 429, "later", 3.0),
        ForbiddenError("list", 403, "no right"),
        NotFoundError("list", 404, "no such kind"),
        GoneError("list", 410, "the page is too old"),
    ],
)
async def test_a_list_that_fails_empties_nothing_and_is_tried_again_with_pauses(
    shelf: Shelf, heard: Heard, error: Exception
) -> None:
    shelf.put("a")
    async with informer(shelf, heard) as made:
        shelf.put("b")
        shelf.forget()
        shelf.news.set()
        shelf.errors = [error] * 5  # type: ignore[list-item]
        before = len(shelf.calls)
        await asyncio.sleep(1.0)
        assert made.trouble
        assert made.get("default", "a")
        assert len(shelf.calls) - before < 6
        await eventually(lambda: same(made, shelf), timeout_s=60.0)
        assert not made.trouble
        assert heard.told == ["+a", "+b"]


async def test_the_pauses_grow_to_ten_seconds_and_no_further(shelf: Shelf) -> None:
    shelf.down = True
    async with informer(shelf, synced=False) as made:
        await asyncio.sleep(3600)
        assert 360 <= len(shelf.calls) <= 760
        shelf.down = False
        await eventually(made.synced.is_set, timeout_s=LAST_PAUSE + 1)


async def test_what_the_server_asks_us_to_wait_is_waited(shelf: Shelf) -> None:
    shelf.errors = [UnavailableError("list", 429, "later", 25.0)]
    async with informer(shelf, synced=False) as made:
        await asyncio.sleep(24)
        assert shelf.calls == ["list"]
        await eventually(made.synced.is_set, timeout_s=2.0)


async def test_our_own_write_is_seen_at_once_and_its_event_is_no_news(shelf: Shelf, heard: Heard) -> None:
    shelf.put("a")
    async with informer(shelf, heard) as made:
        before = made.get("default", "a").version
        answer = shelf.put("a", spec={"x": 1})
        made.learn(answer, before)
        assert same(made, shelf)
        made.learn(shelf.put("b"), "")
        await asyncio.sleep(1)
        assert heard.told == ["+a", "~a!", "+b!"]


async def test_the_answer_to_a_write_does_not_undo_what_came_after_it(shelf: Shelf) -> None:
    shelf.put("a")
    async with informer(shelf) as made:
        before = made.get("default", "a").version
        answer = shelf.put("a", spec={"x": 1})
        shelf.put("a", spec={"x": 2})
        created = shelf.put("b")
        shelf.drop("b")
        await asyncio.sleep(1)  # the watch is faster than the answers
        made.learn(answer, before)
        made.learn(created, "")
        assert same(made, shelf)


async def test_what_is_known_to_be_gone_does_not_come_back_by_a_watch_that_lags(shelf: Shelf, heard: Heard) -> None:
    shelf.put("a")
    async with informer(shelf, heard) as made:
        item = made.get("default", "a")
        shelf.put("a", spec={"x": 1})
        made.mark_deleted("default", "a", item.uid)
        await asyncio.sleep(1)
        assert heard.told == ["+a", "-a"]
        shelf.drop("a")
        shelf.put("a")
        await asyncio.sleep(1)
        assert heard.told == ["+a", "-a", "+a"], "a new one of that name has a uid of its own"


async def test_what_is_not_selected_any_more_may_come_back_with_its_uid(shelf: Shelf, heard: Heard) -> None:
    shelf.put("a")
    async with informer(shelf, heard) as made:
        body = shelf.objects["default", "a"]
        shelf.drop("a")
        await asyncio.sleep(1)
        assert made.get("default", "a") is None
        shelf._keep("ADDED", body)
        await eventually(lambda: same(made, shelf))
        assert heard.told == ["+a", "-a", "+a"]


@pytest.mark.parametrize("seed", range(20))
def test_after_any_faults_it_holds_what_there_is_and_has_told_how_it_came_to_that(seed: int) -> None:
    chance = random.Random(seed)

    async def run() -> None:
        shelf, told = Shelf(), {}

        def changed(old: CachedObject[Object] | None, new: CachedObject[Object] | None, ours: bool) -> None:
            if old is not None:
                assert told.pop(old.name) == old.version
                assert new is None or new.uid == old.uid
            if new is not None:
                assert new.name not in told
                told[new.name] = new.version

        async with informer(shelf, changed, synced=False) as made:  # type: ignore[arg-type]
            for _ in range(300):
                name = f"n{chance.randrange(5)}"
                there = ("default", name) in shelf.objects
                match chance.randrange(8):
                    case 0 | 1 | 2:
                        shelf.put(name, spec={"x": chance.random()})
                    case 3 if there:
                        shelf.drop(name)
                    case 4 if there and (seen := made.get("default", name)):
                        made.learn(shelf.put(name, spec={"x": chance.random()}), seen.version)
                    case 5:
                        shelf.forget()
                    case 6:
                        shelf.errors.append(UnavailableError("x", 500, "broken"))
                    case 7:
                        shelf.breaks = chance.random() < 0.5
                await asyncio.sleep(chance.choice([0.0, 0.0, 0.5, 20.0]))
            shelf.errors, shelf.breaks = [], False
            await eventually(lambda: same(made, shelf), timeout_s=30.0)
            assert told == {item.name: item.version for item in made}

    simulate(run())
