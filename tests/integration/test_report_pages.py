"""The reports of the demos in a browser: on a wide and a narrow screen, in light and in darkness."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.digits import page as digits_page
from examples.digits import report as digits_report
from examples.multi_edge import page as multi_edge_page
from examples.multi_edge import report as multi_edge_report
from examples.real_pairs import page as pair_page
from examples.real_pairs import report as pair_report
from examples.real_pairs.pairs import FACES, TEXT
from tests.browser import browser
from tests.unit.digits_demo.runs import run, status
from tests.unit.multi_edge_demo.runs import told
from tests.unit.real_pairs_demo.runs import run_of_faces, run_of_words

pytestmark = pytest.mark.slow


def pages() -> dict[str, str]:
    answers, made = run(), told()
    (faces, boxes), (words, texts) = run_of_faces(), run_of_words()
    return {
        "faces": pair_page.page(FACES, faces, pair_report.figures(faces), boxes),
        "text": pair_page.page(TEXT, words, pair_report.figures(words), texts),
        "digits": digits_page.page(digits_report.figures(answers, 10, status()), answers),
        "multi-edge": multi_edge_page.page(made, multi_edge_report.figures(made)),
    }


async def test_reports_fit_their_screen_in_light_and_in_darkness_and_load_nothing(tmp_path: Path) -> None:
    async with browser(tmp_path / "browser") as tab:
        for name, text in pages().items():
            (tmp_path / f"{name}.html").write_text(text)
            await tab.open((tmp_path / f"{name}.html").as_uri())
            await tab.until("document.readyState === 'complete' && document.querySelectorAll('section').length > 3")
            papers = set()
            for width in (1280, 390):
                for dark in (False, True):
                    await tab.resize(width, 800, mobile=width < 500, dark=dark)
                    across = await tab.evaluate("document.scrollingElement.scrollWidth")
                    assert across <= width, f"{name} is {across} wide on a screen of {width}"
                    papers.add(await tab.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert len(papers) == 2
            loaded = await tab.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
            assert [each for each in loaded if not each.startswith("data:")] == []
        assert tab.said == []
