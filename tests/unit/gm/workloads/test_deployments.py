"""Which objects stand for a service: their names, labels and owner, and what is in the way of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from services.gm.cluster.port import Ref
from services.gm.controllers.worker_service import JointInferenceController
from services.gm.workloads.deployments import replicas, secret_names
from services.gm.workloads.object_names import is_owned_by, session_secret_name
from tests.unit.gm.workloads.builds import built, objects, reasons
from tests.unit.gm.workloads.world import SECRETS, SETTINGS, UID, known, model, neptune, service, template

HPA = {"minReplicas": 1, "maxReplicas": 4, "metrics": [{"type": "Resource"}]}


def test_two_deployments_and_a_service_with_sednas_names_and_labels() -> None:
    found = objects(built())
    assert set(found) == {
        "Deployment/helmet-deployment-edge", "Deployment/helmet-deployment-cloud", "Service/helmet-cloud",
    }  # fmt: skip
    for role in ("edge", "cloud"):
        body = found[f"Deployment/helmet-deployment-{role}"]
        labels = {
            "app.kubernetes.io/managed-by": "halimede",
            "jointinferenceservice.sedna.io/name": "helmet",
            "jointinferenceservice.sedna.io/uid": UID,
            "jointinferenceservice.sedna.io/worker-type": role,
            "app.sedna.io": f"helmet-deployment-{role}",
        }
        assert body["metadata"]["labels"] == labels
        assert labels.items() <= body["spec"]["template"]["metadata"]["labels"].items()
        assert body["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert UID in body["spec"]["selector"]["matchLabels"].values(), "no pods of an earlier service of the name"
        assert (body["metadata"]["namespace"], body["spec"]["replicas"]) == ("default", 1)
        assert body["metadata"]["annotations"]["halimede.io/digest"]
    network = found["Service/helmet-cloud"]
    assert network["spec"]["ports"][0]["port"] == 5000
    assert network["spec"]["selector"] == found["Deployment/helmet-deployment-cloud"]["spec"]["selector"]["matchLabels"]


def test_the_owner_is_the_service_in_the_group_in_which_it_was_written() -> None:
    owner = {
        "apiVersion": "sedna.io/v1alpha1", "kind": "JointInferenceService", "name": "helmet", "uid": UID,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    assert all(body["metadata"]["ownerReferences"] == [owner] for body in built().objects)
    ours = {**owner, "apiVersion": "neptune.io/v1alpha1"}
    assert all(body["metadata"]["ownerReferences"] == [ours] for body in built(neptune()).objects)


def test_nobody_can_write_the_mark_of_a_translation_into_his_own_service() -> None:
    said = service()
    said.metadata.annotations["halimede.io/translated-from"] = "neptune.io/v1alpha1"
    entry = JointInferenceController().entry(said)
    assert built(entry.resource).objects == built().objects


def test_no_edit_changes_the_selector() -> None:
    def selectors(of: Any) -> list[Any]:
        return [body["spec"]["selector"] for body in of.objects if "selector" in body["spec"]]

    edited = service(edge=template({"name": "other", "image": "x"}, nodeName="edge9"), cloudWorker={"hpa": HPA})
    assert selectors(built()) == selectors(built(edited))


def test_an_autoscaler_decides_alone_how_many_there_are_and_scales_nothing_but_its_deployment() -> None:
    found = objects(built(service(cloudWorker={"hpa": HPA})))
    scaler = found["HorizontalPodAutoscaler/hpa-helmet-deployment-cloud"]
    assert scaler["spec"] == {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "helmet-deployment-cloud"},
        "minReplicas": 1,
        "maxReplicas": 4,
        "metrics": [{"type": "Resource"}],
    }
    assert "replicas" not in found["Deployment/helmet-deployment-cloud"]["spec"]
    assert found["Deployment/helmet-deployment-edge"]["spec"]["replicas"] == 1


def test_a_missing_model_costs_its_role_alone_and_heals() -> None:
    of = built(service(cloudWorker={"model": {"name": "gone"}}))
    assert of.unchanged == {"cloud"}
    assert [(p.reason, p.message) for p in of.problems] == [
        ("ModelNotFound", "spec.cloudWorker.model.name: default/models/gone does not exist: apply it")
    ]
    assert [body["metadata"]["name"] for body in of.objects] == ["helmet-cloud", "helmet-deployment-edge"]
    assert built().unchanged == frozenset()


def test_a_missing_dataset_costs_the_edge_role() -> None:
    of = built(service(dataset={"name": "frames"}))
    assert (reasons(of), of.unchanged) == (["DatasetNotFound"], {"edge"})
    assert "spec.dataset.name: default/datasets/frames" in of.problems[0].message


def test_missing_secrets_are_named_by_what_for() -> None:
    remote = model(url="s3://bucket/small.onnx", credentialName="keys")
    of = built(service(), remote, secrets={"halimede-cloud-worker": {}})
    assert (set(reasons(of)), of.unchanged) == ({"SecretNotFound"}, {"edge"})
    assert [p.message for p in of.problems] == [
        "spec.edgeWorker: credentials of its workers: there is no Secret default/halimede-edge-worker: create it",
        "spec.edgeWorker: Model small: spec.credentialName: there is no Secret default/keys: create it",
    ]


def test_which_secrets_are_of_interest() -> None:
    remote = model(url="s3://bucket/small.onnx", credentialName="keys")
    session = session_secret_name(service())
    named = {"halimede-edge-worker", "halimede-cloud-worker", "keys", session}
    assert secret_names(service(), known(remote), SETTINGS) == named
    without = replace(SETTINGS, credentials=False)
    assert secret_names(service(), known(), without) == {session}
    assert built(secrets={}, settings=without).problems == ()


def test_a_service_gets_one_secret_that_ends_with_it_and_is_not_written_again() -> None:
    (secret,) = built(secrets=SECRETS).secrets
    assert secret["metadata"]["name"] == session_secret_name(service())
    assert is_owned_by(secret, UID)
    assert not {"data", "stringData"} & secret.keys(), "who plans does not know it"
    assert built().secrets == ()
    foreign = {session_secret_name(service()): {"ownerReferences": []}}
    assert built(secrets={**SECRETS, **foreign}).secrets == (secret,), "the cluster says that it is another's"


@pytest.mark.parametrize(("name", "reason"), [("a" * 47, "NameTooLong"), ("a.b", "InvalidName"), ("1a", "InvalidName")])
def test_a_name_that_makes_no_service_is_refused_and_nothing_removed(name: str, reason: str) -> None:
    of = built(service(name=name))
    assert (of.objects, of.unchanged, reasons(of)) == ((), {"edge", "cloud"}, [reason])
    assert "metadata.name" in of.problems[0].message


def test_the_longest_name_still_makes_labels() -> None:
    for body in built(service(name="a" * 46)).objects:
        assert all(len(text) <= 63 for text in [body["metadata"]["name"], *body["metadata"]["labels"].values()])


def test_the_same_wish_has_the_same_digest_and_another_one_another() -> None:
    def digests(of: Any) -> list[str]:
        return [body["metadata"]["annotations"]["halimede.io/digest"] for body in of.objects]

    assert digests(built()) == digests(built())
    network, edge, cloud = digests(built())
    edited = digests(built(service(edge=template(nodeName="edge1"))))
    assert (edited[0], edited[2]) == (network, cloud)
    assert edited[1] != edge


def test_how_many_pods_each_role_shall_have() -> None:
    of = built(service(cloudWorker={"hpa": HPA}))
    assert replicas(of, {}) == {"edge": 1, "cloud": 1}
    there = {Ref.of(body): body for body in of.objects if body["kind"] == "Deployment"}
    scaled = {ref: {**body, "spec": {**body["spec"], "replicas": 3}} for ref, body in there.items()}
    assert replicas(of, scaled) == {"edge": 1, "cloud": 3}
    gone = {"model": {"name": "gone"}}
    assert replicas(built(service(edgeWorker=gone, cloudWorker=gone)), {}) == {}
