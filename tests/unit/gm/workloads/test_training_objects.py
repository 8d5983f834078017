"""Which objects stand for a training: a Deployment a worker, with its samples, its class and its first weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halimede.api import Resource, parse
from halimede.training.settings import read_training
from services.gm.workloads.deployments import Built, build
from services.lc.paths import NodePaths
from tests.integration import gm_world
from tests.unit.api.samples import SAMPLES
from tests.unit.api.test_resources import put
from tests.unit.gm.workloads.builds import objects, reasons
from tests.unit.gm.workloads.world import SECRETS, SETTINGS, UID, known, model

MODEL = model("digits-small", labels=["0", "1"])
CODE = model("digits-trainer", "/data/code/train.zip", format="python")
WEIGHTS = model("digits-weights", "https://models.example/weights", format="tensors")


def dataset(url: str = "/data/digits") -> Resource[Any]:
    return parse(gm_world.dataset("digits-0", url=url, format="images", nodeName="edge0"))


def training(**changes: Any) -> Resource[Any]:
    body = put(SAMPLES["a training"], "spec.trainers.1", None)
    body["spec"] |= {"minClients": 1, "clientsPerRound": 0, **changes}
    body["metadata"] |= {"uid": UID, "generation": 1}
    return parse(body)


def made(of: Resource[Any] | None = None, *more: Resource[Any], settings: Any = SETTINGS) -> Built:
    return build(of or training(), known(MODEL, CODE, WEIGHTS, *(more or (dataset(),))), SECRETS, settings)


def pods(of: Built) -> dict[str, dict[str, Any]]:
    found = objects(of)
    return {name.rpartition("-training-")[2]: body["spec"]["template"]["spec"] for name, body in found.items()}


def environment(pod: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "edge0") for each in pod["containers"][0]["env"]}


def test_a_worker_is_one_pod_that_is_replaced_only_after_its_end() -> None:
    found = objects(made())
    assert set(found) == {f"Deployment/digits-deployment-training-{part}" for part in ("aggregator", "edge0")}
    for body in found.values():
        assert (body["spec"]["replicas"], body["spec"]["strategy"]) == (1, {"type": "Recreate"})
        labels = body["spec"]["template"]["metadata"]["labels"]
        assert labels["trainingmodel.sedna.io/name"] == "digits"
        selector = body["spec"]["selector"]["matchLabels"]
        assert selector["trainingmodel.sedna.io/uid"] == UID
        assert selector.items() <= labels.items()


def test_pods_request_the_promised_share_of_a_core() -> None:
    for share, cpu in ({}, "50m"), ({"cpuShare": 0.2}, "200m"), ({"cpuShare": 0}, None):
        for pod in pods(made(training(**share))).values():
            assert pod["containers"][0].get("resources", {}).get("requests", {}).get("cpu") == cpu


@pytest.mark.parametrize("resources", [{"requests": {"cpu": "1"}}, {"limits": {"cpu": "1"}}])
def test_a_template_says_itself_how_much_of_a_core_its_pod_needs(resources: dict[str, Any]) -> None:
    own = put(training().body, "spec.trainers.0.template.spec.containers.0.resources", resources)
    assert pods(made(parse(own)))["edge0"]["containers"][0]["resources"] == resources


def test_pods_can_read_their_job_and_have_the_names_that_it_knows() -> None:
    found = pods(made())
    for part, program in (("aggregator", "aggregator"), ("edge0", "trainer")):
        pod = found[part]
        assert pod["containers"][0]["args"] == [program]
        told = environment(pod)
        assert told["WORKER_NAME"] == f"digits.{part}-training-{'cloud0' if part == 'aggregator' else 'edge0'}"
        told["NODE_NAME"] = "cloud0" if part == "aggregator" else "edge0"
        settings: Any = read_training(program, told)  # type: ignore[arg-type]
        assert settings.job.trainers == {"digits.edge0-training-edge0": "edge0"}
        assert (settings.worker.model.labels, settings.worker.tier) == (["0", "1"], part)
        assert settings.archive == "/home/data/data/code/train.zip"
    assert settings.data.as_posix() == "/home/data/data/digits"
    assert environment(found["aggregator"])["INITIAL_URL"] == "/downloads/initial/models.example/weights"
    assert "INITIAL_URL" not in environment(found["edge0"])
    assert "MODEL_URL" not in environment(found["edge0"]), "the Model has no file to train from"


def test_samples_are_mounted_read_only_and_class_and_weights_are_brought_before() -> None:
    found = pods(made())
    [volume] = [each for each in found["edge0"]["volumes"] if each["name"] == "halimede-samples"]
    assert volume["hostPath"] == {"path": "/data/digits", "type": ""}
    mounts = {each["name"]: each for each in found["edge0"]["containers"][0]["volumeMounts"]}
    assert mounts["halimede-samples"] == {
        "name": "halimede-samples", "mountPath": "/home/data/data/digits", "readOnly": True,
    }  # fmt: skip
    fetches = {part: [each["name"] for each in pod["initContainers"]] for part, pod in found.items()}
    assert fetches == {"edge0": ["fetch-archive"], "aggregator": ["fetch-archive", "fetch-initial"]}


def test_samples_must_be_on_the_node_in_a_folder_that_the_operator_allows() -> None:
    assert reasons(made(None, dataset("https://data.example/digits"))) == ["DatasetNotOnNode"]
    assert reasons(made(None, dataset("/secret"))) == ["HostPathNotAllowed"]
    strict = made(settings=replace(SETTINGS, host_paths=()))
    assert set(reasons(strict)) == {"HostPathNotAllowed"}


def looped(**trainer: Any) -> Resource[Any]:
    body = put(training().body, "spec.loop", {"service": {"name": "digits"}})
    return parse(put(body, "spec.trainers.0", {**body["spec"]["trainers"][0], "hardSamples": {"service": "digits"}}))


def keeping(node: str) -> dict[str, Any]:
    body = put(gm_world.service("digits", edge=node or {"pool": "edge"}), "spec.edgeWorker.keepHardSamples", {})
    body["metadata"] |= {"namespace": "default", "uid": UID, "generation": 1}
    built = build(parse(body), known(model("small"), model("big")), SECRETS, SETTINGS)
    assert reasons(built) == []
    pod: dict[str, Any] = objects(built)["Deployment/digits-deployment-edge"]["spec"]["template"]["spec"]
    return pod


def test_a_trainer_of_a_loop_reads_the_folder_where_the_pod_on_its_node_keeps_hard_samples() -> None:
    edge = keeping("edge0")
    [volume] = [each for each in edge["volumes"] if each["name"] == "halimede-kept"]
    [mount] = [each for each in edge["containers"][0]["volumeMounts"] if each["name"] == "halimede-kept"]
    # the local controller on that node makes it, and belongs to the same user
    folder = NodePaths(Path("/var/lib/halimede"), "edge0").hard_samples("default", "digits")
    assert volume["hostPath"] == {"path": str(folder), "type": "DirectoryOrCreate"}
    assert mount == {"name": "halimede-kept", "mountPath": "/var/lib/halimede/state/hard"}

    pod = pods(made(looped()))["edge0"]
    hosts = {each["name"]: each["hostPath"] for each in pod["volumes"] if "hostPath" in each}
    assert hosts["halimede-samples"] == {"path": str(folder), "type": "Directory"}
    assert hosts["halimede-reference"] == {"path": "/data/digits", "type": ""}
    mounts = {each["name"]: each for each in pod["containers"][0]["volumeMounts"]}
    assert mounts["halimede-samples"]["readOnly"] is mounts["halimede-reference"]["readOnly"] is True
    told = environment(pod)
    assert told["TRAIN_DATASET_URL"] == mounts["halimede-samples"]["mountPath"] == f"/home/data{folder}"
    assert told["TRAIN_REFERENCE_URL"] == "/home/data/data/digits"
    assert "fetch" in [each["name"] for each in pod["initContainers"]], "it compares with the present model"
    assert told["MODEL_URL"]


def test_an_edge_worker_without_a_node_of_its_own_shares_no_samples() -> None:
    assert "halimede-kept" not in str(keeping(""))


def test_without_a_folder_of_the_nodes_pods_share_no_samples() -> None:
    assert reasons(made(looped(), settings=replace(SETTINGS, node_cache=""))) == ["HardSamplesNotShared"]
