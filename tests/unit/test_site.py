"""`make docs`: a site with checked links, for which a browser fetches nothing from another server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halimede.topics import CONTRACT
from scripts import site
from tests.browser import browser
from tests.programs import run_python

pytestmark = pytest.mark.slow
SITE = site.ROOT / "build" / "pages"
#: pixels
PHONE = 390


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    done = run_python("scripts/site.py", cwd=site.ROOT, timeout_s=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_site_is_built_in_strict_mode_and_fetches_nothing() -> None:
    pages = list(SITE.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        text = page.read_text()
        fetched = re.findall(r"<(?:script|img|link|iframe)[^>]*?(?:src|href)=\"?(https?:[^\"\s>]*)", text)
        assert not fetched, page
    home = (SITE / "index.html").read_text()
    assert (SITE / "docs" / "asyncapi.json").exists()
    assert {file.stem for file in (SITE / "docs" / "schemas").iterdir()} == {topic.id for topic in CONTRACT}
    assert all(f">\n  \n  {tab}" in home or tab in home for tab in ("Tutorial", "How-to", "Reference", "Explanation"))


@pytest.mark.timeout(120)
async def test_every_page_fits_a_phone(tmp_path: Path) -> None:
    async with browser(tmp_path / "browser") as tab:
        await tab.resize(PHONE, 800, mobile=True)
        wide = {}
        for page in sorted(SITE.rglob("*.html")):
            await tab.open(page.as_uri())
            await tab.until(f"location.href === {page.as_uri()!r} && document.readyState === 'complete'")
            # the page does not scroll sideways; a table or a block of code does so by itself
            if (across := await tab.evaluate("document.scrollingElement.scrollWidth")) > PHONE:
                wide[page.name] = across
        assert wide == {}


def test_a_link_to_a_source_file_becomes_text_and_a_broken_one_stays_for_the_check() -> None:
    known = {Path("docs/a.md"), Path("docs/b.md")}
    text = "[b](b.md#x), [code](../halimede/errors.py), [gone](gone.md)\n```text\n[c](../Makefile)\n```\n"
    staged = site.staged(text, Path("docs/a.md"), {*known, Path("README.md")})
    assert "[code]" not in staged
    assert ", code, [gone](gone.md)" in staged
    assert "[c](../Makefile)" in staged
