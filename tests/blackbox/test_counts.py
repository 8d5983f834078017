"""What workers report of themselves after a known mix of frames: counts, metrics, states and dead letters."""

from __future__ import annotations

import itertools

import pytest

from halimede.messages import TaskInfo
from halimede.pipeline.model_slot import FAILING_SAMPLES
from tests.blackbox.models import EASY, HARD, POISON, big, small
from tests.blackbox.requester import REQUESTED, requested
from tests.blackbox.world import Kind, World, frame, packed
from tests.waiting import eventually


async def test_an_edge_worker_counts_what_became_of_its_frames(world: World) -> None:
    async with world.worker("edge", "e0", small()):
        async with world.worker("cloud", "c0", big()):
            await world.knows("e0", "c0")
            for _ in range(6):
                assert (await world.ask(EASY)).by == "edge"
            for _ in range(3):
                assert (await world.ask(HARD)).by == "cloud"
            again = frame(EASY)
            for _ in range(3):
                await world.publish(packed(again))
            await world.publish(b"this is no frame")
            await eventually(lambda: world.counts("c0").served == 3)
        await eventually(lambda: "c0" not in world.loads)
        without = [await world.ask(HARD) for _ in range(2)]
        reasons = [result.reason for result in without]
        assert {result.by for result in without} == {"edge"}
        await eventually(lambda: world.counts("e0").inference_number == 12 and world.counts("e0").rejected == 1)
        counts = world.counts("e0")
        assert (counts.edge_inference_number, counts.cloud_inference_number) == (9, 3)
        assert (counts.hard_example_number, counts.degraded) == (5, 2)
        assert counts.upload_cloud_ratio == pytest.approx(3 / 12)
        assert counts.uploaded_bytes == 3 * 16
        assert (counts.lost, counts.late, counts.unasked, counts.mining_errors, counts.withheld) == (0, 0, 0, 0, 0)
        assert counts.edge_latency is not None
        assert sum(counts.edge_latency.buckets.values()) == 12
        assert counts.offload_latency is not None
        assert sum(counts.offload_latency.buckets.values()) == 3
        for name, expected in {
            "accepted_frames_total": 12, "answers_total": 12, "cloud_answers_total": 3, "hard_samples_total": 5,
            "rejected_frames_total": 1, "duplicate_frames_total": 2, "degraded_answers_total": 2,
            "queued_frames": 0, "outbox_results": 0,
        }.items():  # fmt: skip
            assert await world.metric("e0", name) == expected, name
        for reason in set(reasons):
            assert await world.metric("e0", "degraded_answers_total", reason=reason) == reasons.count(reason)
        await eventually(lambda: world.letters)
        (letter,) = world.letters
        assert letter.topic.endswith("/sedna/frames/cam0")
        assert letter.size == len(b"this is no frame")


@pytest.mark.parametrize("kind", REQUESTED)
async def test_a_worker_counts_the_requests_that_it_has_served(world: World, kind: Kind) -> None:
    async with requested(world, kind, big(fails_at={POISON})) as requester:
        for value in (EASY, EASY, POISON, HARD):
            await requester.ask(frame(value))
        await requester.ask(frame(EASY, encoding="png"))  # raw bytes are no PNG
        await eventually(lambda: (world.counts("c0").served, world.counts("c0").rejected) == (3, 1))
        await eventually(lambda: world.counts("c0").batches >= 4)  # a batch is counted once its answers have left
        counts = world.counts("c0")
        # what fails in a batch is tried again alone
        assert counts.batches in {4, 5}
        assert counts.queue_latency is not None
        assert counts.compute_latency is not None
        assert sum(counts.compute_latency.buckets.values()) == counts.batches
        assert (counts.queued, counts.deferred, counts.inference_number) == (0, 0, 0)
        assert await world.metric("c0", "served_samples_total") == 3
        assert await world.metric("c0", "rejected_frames_total") == 1


async def test_a_model_that_fails_on_every_frame_is_counted_named_and_no_secret_of_the_bill(world: World) -> None:
    class Broken:
        def predict(self, _: object) -> str:
            raise RuntimeError("no such operator")

    async with world.pair(big(), Broken()):
        for _ in range(FAILING_SAMPLES):
            result = await world.ask(EASY)
            assert (result.by, result.degraded, result.reason) == ("cloud", False, "edge-failed")
        await eventually(lambda: world.counts("e0").model_errors == FAILING_SAMPLES)
        await eventually(lambda: world.infos["e0"][-1].reason == "EdgeModelFailing")
        assert "no such operator" in world.infos["e0"][-1].message
        assert world.infos["c0"][-1].reason == ""


@pytest.mark.parametrize("kind", ["edge", "cloud", "tier"])
async def test_a_worker_reports_its_states_and_who_it_is(world: World, kind: Kind) -> None:
    running = await world.start(kind, "w0", big())
    await running.end()
    await eventually(lambda: world.status("w0") == "completed")
    states = [state for state, _ in itertools.groupby(info.status for info in world.infos["w0"])]
    assert states[-2:] == ["running", "completed"]
    assert states[:-2] in ([], ["starting"])
    last = world.infos["w0"][-1]
    assert (last.namespace, last.owner_name, last.owner_uid) == (world.namespace, "svc", "u-1")
    assert (last.role, last.tier) == ("edge" if kind == "edge" else "cloud", "gate" if kind == "tier" else "")
    assert isinstance(last.task_info, TaskInfo)


async def test_what_a_killed_worker_had_accepted_is_answered_by_its_successor(world: World) -> None:
    model = small()
    running = await world.start("edge", "e0", model)
    await world.ask(EASY)
    with model.held():
        for _ in range(3):
            await world.send(EASY)
        await world.holds("e0", 3)
        running.crash()
    await running.kill()
    world.buses.heal("e0")
    async with world.worker("edge", "e0", small()):
        await eventually(lambda: world.counts("e0").inference_number == 4)
        assert world.counts("e0").lost == 0
        assert len(world.results) == 4
