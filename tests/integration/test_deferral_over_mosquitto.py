"""Two processes over a real Mosquitto: an edge worker keeps to its upload budget, and audits are part of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from halimede.frames import encode_image
from halimede.stats.agreement import agreement_of
from tests.integration.workers import Site
from tests.simulated import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TARGET, AUDITS = 0.15, 0.05
#: the brighter a picture, the less sure is the small model of its parity; in one shade of ten it errs
SMALL = """
    import numpy
    from halimede.worker import run_edge

    class Small:
        def predict(self, data):
            shade = round(240 * float(numpy.asarray(data).flat[0]))
            sure = 1 - shade / 520
            label = "odd" if shade % 2 or shade % 10 == 0 else "even"
            return {"label": label, "probabilities": [sure, 1 - sure]}

    run_edge(Small)
"""
BIG = """
    import numpy
    from halimede.worker import run_cloud

    class Big:
        def predict(self, data):
            shade = round(240 * float(numpy.asarray(data).flat[0]))
            return {"label": "odd" if shade % 2 else "even", "probabilities": [0.99, 0.01]}

    run_cloud(Big)
"""


async def test_the_budget_is_held_and_audits_are_counted(s: Site) -> None:
    chance = random.Random(1)
    shades = [chance.randrange(250) for _ in range(800)]
    pictures = [encode_image(np.full((4, 4), shade, np.uint8)) for shade in shades]
    options = {"TARGET_UPLOAD_RATIO": str(TARGET), "AUDIT_SHARE": str(AUDITS), "HALIMEDE_HTTP": "127.0.0.1:0"}
    options["UPLOAD_ENCODING"] = "raw"  # the camera's PNGs are written anew
    options["DEADLINE_MS"] = "60000"  # no audit is given up
    s.start_script("cloud", s.cloud, BIG)
    # a threshold that would send nearly everything up
    threshold = '[{"key": "threshold_margin", "value": "0.99"}]'
    s.start_script("edge", s.edge, SMALL, **options, HEM_PARAMETERS=threshold)
    await s.running(s.cloud, s.edge)
    await s.send_all(pictures, fps=400)
    assert set(s.copies.values()) == {1}
    audited = [result for result in s.results.values() if result.audit]
    await eventually(lambda: s.counts(s.edge).inference_number == 800 and s.counts(s.edge).audited == len(audited), 30)
    told = s.counts(s.edge)
    assert told.upload_cloud_ratio == pytest.approx(TARGET, abs=0.02)
    assert len(audited) > 10
    assert {(result.by, result.degraded) for result in audited} == {("edge", False)}
    assert told.audit_agreed == sum(shades[s.sent[result.id]] % 10 != 0 for result in audited)
    assert told.uploaded_bytes == 16 * round(told.upload_cloud_ratio * 800)
    assert await s.metric(s.edge, "upload_target_ratio") == TARGET
    assert abs(await s.metric(s.edge, "upload_error_ratio")) < 0.02
    written = await s.metric(s.edge, "upload_ready_samples_total", encoding="raw", changed="encoding")
    assert written == await s.metric(s.edge, "upload_writing_seconds_count")
    assert 16 * written == told.uploaded_bytes
    assert await s.metric(s.edge, "upload_written_bytes_total", when="after") == told.uploaded_bytes
    assert await s.metric(s.edge, "upload_written_bytes_total", when="before") > 60 * written
    estimate = agreement_of(told)
    assert estimate
    for bound in ("low", "value", "high"):
        shown = await s.metric(s.edge, "agreement_ratio", bound=bound)
        assert shown == pytest.approx(getattr(estimate, bound))
    assert 0 < estimate.low < estimate.value <= estimate.high <= 1
