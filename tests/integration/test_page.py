"""The web page: what it is sent, who may see it, and what a real browser makes of hostile words in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from halimede import topics
from halimede.contract.examples import EXAMPLES
from halimede.messages import Box, CameraStatus, HardSample, TaskInfo
from halimede.mining.scores import HARDEST
from halimede.names import Key
from services.gm.dashboard.feed import MOST_WATCHERS
from services.gm.dashboard.routes import DashboardRoutes
from services.gm.occupancy_topics import MAX_PAGE_EVENTS
from tests.browser import Tab, browser
from tests.digits import picture
from tests.integration.gm_world import SERVICES, World, model, service, world
from tests.ports import serve_app
from tests.waiting import eventually, patience

BUILD = Path(__file__).parents[2] / "build"
HELMET = Key(SERVICES, "default", "helmet")
#: what it would take to run: each sets a flag that the test looks for
SCRIPT = "<img src=x onerror=\"window.broken='{0}'\"><script>window.broken='{0}'</script>"


def glimpse(number: int, **fields: Any) -> HardSample:
    told: dict[str, Any] = {"camera": "cam0", "worker": "helmet-edge-edge0", "node": "edge0", "by": "cloud"}
    told |= {"edge_label": "3", "edge_score": 0.4, "label": "5", "score": 0.9, "data": picture(number % 256, 16)}
    return HardSample(id=number.to_bytes(16), **(told | fields))


@contextlib.asynccontextmanager
async def served(w: World, token: str = "") -> AsyncIterator[str]:
    application = web.Application()
    DashboardRoutes(w.manager.feed, token).add_to(application)
    async with serve_app(application) as address:
        yield f"http://{address}"


@contextlib.asynccontextmanager
async def opened(w: World, until: str, size: tuple[int, int] | None = None) -> AsyncIterator[Tab]:
    """Open the page in a browser, and wait until it shows what this script finds."""
    async with served(w) as url, browser(w.store.parent / "profile") as tab:
        if size:
            await tab.resize(*size, mobile=size[0] < 600)
        await tab.open(url)
        await tab.until(until)
        yield tab


async def read(lines: aiohttp.StreamReader, section: str) -> Any:
    """Return the next content of a section of the stream."""
    async with asyncio.timeout(patience(20)):
        while True:
            if (await lines.readline()).decode().strip() == f"event: {section}":
                return json.loads((await lines.readline()).decode().removeprefix("data: "))


async def test_a_page_is_sent_what_gm_knows_and_then_only_what_changes(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), w.node("edge0") as edge, w.node("cloud0"), served(w) as url:
        await w.apply(model("small"), model("big"), service())
        edge.counts[HELMET] = TaskInfo(inference_number=7, hard_example_number=2)
        await w.reaches("Running")
        await w.manager._bus.publish(topics.HARD_SAMPLE.at(ns="default", service="helmet"), glimpse(1), qos=0)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/stream") as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            manager = await read(answer.content, "manager")
            assert (manager["online"], manager["nodes"], manager["services"], manager["broker"]) == (2, 2, 1, True)
            (helmet,) = await read(answer.content, "services")
            assert (helmet["name"], helmet["phase"], helmet["metrics"]["inferenceNumber"]) == ("helmet", "Running", "7")
            assert [node["name"] for node in await read(answer.content, "nodes")] == ["cloud0", "edge0"]
            events = await read(answer.content, "events")
            assert "NodeOnline" in {event["reason"] for event in events}
        await eventually(lambda: w.manager.feed.picture(f"{1:032x}") is not None, 20)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/samples/{1:032x}") as answer:
            assert answer.content_type == "image/png"
            assert await answer.read() == picture(1, 16)


async def test_only_the_last_samples_are_kept_and_what_is_no_picture_is_not(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        topic = topics.HARD_SAMPLE.at(ns="default", service="helmet")
        for number in range(1, 41):
            await w.operator.publish(topic, glimpse(number))
        await w.operator.publish(topic, glimpse(41, data=b"<svg onload=alert(1)>"))
        await eventually(lambda: w.manager.feed.picture(f"{40:032x}") is not None, 20)
        kept = [sample["id"] for sample in w.manager.feed.sections()["samples"]]
        assert len(kept) <= 24
        assert kept[0] == f"{40:032x}"
        assert w.manager.feed.picture(f"{41:032x}") is None


async def test_the_last_occupancy_events_are_shown_among_the_events(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        topic = topics.OCCUPANCY.at(ns="default", service="helmet", camera="cam0")
        entered = EXAMPLES[topics.OCCUPANCY.id]
        for number in range(2 * MAX_PAGE_EVENTS):
            event = msgspec.structs.replace(entered, id=f"{number:032x}", count=number, label=SCRIPT * 10)
            await w.operator.publish(topic, event)

        def rows() -> list[dict[str, Any]]:
            return [row for row in w.manager.feed.sections()["events"] if row["reason"] == "Entered"]

        await eventually(lambda: rows() and f": {2 * MAX_PAGE_EVENTS - 1}, before 0" in rows()[0]["message"], 20)
        assert len(rows()) == MAX_PAGE_EVENTS
        assert {row["about"] for row in rows()} == {str(HELMET)}
        assert max(len(row["message"]) for row in rows()) < 100


async def test_every_answer_forbids_scripts_of_others_and_frames(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), served(w) as url, aiohttp.ClientSession() as session:
        for path in ("/", "/page.js", "/boxes.js", "/charts.js", "/page.css", "/icon.svg", "/samples/" + "0" * 32):
            async with session.get(url + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        async with session.post(url + "/") as answer:
            assert answer.status == 405


async def test_with_a_token_nothing_is_shown_without_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm(), served(w, "s3cret") as url, aiohttp.ClientSession() as session:
        for path in ("/", "/stream", "/page.js", "/samples/" + "0" * 32, "/?token=guess", "/?token=%ff"):
            async with session.get(url + path) as answer:
                assert answer.status == 401
                assert "s3cret" not in await answer.text()
        async with session.get(f"{url}/?token=s3cret", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/")
            assert "HttpOnly" in answer.headers["Set-Cookie"]
            assert "SameSite=Strict" in answer.headers["Set-Cookie"]


async def test_more_pages_than_a_few_are_told_to_wait(tmp_path: Path) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with world(tmp_path) as w, w.gm(), served(w) as url, aiohttp.ClientSession(connector=connector) as session:
        watching = [await session.get(f"{url}/stream") for _ in range(MOST_WATCHERS)]
        assert {answer.status for answer in watching} == {200}
        async with session.get(f"{url}/stream") as answer:
            assert answer.status == 503
        watching[0].close()

        async def is_served() -> bool:
            async with session.get(f"{url}/stream") as answer:
                return answer.status == 200

        await eventually(is_served, every_s=0.2)
        for answer in watching:
            answer.close()


async def test_hostile_words_are_shown_and_do_nothing(tmp_path: Path) -> None:
    labels = {"site": SCRIPT.format("label"), "<b>bold</b>": "x"}
    async with world(tmp_path) as w, w.gm() as cluster, w.node("edge0", **labels) as edge, w.node("cloud0"):
        await w.apply(model("small"), model("big"), service())
        edge.counts[HELMET] = TaskInfo(inference_number=7)
        await w.reaches("Running")
        await cluster.record("Warning", SCRIPT.format("reason")[:200], "node/edge0", SCRIPT.format("event"))
        sample = glimpse(7, camera=SCRIPT.format("camera"), edge_label=SCRIPT.format("answer"), label="5")
        await w.operator.publish(topics.HARD_SAMPLE.at(ns="default", service="helmet"), sample)
        await eventually(lambda: w.manager.feed.picture(f"{7:032x}") is not None, 20)
        async with opened(w, "document.querySelectorAll('.card, .tile, .sample, li').length >= 5") as tab:
            shown = await tab.evaluate("document.body.innerText")
            for what in ("label", "event", "camera", "answer"):
                assert SCRIPT.format(what)[:60] in shown, what
            await asyncio.sleep(1.5)  # an onerror would have come by now
            assert await tab.evaluate("window.broken") is None
            assert await tab.evaluate("document.querySelectorAll('main script, main [onerror]').length") == 0
            assert tab.said == []  # no violation of the policy, no error


def boxes(count: int, label: str = "face") -> list[Box]:
    return [Box(0.1 * i, 0.25, 0.1 * i + 0.0625, 0.5, 0.9, label) for i in range(count)]


DETECTION: dict[str, Any] = {
    "edge_label": "", "label": "", "edge_score": 0.0, "score": 0.0, "edge_count": 1, "count": 8, "file": "street.jpg",
    "edge_boxes": boxes(1), "boxes": boxes(8), "hardness": 0.75, "cut": 0.5, "total_ms": 41.5,
    "captured_ns": 1_795_262_400_000_000_000,
}  # fmt: skip


async def test_boxes_of_both_answers_are_drawn_over_the_preview_and_a_click_enlarges_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        topic = topics.HARD_SAMPLE.at(ns="default", service="faces")
        kept = {"by": "edge", "degraded": True, "reason": "no-cloud", "count": 1, "boxes": boxes(1)}
        outside = {"boxes": [Box(-5, 0.5, 1e300, 9, 0.5, 3)], "count": 10_000, "file": ""}
        outside |= {"edge_boxes": [], "edge_count": 0, "hardness": HARDEST}
        for number, changes in enumerate(({}, kept, outside), 1):
            await w.operator.publish(topic, glimpse(number, **(DETECTION | changes)))
        async with opened(w, "document.querySelectorAll('.sample').length == 3") as tab:
            cards = await tab.evaluate("[...document.querySelectorAll('.sample')].map((card) => card.innerText)")
            whole = ("1 → 8 boxes", "street.jpg", "12:00:00 UTC · 42\u00a0ms", "hardness 0.750, cut\u00a00.500", "cam0")
            facts = (("0 → 10,000 boxes", "no box, cut\u00a00.500"), ("1 box\n", "no-cloud"), whole)
            for card, expected in zip(cards, facts, strict=True):
                assert [fact for fact in expected if fact not in card] == []
            drawn = "[...document.querySelectorAll('.sample')].map((card) => card.querySelectorAll('rect{}').length)"
            assert await tab.evaluate(drawn.format(".edge")) == [0, 1, 1]
            assert await tab.evaluate(drawn.format(".final")) == [1, 0, 8]
            last = "document.querySelector('.sample:last-child svg').lastElementChild.getAttribute('class')"
            assert await tab.evaluate(last) == "edge dashed", "an equal box of the final answer does not hide it"
            side = "Number(document.querySelector('rect.final').getAttribute(name))"
            sides = await tab.evaluate(f"['x', 'y', 'width', 'height'].map((name) => {side})")
            assert sides == [0, 0.5, 1, 0.5]  # never outside of the picture
            await tab.until("document.querySelector('.sample:last-child img').naturalWidth == 16")
            over = (
                "[...document.querySelectorAll('.sample:last-child img, .sample:last-child svg')]"
                ".map((item) => JSON.stringify(item.getBoundingClientRect()))"
            )
            picture_at, drawing_at = await tab.evaluate(over)
            assert picture_at == drawing_at
            assert "boxes of the edge" in await tab.evaluate("document.querySelector('.legend').innerText")
            await tab.evaluate("document.querySelector('.sample:last-child .open').click()")
            await tab.until("document.querySelector('#viewer').open")
            assert await tab.evaluate("document.querySelectorAll('#viewer rect.final').length") == 8
            assert "face 90.0 %" in await tab.evaluate("document.querySelector('#viewer .lists').innerText")
            await tab.evaluate("document.querySelector('#viewer-close').click()")
            assert not await tab.evaluate("document.querySelector('#viewer').open")
            assert tab.said == []


HOSTILE_NAMES = [
    SCRIPT.format("file"), "two\nlines.jpg", "\x1b[31mred\x1b[0m.jpg", "\u202egpj.exe", "w" * 255, "\ufffd.jpg",
]  # fmt: skip


async def test_hostile_names_of_files_and_labels_of_boxes_are_text_in_one_cell(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        topic = topics.HARD_SAMPLE.at(ns="default", service="faces")
        for number, name in enumerate(HOSTILE_NAMES, 1):
            label = SCRIPT.format("box")[:1024]
            changes = {"file": name, "boxes": boxes(3, label), "edge_boxes": boxes(1, "\u202e" + label)}
            await w.operator.publish(topic, glimpse(number, **(DETECTION | changes)))
        all_are_shown = f"document.querySelectorAll('.sample').length == {len(HOSTILE_NAMES)}"
        async with opened(w, all_are_shown, size=(390, 844)) as tab:
            files = "[...document.querySelectorAll('.sample .file')].map((name) => name.{})"
            assert await tab.evaluate(files.format("textContent")) == HOSTILE_NAMES[::-1]
            heights = await tab.evaluate(files.format("getBoundingClientRect().height"))
            assert len(set(heights)) == 1  # each is one line
            for number in range(len(HOSTILE_NAMES)):
                await tab.evaluate(f"document.querySelectorAll('.open')[{number}].click()")
                await tab.until("document.querySelector('#viewer').open")
                assert SCRIPT.format("box")[:60] in await tab.evaluate("document.querySelector('#viewer').innerText")
                assert await tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
                viewer = "document.querySelector('#viewer')"
                assert await tab.evaluate(f"{viewer}.scrollWidth <= {viewer}.clientWidth")
                await tab.evaluate("document.querySelector('#viewer').close()")
            assert await tab.evaluate("window.broken") is None
            foreign = "document.querySelectorAll('main script, main [onerror], dialog script').length"
            assert await tab.evaluate(foreign) == 0
            assert tab.said == []


async def test_a_model_that_fails_is_shown(w: World) -> None:
    w.edge.counts[HELMET] = TaskInfo(inference_number=7, model_errors=5)
    w.edge.report(HELMET)
    async with opened(w, r"/model errors\s*5/i.test(document.querySelector('.card')?.innerText ?? '')"):
        pass


async def test_a_camera_has_a_card_with_its_state_its_readers_and_its_last_picture(w: World) -> None:
    door = {"camera": "door", "state": "stalled", "reason": "Stalled", "error": "nothing came", "frames": 1}
    await w.operator.publish(topics.CAMERA_STATUS.at(ns="default", camera="door"), CameraStatus(**door))
    inside = topics.NODE_CAMERA_STATUS.at(node="edge0", ns="default", camera="yard")
    await w.operator.publish(inside, CameraStatus(camera="yard", state="running", fps=25, width=640, height=480))
    hard = topics.HARD_SAMPLE.at(ns="default", service="helmet")
    for number in range(1, 31):  # more than the gallery keeps
        await w.operator.publish(hard, glimpse(number, camera="helmet" if number == 1 else "yard"))
    async with opened(w, "document.querySelectorAll('.camera').length == 3") as tab:
        await tab.until("document.querySelectorAll('.camera img').length == 2")
        cards = await tab.evaluate("[...document.querySelectorAll('.camera')].map((card) => card.innerText)")
        names = await tab.evaluate("[...document.querySelectorAll('.camera h3')].map((title) => title.innerText)")
        assert [" ".join(name.split()) for name in names] == [
            "default/door stalled", "default/yard running", "default/helmet",
        ]  # fmt: skip
        assert "1 frame" in cards[0].splitlines()
        assert "Stalled: nothing came" in cards[0]
        assert "no picture yet" in cards[0]
        assert "25 frames/s · 640 \u00d7 480 · edge0" in cards[1]
        assert "read by helmet" in cards[2]
        await tab.until("[...document.querySelectorAll('.camera img')].every((image) => image.naturalWidth == 16)")
        problems = "[...document.querySelectorAll('.problem.warn')].map((row) => row.innerText).join(' ')"
        await tab.until(f"{problems}.includes('camera/door') && {problems}.includes('Stalled: nothing came')")
        await w.operator.clear(inside)
        await w.operator.clear(topics.CAMERA_STATUS.at(ns="default", camera="door"))
        await tab.until("document.querySelectorAll('.camera.warn').length == 0")
    # without a page GM receives no states of cameras
    async with asyncio.timeout(patience(30)):
        while await w.operator.publish(inside, CameraStatus(camera="yard", state="running")):
            await asyncio.sleep(0.2)


async def test_a_drained_node_is_not_shown_as_online(w: World) -> None:
    await w.ask("drain", name="edge0")
    tile = "[...document.querySelectorAll('.tile')].find((tile) => tile.innerText.includes('edge0')).innerText"
    async with opened(w, f"document.querySelectorAll('.tile').length == 2 && {tile}.includes('drained')") as tab:
        assert "online" not in await tab.evaluate(tile)
        summary = await tab.evaluate("document.querySelector('#summary').innerText")
        assert "1 of 2 nodes online, 1 drained" in summary


async def test_figures_have_names_and_units_and_zeros_are_quieter(w: World) -> None:
    w.edge.counts[HELMET] = TaskInfo(inference_number=1200, audited=40, audit_agreed=38)
    w.edge.report(HELMET)
    agreed = r"/audits agreed\s*38/i.test(document.querySelector('.card')?.innerText ?? '')"
    async with opened(w, agreed) as tab:
        shown = await tab.evaluate("document.querySelector('.card .facts').innerText")
        assert "1,200" in shown
        assert " %" in shown
        assert not {"jointAccuracy", "auditAgreed"} & set(shown.split())
        size = "parseFloat(getComputedStyle(document.querySelector('.facts {} dd')).fontSize)"
        quiet, loud = [await tab.evaluate(size.format(which)) for which in (".zero", "div:not(.zero)")]
        assert quiet < loud


async def test_keys_reach_every_section_and_a_word_finds(w: World) -> None:
    tiles = "document.querySelectorAll('.tile').length"
    async with opened(w, f"{tiles} == 2") as tab:
        for key, section in (("2", "nodes"), ("3", "cameras"), ("5", "events"), ("1", "services")):
            await tab.press(key)
            assert await tab.evaluate("document.activeElement.id") == section
        for key in "/cloud0":
            await tab.press(key)
        await tab.until(f"{tiles} == 1")
        await tab.press("Escape")
        await tab.until(f"{tiles} == 2")


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)], ids=["desktop", "phone"])
async def test_nothing_is_wider_than_the_screen(tmp_path: Path, size: tuple[int, int]) -> None:
    labels = {"a-very-long-label.kubernetes.io/" + "x" * 60: "y" * 60}
    async with world(tmp_path) as w, w.gm() as cluster, w.node("edge0", **labels), w.node("cloud0"):
        await w.deploy()
        await cluster.record("Warning", "LongWord", "node/edge0", "w" * 400)
        async with opened(w, "document.querySelectorAll('.card, .tile, li').length >= 4", size) as tab:
            assert await tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            if os.environ.get("HALIMEDE_KEEP_PICTURES"):
                await tab.picture(BUILD / f"page-plain-{size[0]}.png")
