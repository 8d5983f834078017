"""The main job on Kubernetes as its users see it, nothing scripted: `kubectl`, cameras, results; processes for all."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.running import digits
from tests.kubernetes.apiserver import Api, kind_of_server
from tests.kubernetes.kubelet import Pod, until
from tests.kubernetes.sandbox import missing
from tests.kubernetes.surroundings import Gm, kubectl
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
    """Wait until each frame that the broker had a worker for is accounted for: its one answer, or shown as skipped.

    Skipped is what was on its way to a worker that took no more.
    """

    async def counted() -> bool:
        figures = await made.metrics(SERVICE)
        return figures.get("inferenceNumber", 0) + figures.get("skipped", 0) >= len(made.accepted)

    await until(f"{len(made.accepted)} frames in the status", counted)
    figures = await made.metrics(SERVICE)
    await until("their answers", lambda: len(made.answers) >= figures["inferenceNumber"])
    assert figures["inferenceNumber"] == len(made.answers)
    assert figures["skipped"] == len(made.unanswered)
    assert figures["lost"] == figures["degraded"] == 0
    assert [i for i, n in made.copies.items() if n > 1] == []


async def replaced(made: Whole, prefix: str, old: Pod) -> Pod:
    """Wait for a ready pod in place of an old one."""

    new: Pod = await until(
        f"another {prefix}",
        lambda: next((pod for pod in made.pods(prefix) if pod is not old and pod.run().ready), None),
    )
    return new


async def rolled_out(made: Whole, old: Pod) -> Pod:
    """Edit the service so that every frame is hard; return the pod in place of the old one, once that has ended."""
    mining = {"name": "Margin", "parameters": [{"key": "threshold_margin", "value": "1"}]}
    edit = {"spec": {"edgeWorker": {"hardExampleMining": mining}}}
    await made.api.client.patch(KIND, made.namespace, SERVICE, edit)
    new = await replaced(made, EDGE, old)
    await made.running(SERVICE, generation=2)
    await until("the old pod gone", lambda: made.exit_codes(old))
    assert made.exit_codes(old)["edge"] == 0
    return new


async def survivor(made: Whole, gms: dict[str, Gm], pictures: list[bytes]) -> Gm:
    """Kill the GM that leads; return the one that leads then. In between frames are answered all the same."""
    killed = gms.pop(await made.leader())
    assert await killed.kill(signal.SIGKILL) == -signal.SIGKILL
    before = len(made.answers)
    await made.send(pictures)
    await until("answers without a GM", lambda: len(made.answers) == before + len(pictures), 10)
    (left,) = gms.values()

    async def leads() -> bool:
        return await made.leader() == left.identity

    await until("a new leader", leads)
    return left


async def test_digits_from_apply_to_delete(api: Api, tmp_path: Path) -> None:
    """Roll-outs, a deleted pod and a killed GM in between: nothing that was accepted goes without its one answer."""
    pictures = digits()
    async with whole(api, tmp_path) as made:
        await made.follow(SERVICE)
        await made.start_lcs()
        await until("caches that LCs and pods can use", lambda: made.cache_owners() == [10001] * 3)
        gms = {name: await made.gm(name) for name in ("gm-0", "gm-1")}
        await made.apply(*made.manifests())
        await made.running(SERVICE)
        await until("LCs in good order", lambda: all(pod.run("lc").ready for pod in made.pods("lc-")))

        await made.send(pictures[:150])
        await all_answered(made)
        assert not made.unanswered
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
        third = await rolled_out(made, second)
        assert made.pods(CLOUD) == [big]
        before = set(made.answers)
        await made.send(pictures[350:400])
        await all_answered(made)
        assert {made.answers[i].by for i in set(made.answers) - before} == {"cloud"}

        left = await survivor(made, gms, pictures[400:450])
        await made.send(pictures[450:500])
        await all_answered(made)
        assert made.pods(EDGE) == [third]
        assert made.pods(CLOUD) == [big]

        for body in made.manifests():
            await made.delete(body)
        await until("no pods", lambda: not made.pods(SERVICE))
        await until("nothing left", made.nothing)
        assert made.exit_codes(third)["edge"] == made.exit_codes(big)["cloud"] == 0
        # in our form, and from nobody else
        assert [line for line in (third.run().logs + big.run().logs).splitlines() if line[:1] != "{"] == []
        await made.stop_lcs()
        assert await left.kill(signal.SIGTERM) == 0


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
async def test_with_kubectl_and_tls_on_nodes_whose_lc_comes_last(secured: Api, tmp_path: Path) -> None:
    """The first pods are there before LC: kubelet makes folders as root that LC and later pods have to use."""
    pictures = digits()
    async with whole(secured, tmp_path, tls=True) as made:
        await made.follow(SERVICE)
        gm = await made.gm("gm-0")
        await kubectl(secured, "apply", "-f", "-", stdin="\n".join(f"---\n{json.dumps(b)}" for b in made.manifests()))
        await until("workers", lambda: [pod.run().ready for pod in made.pods(SERVICE)] == [True, True])
        await made.send(pictures[:50])
        await until("all answers", lambda: not made.unanswered)
        assert made.downloads == ["/big.onnx"]

        await made.start_lcs()
        await all_answered(made)
        await until("LC's own download", lambda: made.downloads == ["/big.onnx"] * 2)
        (big,) = made.pods(CLOUD)
        await kubectl(secured, "delete", "pod", "--wait=false", big.name)
        await replaced(made, CLOUD, big)
        await until("the old pod gone", lambda: made.exit_codes(big))
        assert made.exit_codes(big)["cloud"] == 0
        assert made.downloads == ["/big.onnx"] * 2
        await made.send(pictures[50:100])
        await all_answered(made)

        names, values = (line.split() for line in (await kubectl(secured, "get", "ji", SERVICE)).splitlines())
        shown = dict(zip(names, values, strict=False))
        assert (shown["PHASE"], shown["ACTIVE"]) == ("Running", "2")
        await kubectl(secured, "delete", "ji,models", "--all")
        await until("nothing left", made.nothing)
        await made.stop_lcs()
        assert await gm.kill(signal.SIGTERM) == 0
