"""The page of an evaluation in a browser: values show under the pointer, and rules can be switched off."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.evaluate import evaluate
from halimede.evaluation.report import page
from halimede.evaluation.service import read_chain
from tests.browser import browser
from tests.unit.evaluation.worlds import joint, model, write


async def test_values_show_under_the_pointer_and_rules_can_be_switched_off(tmp_path: Path) -> None:
    chain = read_chain([write(tmp_path, joint(), model(tmp_path, "small"), model(tmp_path, "big", -1.0))])
    rows = [np.array([i / 10, 0, -1], np.float32) for i in range(20)]
    data = LabelledSamples(images=rows, names=[str(i) for i in range(20)], sizes=[12] * 20, truths=["a"] * 20)
    (tmp_path / "page.html").write_text(page(evaluate(chain, data, rules=["Margin", "Entropy"])))
    async with browser(tmp_path / "browser") as tab:
        await tab.open((tmp_path / "page.html").as_uri())
        await tab.until("document.querySelectorAll('polyline[data-rule]').length === 4")
        x, y = await tab.evaluate(
            "(() => { const r = document.querySelector('svg').getBoundingClientRect();"
            " return [r.left + r.width / 2, r.top + r.height / 2] })()"
        )
        await tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        said = await tab.until("(t => t.includes('go up') && t)(document.getElementById('said').textContent)")
        assert "Margin" in said
        assert " ms" in said
        await tab.evaluate("document.querySelector('#rules input[value=Margin]').click()")
        assert await tab.evaluate("document.querySelector('polyline[data-rule=Margin]').style.display") == "none"
        await tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 5, y=y)
        await tab.until("!document.getElementById('said').textContent.includes('Margin')")
        assert tab.said == []
