"""What holds of a scripted world at its end: one answer for each accepted sample, and nothing is kept."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from halimede.messages import Count
from halimede.pipeline.sample import Sample
from tests.unit.pipeline.scripted_world import EDGE, World


def check_answers(world: World) -> None:
    """Check that each accepted sample has exactly one answer, and that nobody else has any."""
    records = world.records
    for sample, answers in records.answers.items():
        assert len(answers) == 1, (sample.frame.id.hex(), answers)
    assert all(len(reports) == 1 for reports in records.reports), "a message ends once"
    if world.edge:
        _check_results(world, [sample for sample in records.submitted if sample.intake is world.edge.intake])
    if world.requests:
        assert set(records.delivered) <= set(records.replies), "a reply that nobody gave"
        if world.calm:
            assert records.delivered == records.replies


def _check_results(world: World, samples: list[Sample]) -> None:
    records = world.records
    ids = [sample.frame.id.hex() for sample in samples]
    assert len(set(ids)) == len(ids), "a frame is accepted once"
    taken = {offer.id.hex() for offer in records.offers if offer.taken}
    assert set(ids) == taken, (set(ids) ^ taken, "accepted, or only reported as accepted")
    assert set(records.results) <= set(ids)
    if not world.restarted:  # what is published before its consumer has subscribed again reaches nobody
        assert set(records.results) == set(ids)
    for copies in records.results.values():
        assert len({msgspec.json.encode(each) for each in copies}) == 1, "copies of one result differ"
        assert copies[0].by != "peer" or copies[0].model == "v-peer", "a peer's answer does not name its model"
    for offer in records.offers:
        assert offer.answered == int(offer.acked and offer.taken), "a source is notified once"
    ledger = world.ledger
    assert (ledger[Count.ACCEPTED], ledger[Count.ANSWERED], ledger[Count.LOST]) == (len(ids), len(ids), 0)


def check_nothing_kept(world: World) -> None:
    """Check that slots, memory, models, publishers and the policy are as if nothing had ever been accepted."""
    pipeline = world.pipeline
    assert (pipeline.inside, pipeline.delegated, pipeline.preparing, pipeline._calls) == (0, 0, 0, 0)
    assert not pipeline._queue.waiting
    assert not pipeline._inline_due
    for outbox in world.outboxes:
        assert outbox.pending == 0
    if world.edge:
        intake = world.edge.intake
        assert (intake._slots._value, intake._patient._value) == (EDGE.inside, EDGE.patient)
        assert intake._memory.used == 0
        assert not intake._entering
        assert not world.edge.responder._acks
    if world.requests:
        assert not world.requests.inside
        assert world.requests._bytes == 0
    _check_models(world)
    _check_client(world)
    if world.policy:
        assert (world.policy.uplink._under_way, world.policy.uplink._probe_out) == (0, False)
        assert world.policy.audits
        assert world.policy.audits.open == 0


def _check_models(world: World) -> None:
    slot, records = world.slot, world.records
    assert not slot._leaving
    assert not world.script.misuses
    for loaded in records.models:
        assert loaded._leases == 0
        assert loaded.model.closes == int(loaded not in slot.loaded), loaded.version  # type: ignore[attr-defined]


def _check_client(world: World) -> None:
    client = world.client
    if client is None:
        return
    assert (client._in_flight, client._pending, client._waiting) == (0, {}, {})
    check_timers(world)


def check_timers(world: World) -> None:
    """Check that only requests under way have a timer for their deadline."""
    client = world.client
    if client is None:
        return
    timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    live = [timer for timer in timers if not timer.cancelled() and timer._callback == client._expire]
    assert len(live) <= len(client._pending), "timers of requests that are done"


def check_cut_short(world: World) -> None:
    """Check what holds of a worker that was cancelled amid its work: no answer twice, and the rest counts as lost."""
    records = world.records
    assert all(len(answers) <= 1 for answers in records.answers.values())
    assert all(len(reports) <= 1 for reports in records.reports)
    assert all(offer.answered <= int(offer.acked) for offer in records.offers)
    accepted = Counter(sample.frame.id.hex() for sample in records.submitted)
    if world.edge:
        assert set(records.results) <= set(accepted)
        ledger = world.ledger
        assert 0 <= ledger.open <= len(accepted)
        assert ledger[Count.ANSWERED] <= len(records.answers)
