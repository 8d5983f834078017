"""A broker refuses the connections of workers alone, as one without wills without payload does: status has the cause.

GM, the LCs and the operator connect, so everything else looks well.
"""

from __future__ import annotations

import pytest

from tests.faults.control import Control
from tests.faults.test_fault_40_a_broker_that_refuses_at_first import RUNNING_S, now, service, status_names
from tests.refusing_broker import EMPTY_WILL, RefusingBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def test_fault_45_a_worker_that_the_broker_refuses_is_named_with_the_cause(plane: Control) -> None:
    async with RefusingBroker(plane.broker.port) as front:
        front.lacks = frozenset({EMPTY_WILL})
        plane.trained()
        plane.gm_process(port=front.port)
        for node in ("edge0", "cloud0"):
            plane.lc_process(node, home=plane.folder / node, port=front.port)
        await plane.apply(*plane.real_models(), service(plane))
        began = now()
        await status_names(plane, "NotConnected", "worker on node", "the connection broke before the broker answered")
        print(f"named after {now() - began:.1f} s")
        doctor = await plane.halimede("doctor", "--broker", f"127.0.0.1:{front.port}")
        assert "will without payload" in doctor.stdout

        front.lacks = frozenset()
        await plane.running("digits", within_s=RUNNING_S)
        await plane.status_is_well()
