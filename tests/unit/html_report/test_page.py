"""The frame of reports: one file that loads nothing, whose text is no markup."""

from __future__ import annotations

from halimede.html_report.page import keys, picture, render, table, tile
from tests.html_page import HtmlPage

EVIL = "</title><script>alert(1)</script>&"


def test_all_text_is_escaped() -> None:
    body = table([(EVIL, EVIL)], (EVIL, "value")) + keys({EVIL: "red"}) + picture(b"x", EVIL)
    text = render(EVIL, EVIL, [tile(EVIL, EVIL, EVIL)], body)
    found = HtmlPage(text)
    assert found.mistakes == []
    assert "script" not in found.tags
    assert (found.rows, found.tiles) == ([[EVIL, "value"], [EVIL, EVIL]], [(EVIL, EVIL, EVIL, True)])


def test_a_browser_may_load_nothing_from_elsewhere() -> None:
    text = render("title", "intro", [], picture(b"\x00\xff", "dots", kind="png"))
    found = HtmlPage(text)
    assert (found.external, found.references) == ([], [("data:image/png;base64,AP8=", "")])
    assert "default-src 'none'" in text


def test_it_is_readable_in_light_and_in_darkness() -> None:
    text = render("title", "intro", [], "", style=".mine { color: red }")
    assert "prefers-color-scheme: dark" in text
    assert text.index(".mine") < text.index("</style>")


def test_a_goal_that_is_missed_is_marked() -> None:
    found = HtmlPage(render("t", "i", [tile("1", "lost", "none may be", met=False), tile("0", "lost", "none")], ""))
    assert [met for *_, met in found.tiles] == [False, True]
