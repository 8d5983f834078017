"""A multi-edge service on Kubernetes: a Deployment a worker, a status that names each, and what edits do to them."""

from __future__ import annotations

from typing import Any

from tests.integration.gm_world import MODELS, MULTI_EDGE, SERVICES, model, multi_edge
from tests.kubernetes.apiserver import Api
from tests.kubernetes.world import EDGE, World, message, world
from tests.simulated import eventually

NORTH, SOUTH, JOINT = (f"crossing-deployment-{worker}" for worker in ("north", "south", "joint"))


async def reaches(w: World, phase: str, reason: str = "", *, name: str = "crossing", generation: int = 0) -> Any:
    return await w.reaches(phase, reason, name=name, plural=MULTI_EDGE, generation=generation)


async def args_of(w: World, deployment: str) -> list[str]:
    return (await w.pod_of(deployment))["containers"][0]["args"]


async def test_each_worker_gets_a_deployment_and_is_told_who_the_others_are(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge) as edge, w.node(w.cloud) as cloud:
        await w.apply(model("small"), multi_edge(north=w.edge, south=w.edge, cloud=w.cloud))
        status = await reaches(w, "Running")
        assert (status["active"], status["failed"]) == (3, 0)
        said = {"name": "crossing", "phase": "Running", "application": "balance", "active": 3, "answered": "0"}
        assert said.items() <= (await w.row(MULTI_EDGE)).items()
        assert {(s["name"], s["role"], s["node"], s["phase"]) for s in status["workers"]} == {
            ("north", "edge", w.edge, "Running"), ("south", "edge", w.edge, "Running"),
            ("joint", "cloud", w.cloud, "Running"),
        }  # fmt: skip
        env, both = await w.variables(NORTH), '["north","south"]'
        assert (await args_of(w, NORTH), env["PART"], env["JOINT"]) == (["member"], "north", "cloud")
        assert (env["MEMBERS"], env["CAMERAS"], env["SOURCE"]) == (both, both, '{"cameras":["north"]}')
        env = await w.variables(JOINT)
        assert (await args_of(w, JOINT), env["PART"], "MODEL_URL" in env) == (["joint"], "joint", False)
        labels = (await w.made("Deployment", JOINT))["spec"]["template"]["metadata"]["labels"]
        assert labels["multiedgeinferenceservice.sedna.io/name"] == "crossing"
        assert labels["halimede.io/worker"] == "joint"
        assert await w.object("Service", "crossing-cloud") is None
        await eventually(lambda: len(edge.sent("insert")) == 2)
        assert edge.sent("insert") == [("insert", "models/small", 1), ("insert", f"{MULTI_EDGE}/crossing", 1)]
        await eventually(lambda: cloud.sent("insert") == [("insert", f"{MULTI_EDGE}/crossing", 1)])
        await eventually(lambda: w.shown("crossing", MULTI_EDGE) is not None)


async def test_what_is_missing_costs_its_worker_alone_and_heals(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge):
        body = multi_edge(north=w.edge, south="nowhere")
        body["spec"]["edgeWorkers"][1]["model"] = {"name": "absent"}
        await w.apply(model("small"), body)
        assert "spec.edgeWorkers[1].model.name" in message(await reaches(w, "Degraded", "ModelNotFound"))
        assert await w.object("Deployment", SOUTH) is None
        await w.apply(model("absent"))
        said = message(await reaches(w, "Degraded", "NodeNotFound"))
        assert "spec.edgeWorkers[1].template.spec.nodeName" in said
        await api.node("nowhere")
        async with w.node("nowhere"):
            await reaches(w, "Running")


async def test_a_joint_inference_service_of_the_same_name_stands_beside_it(api: Api) -> None:
    async with world(api) as w, w.gm(), w.node(w.edge), w.node(w.cloud):
        await w.apply_all()
        await w.apply(multi_edge("helmet", north=w.edge, cloud=w.cloud))
        await w.reaches("Running")
        await reaches(w, "Running", name="helmet")
        north = "helmet-deployment-north"
        for name, kind in ((EDGE, "JointInferenceService"), (north, "MultiEdgeInferenceService")):
            assert (await w.made("Deployment", name))["metadata"]["ownerReferences"][0]["kind"] == kind
        await w.delete("helmet", MULTI_EDGE)
        await api.until_gone("Deployment", north)
        await w.until_gone("helmet", MULTI_EDGE)
        assert (await w.status("helmet", SERVICES))["phase"] == "Running"
        assert (await w.reaches("Ready", name="small", plural=MODELS))["active"] == 1
