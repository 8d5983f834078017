"""The main job on Kubernetes as its users see it, nothing scripted: `kubectl`, cameras, results; processes for all."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.e2e.running import digits
from tests.kubernetes.apiserver import Api, kind_of_server
from tests.kubernetes.kubelet import Pod, until
from tests.kubernetes.sandbox import missing
from tests.kubernetes.whole import Whole, whole

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(kind_of_server() == "cluster", reason="its own kubelets run its pods"),
]
SERVICE = "digits"
KIND = "jointinferenceservices.sedna.io/v1alpha1"
EDGE, CLOUD = f"{SERVICE}-deployment-edge", f"{SERVICE}-deployment-cloud"


async def all_answered(made: Whole) -> None:
    """Wait until each accepted frame has its answer, and GM's figures have them all."""
    await until("all answers", lambda: not made.unanswered)

    async def counted() -> bool:
        return (await made.metrics(SERVICE)).get("inferenceNumber", 0) >= len(made.accepted)

    await until(f"{len(made.accepted)} frames in the status", counted)
    figures = await made.metrics(SERVICE)
    assert figures["inferenceNumber"] == len(made.accepted) == len(made.answers)
    assert figures["lost"] == figures["degraded"] == 0
    assert [i for i, n in made.copies.items() if n > 1] == []


async def replaced(made: Whole, prefix: str, old: Pod) -> Pod:
    """Wait for a ready pod in place of an old one."""

    def found() -> Pod | None:
        return next((pod for pod in made.pods(prefix) if pod is not old and pod.run().ready), None)

    new = await until(f"another {prefix}", found)
    assert isinstance(new, Pod)
    return new


async def test_digits_from_apply_to_delete(api: Api, tmp_path: Path) -> None:
    """Roll-outs, a deleted pod and a killed GM in between: nothing that was accepted goes without its one answer."""
    pictures = digits()
    async with whole(api, tmp_path) as made:
        await made.follow(SERVICE)
        gms = {name: await made.gm(name) for name in ("gm-0", "gm-1")}
        await made.apply(*made.manifests())
        await made.running(SERVICE)

        await made.send(pictures[:150])
        await all_answered(made)
        figures = await made.metrics(SERVICE)
        asked = sum(result.by == "cloud" for result in made.answers.values())
        assert figures["cloudInferenceNumber"] == asked > 0
        assert figures["uploadCloudRatio"] == pytest.approx(asked / 150, abs=1e-3)
        # through the node's cache, once for both who want it there
        assert made.downloads == ["/big.onnx"]
        assert {node.get("phase") for node in (await made.status(SERVICE))["nodes"]} == {"Running"}

        (first,) = made.pods(EDGE)
        sending = asyncio.create_task(made.send(pictures[150:350]))
        await api.client.delete("Pod", made.namespace, first.name)
        second = await replaced(made, EDGE, first)
        assert second.node != first.node
        await sending
        await all_answered(made)
        assert made.exit_codes(first) == {"fetch": 0, "edge": 0}

        (big,) = made.pods(CLOUD)
        mining = {"name": "Margin", "parameters": [{"key": "threshold_margin", "value": "1"}]}
        edit = {"spec": {"edgeWorker": {"hardExampleMining": mining}}}
        await api.client.patch(KIND, made.namespace, SERVICE, edit)
        third = await replaced(made, EDGE, second)
        await made.running(SERVICE, generation=2)
        await until("the old pod gone", lambda: made.exit_codes(second))
        assert made.exit_codes(second)["edge"] == 0
        assert made.pods(CLOUD) == [big]
        before = set(made.answers)
        await made.send(pictures[350:400])
        await all_answered(made)
        assert {made.answers[i].by for i in set(made.answers) - before} == {"cloud"}

        killed = gms.pop(await made.leader())
        assert await killed.kill(signal.SIGKILL) == -signal.SIGKILL
        await made.send(pictures[400:450])
        await until("answers without a GM", lambda: not made.unanswered, 10)
        (left,) = gms.values()

        async def leads() -> bool:
            return await made.leader() == left.identity

        await until("a new leader", leads)
        await made.send(pictures[450:500])
        await all_answered(made)
        assert made.pods(EDGE) == [third]
        assert made.pods(CLOUD) == [big]

        for body in made.manifests():
            await made.delete(body)
        await until("no pods", lambda: not made.pods(SERVICE))
        await until("nothing left", made.nothing)
        assert made.exit_codes(third)["edge"] == made.exit_codes(big)["cloud"] == 0
        await made.stop_lcs()
        assert await left.kill(signal.SIGTERM) == 0
