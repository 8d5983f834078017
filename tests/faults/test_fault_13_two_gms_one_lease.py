"""Fault 13: two GMs. One leads by the Lease; the other waits, and leads when the first is gone or cut off, in a higher
epoch. The one that is cut off has stopped before, by its own clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from services.gm.cluster.kubernetes.leader_election import NotLeadingError
from tests.kubernetes.adapter import adapter
from tests.kubernetes.apiserver import on_double
from tests.kubernetes.double.control import Request
from tests.kubernetes.world import gm_rules, world
from tests.simulated import eventually

PATIENCE = 30.0
#: the pause between giving up and being overtaken is what a busy machine may take
TIMING = {"duration_s": 8.0, "give_up_s": 5.0, "retry_s": 0.5}


@pytest.mark.slow
async def test_one_leads_and_a_clean_stop_hands_over_at_once(tmp_path: Path) -> None:
    async with on_double(tmp_path) as api, world(api, play=False) as w, w.gm("gm-0") as first:
        assert first.elector
        epoch = first.elector.epoch
        async with w.gm("gm-1", wait=False) as second:
            await asyncio.sleep(3.0)
            assert first.leads
            assert second.manager is None
            assert second.elector
            assert not second.elector.leading
            lease = await api.client.get("Lease", w.namespace, "halimede-gm")
            assert lease["spec"]["holderIdentity"] == "gm-0"
            assert lease["spec"]["leaseTransitions"] == epoch == 1


async def test_the_next_one_takes_over_in_a_higher_epoch_when_the_leader_stops(tmp_path: Path) -> None:
    async with on_double(tmp_path) as api, world(api, play=False) as w:
        # ages of minutes: only letting go can be what hands over
        w.timing = {"duration_s": 60.0, "give_up_s": 50.0, "retry_s": 0.5}
        async with contextlib.AsyncExitStack() as first:
            await first.enter_async_context(w.gm("gm-0"))
            async with w.gm("gm-1", wait=False) as second:
                await eventually(lambda: second.elector, PATIENCE)
                await first.aclose()
                await eventually(lambda: second.leads, PATIENCE)
                assert second.elector
                assert second.elector.epoch == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang", *(pytest.param(how, marks=pytest.mark.slow) for how in ("fail", "drop"))])
async def test_a_leader_that_is_cut_off_stops_before_the_other_begins(tmp_path: Path, how: str) -> None:
    async with on_double(tmp_path) as api, world(api, play=False) as w:
        w.timing = TIMING
        cut_off = await api.user("first", gm_rules(w.namespace))
        async with w.gm("gm-0", user=cut_off) as first, w.gm("gm-1", wait=False) as second:
            assert first.elector
            await eventually(lambda: second.elector, PATIENCE)
            epoch = first.elector.epoch

            def of_first(request: Request) -> bool:
                return request.user.endswith(cut_off.name)

            options = {"code": 500} if how == "fail" else {}
            fault = getattr(api.control, how)(times=10**9, matches=of_first, **options)
            api.control.break_watches()
            both = 0

            def second_leads() -> bool:
                nonlocal both
                assert first.elector
                assert second.elector
                both += first.elector.leading and second.elector.leading
                return second.leads

            await eventually(second_leads, PATIENCE)
            assert both == 0
            assert second.elector
            assert second.elector.epoch == epoch + 1
            await eventually(lambda: first.manager is None, PATIENCE)
            assert first.lost == 1
            fault.end()
            await asyncio.sleep(3.0)
            assert second.leads
            assert first.manager is None


async def test_a_leader_that_has_lost_writes_nothing_more(tmp_path: Path) -> None:
    async with on_double(tmp_path) as api, adapter(api, **TIMING) as a:
        stored = await a.model()
        a.elector._deadline = 0.0  # as after a stop of the process: time has passed, no timer has fired yet
        writes = a.client.writes
        for write in (
            a.cluster.add_finalizer(stored.key, stored.uid),
            a.cluster.remove(None, ""),  # type: ignore[arg-type]
            a.cluster.ensure({}),
        ):
            with pytest.raises(NotLeadingError):
                await write
        assert a.client.writes == writes
        assert "may lead" in a.cluster.check()
