"""The user's template stays as he wrote it; what a worker needs is merged in."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from halimede.worker.settings import read
from services.gm.workloads import object_names
from services.gm.workloads.pod_settings import PodSettings
from tests.kubernetes.placed import named_node
from tests.unit.gm.workloads.builds import built, environment, objects, pod, reasons
from tests.unit.gm.workloads.world import SETTINGS, UID, container, model, neptune, service, template

OURS = {"image": "registry.example/halimede/worker:1"}


def test_a_worker_is_told_who_it_is_and_where_things_are() -> None:
    told = environment(built())
    assert told["WORKER_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert told["NODE_NAME"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert told.items() >= {
        "NAMESPACE": "default", "SERVICE_NAME": "helmet", "SERVICE_UID": UID,
        "MODEL_URL": "/downloads/models.example/a/small.onnx",
        "HALIMEDE_BROKER": SETTINGS.broker, "HALIMEDE_CREDENTIALS": "/etc/halimede/broker",
        "HALIMEDE_STATE": "/var/lib/halimede/state", "HALIMEDE_HTTP": "0.0.0.0:9101",
        "DATA_PATH_PREFIX": "/home/data", "GRACE_S": "24", "LC_PERIOD": "1", "DEADLINE_MS": "2000",
        "HEM_NAME": "IBT", "HEM_PARAMETERS": '[{"key":"threshold_img","value":"0.9"}]',
        "LC_SERVER": SETTINGS.broker, "BIG_MODEL_IP": "helmet-cloud.default", "BIG_MODEL_PORT": "5000",
    }.items()  # fmt: skip
    cloud = environment(built(), "cloud")
    assert cloud["BIG_MODEL_BIND_PORT"] == "5000"
    assert not cloud.keys() & {"HEM_NAME", "LC_SERVER", "BIG_MODEL_IP"}


@pytest.mark.parametrize("role", ["edge", "cloud"])
def test_a_worker_understands_what_it_is_told(role: Any) -> None:
    told = environment(built(), role)
    given = {"WORKER_NAME": "helmet-deployment-x", "NODE_NAME": "edge0", "SESSION_KEY": "0f" * 16}
    settings = read(role, {**told, **given})
    assert (settings.uid, settings.model.format, settings.grace_s) == (UID, "onnx", 24)


def test_no_url_of_a_model_is_told() -> None:
    text = msgspec.json.encode(pod(built())["containers"]).decode()
    assert "token" not in text
    assert msgspec.json.decode(environment(built())["MODEL_SPEC"])["url"] == "/downloads/models.example/a/small.onnx"


def test_facts_stand_before_the_users_variables_and_defaults_yield_to_them() -> None:
    secret = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    given = [{"name": "NAMESPACE", "value": "other"}, {"name": "LC_PERIOD", "value": "30"}, secret]
    given += [{"name": "WORKER_NAME", "value": "me"}, {"name": "MINE", "value": "$(NAMESPACE)/x"}]
    told = environment(built(service(edge=template(container(env=given)))))
    assert (told["NAMESPACE"], told["LC_PERIOD"], told["KEY"]) == ("default", "30", secret["valueFrom"])
    assert told["WORKER_NAME"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    names = [v["name"] for v in pod(built(service(edge=template(container(env=given)))))["containers"][0]["env"]]
    assert names.index("NAMESPACE") < names.index("MINE"), "the user's may refer to ours"


def test_only_workers_with_frames_get_the_session_key_and_no_variable_of_the_user_can_refer_to_it() -> None:
    given = [{"name": "SESSION_KEY", "value": "mine"}, {"name": "MINE", "value": "$(SESSION_KEY)"}]
    of = built(service(edge=template(container(env=given))))
    name = object_names.session_secret_name(service())
    source = {"name": name, "key": "SESSION_KEY", "optional": True}
    assert environment(of)["SESSION_KEY"] == {"secretKeyRef": source}
    assert pod(of)["containers"][0]["env"][-1]["name"] == "SESSION_KEY"
    assert "SESSION_KEY" not in environment(of, "cloud")


def test_which_addresses_a_camera_may_have_is_the_operators_to_say() -> None:
    given = [{"name": "HALIMEDE_FETCH_ALLOW", "value": "loopback"}]
    asked = service(edge=template(container(env=given)), edgeWorker={"source": {"url": "rtsp://127.0.0.1/1"}})
    settings = replace(SETTINGS, fetch_allow=("private", "models.lan"))
    assert environment(built(asked, settings=settings))["HALIMEDE_FETCH_ALLOW"] == "private,models.lan"


def test_settings_add_variables_that_yield() -> None:
    settings = replace(SETTINGS, env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4318", "LC_PERIOD": "5"})
    told = environment(built(settings=settings))
    assert (told["OTEL_EXPORTER_OTLP_ENDPOINT"], told["LC_PERIOD"]) == ("http://otel:4318", "5")


def test_the_template_is_kept_whole() -> None:
    sidecar = {"name": "log", "image": "x/log", "resources": {"limits": {"memory": "64Mi"}}}
    first = container(
        command=["python"], resources={"limits": {"cpu": "500m", "nvidia.com/gpu": 1}},
        livenessProbe={"exec": {"command": ["true"]}}, envFrom=[{"configMapRef": {"name": "c"}}],
        volumeMounts=[{"name": "data", "mountPath": "/d"}], securityContext={"runAsUser": 5},
    )  # fmt: skip
    whole = {
        "metadata": {"labels": {"team": "a", "app.sedna.io": "x"}, "annotations": {"note": "b"}, "finalizers": ["x/y"]},
        "spec": {
            "containers": [first, sidecar], "initContainers": [{"name": "prepare", "image": "x/init"}],
            "volumes": [{"name": "data", "hostPath": {"path": "/data/in"}}],
            "nodeSelector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {"x": 1}}, "terminationGracePeriodSeconds": 100, "priorityClassName": "low",
        },
    }  # fmt: skip
    before = copy.deepcopy(whole)
    of = built(service(edge=whole))
    made = objects(of)["Deployment/helmet-deployment-edge"]["spec"]["template"]
    spec = made["spec"]
    assert whole == before
    for name in ("nodeSelector", "tolerations", "affinity", "terminationGracePeriodSeconds", "priorityClassName"):
        assert spec[name] == whole["spec"][name]
    assert spec["containers"][1] == sidecar
    assert [c["name"] for c in spec["initContainers"]] == ["fetch", "prepare"]
    worker = spec["containers"][0]
    for name in ("image", "command", "resources", "livenessProbe", "envFrom", "securityContext"):
        assert worker[name] == first[name]
    assert "readinessProbe" not in worker, "nobody knows what a foreign image can bear"
    mount = {"name": "data", "mountPath": "/d", "readOnly": True, "recursiveReadOnly": "IfPossible"}
    assert worker["volumeMounts"][0] == mount
    assert spec["volumes"][0] == whole["spec"]["volumes"][0]
    labels = made["metadata"]["labels"]
    assert (made["metadata"]["annotations"], labels["team"]) == ({"note": "b"}, "a")
    assert labels["app.sedna.io"] == "helmet-deployment-edge"
    assert "finalizers" not in made["metadata"]
    assert environment(of)["GRACE_S"] == "80"


def test_what_a_pod_gets_beside() -> None:
    spec = pod(built())
    worker = spec["containers"][0]
    assert (named_node(spec), spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("edge0", "Always", False)
    volumes = {v["name"]: v for v in spec["volumes"]}
    assert volumes["halimede-broker"]["secret"] == {"secretName": "halimede-edge-worker"}
    assert volumes["halimede-state"]["emptyDir"] == {"sizeLimit": "16Mi"}
    keeps = pod(built(service(edgeWorker={"keepHardSamples": {"maxMegabytes": 100}})))
    assert {"name": "halimede-state", "emptyDir": {"sizeLimit": "116Mi"}} in keeps["volumes"]
    mounts = {m["mountPath"]: m for m in worker["volumeMounts"]}
    assert mounts["/etc/halimede/broker"]["readOnly"] is True
    assert mounts["/downloads"]["readOnly"] is True
    assert "/var/lib/halimede/state" in mounts
    assert "halimede-cache" not in {m["name"] for m in worker["volumeMounts"]}, "the cache is the node's"
    secret = {v["name"]: v for v in pod(built(), "cloud")["volumes"]}["halimede-broker"]
    assert secret["secret"] == {"secretName": "halimede-cloud-worker"}
    privileged = replace(SETTINGS, privileged=True)
    kept = pod(built(service(edge=template(automountServiceAccountToken=True)), settings=privileged))
    assert kept["automountServiceAccountToken"] is True


def test_without_an_image_it_is_our_worker_with_probes_and_no_rights() -> None:
    worker = pod(built(service(edge=template({"args": ["--verbose"]}))))["containers"][0]
    assert (worker["name"], worker["image"]) == ("worker", SETTINGS.worker_image)
    assert worker["args"] == ["edge", "--verbose"]
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert worker[probe]["httpGet"] == {"path": path, "port": 9101}
    assert worker["securityContext"] == {
        "runAsNonRoot": True, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    assert "/tmp" in {m["mountPath"] for m in worker["volumeMounts"]}
    assert pod(built(service(edge=template({**OURS, "args": ["edge"]}))))["containers"][0]["args"] == ["edge"]


def test_what_our_worker_says_at_its_end_is_shown_and_its_metrics_have_a_port() -> None:
    def worker(first: dict[str, Any], **of_pod: Any) -> dict[str, Any]:
        settings = replace(SETTINGS, privileged=True)
        found: dict[str, Any] = pod(built(service(edge=template(first, **of_pod)), settings=settings))["containers"][0]
        return found

    metrics = {"name": "metrics", "containerPort": 9101, "protocol": "TCP"}
    assert worker(OURS)["ports"] == [metrics]
    assert worker(OURS)["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert worker({**OURS, "terminationMessagePolicy": "File"})["terminationMessagePolicy"] == "File"
    other = {"name": "x", "containerPort": 5000}
    assert worker({**OURS, "ports": [other]})["ports"] == [other, metrics]
    for theirs in ({"containerPort": 9101}, {"name": "metrics", "containerPort": 1}):
        assert worker({**OURS, "ports": [theirs]})["ports"] == [theirs]
    assert "ports" not in worker(OURS, hostNetwork=True), "it would be a port of the node"
    assert not worker(container()).keys() & {"ports", "terminationMessagePolicy"}, "it is the user's program"
    command = worker({**OURS, "command": ["python", "mine.py"]})
    assert (command["terminationMessagePolicy"], command.get("ports")) == ("FallbackToLogsOnError", None)


def test_what_the_user_says_of_our_own_container_stands() -> None:
    first = {**OURS, "securityContext": {"readOnlyRootFilesystem": False}, "readinessProbe": {"tcpSocket": {"port": 1}}}
    first["env"] = [{"name": "HALIMEDE_HTTP", "value": "off"}]
    worker = pod(built(service(edge=template(first, securityContext={"runAsUser": 0}))))["containers"][0]
    assert worker["securityContext"]["readOnlyRootFilesystem"] is False
    assert "runAsNonRoot" not in worker["securityContext"]
    assert worker["readinessProbe"] == {"tcpSocket": {"port": 1}}
    assert "livenessProbe" not in worker, "nothing would answer it"
    assert "ports" not in worker
    off = replace(SETTINGS, env={"HALIMEDE_HTTP": "off"})
    worker = pod(built(service(edge=template({})), settings=off))["containers"][0]
    assert not worker.keys() & {"livenessProbe", "readinessProbe", "ports"}


def test_a_command_on_our_own_image_is_the_users_program() -> None:
    worker = pod(built(service(edge=template({**OURS, "command": ["python", "mine.py"]}))))["containers"][0]
    assert (worker["command"], worker.get("args"), worker.get("livenessProbe")) == (["python", "mine.py"], None, None)
    assert worker["securityContext"]["runAsNonRoot"] is True


def test_pulling_is_as_the_operator_says() -> None:
    settings = replace(SETTINGS, pull_policy="Always", pull_secrets=("key", "user"))
    edge = template({}, imagePullSecrets=[{"name": "user"}])
    spec = pod(built(service(edge=edge), settings=settings))
    assert spec["imagePullSecrets"] == [{"name": "user"}, {"name": "key"}]
    assert {each["imagePullPolicy"] for each in (*spec["containers"], *spec["initContainers"])} == {"Always"}


def test_another_registry_is_written_before_halimedes_images_and_before_no_others() -> None:
    settings = PodSettings("broker", registry="registry.example", allowed_images=("registry.example/",))
    settings = replace(settings, host_paths=("/data",))
    ours, theirs = {"name": "worker", "image": "halimede/worker-reid:0.1.0"}, {"name": "x", "image": "quay.io/x:1"}
    of = built(service(edge=template(ours)), settings=settings)
    assert pod(of)["containers"][0]["image"] == "registry.example/halimede/worker-reid:0.1.0"
    assert reasons(built(service(edge=template(theirs)), settings=settings)) == ["ImageNotAllowed"]
    both = template(ours, initContainers=[{"name": "first", "image": "halimede/lc:0.1.0"}], containers=[ours, theirs])
    made = pod(built(service(edge=both), settings=replace(settings, allowed_images=())))
    assert [each["image"] for each in made["initContainers"]][-1] == "registry.example/halimede/lc:0.1.0"
    images = ["registry.example/halimede/worker-reid:0.1.0", "quay.io/x:1"]
    assert [each["image"] for each in made["containers"]] == images


@pytest.mark.parametrize("allowed", ["halimede/", "registry.example/"])
def test_an_image_is_allowed_by_its_name_in_the_template_or_in_the_registry(allowed: str) -> None:
    settings = PodSettings("broker", registry="registry.example", allowed_images=(allowed, "registry.example/mine"))
    settings = replace(settings, host_paths=("/data",))
    of = built(service(edge=template({"name": "worker", "image": "halimede/worker-reid:0.1.0"})), settings=settings)
    assert pod(of)["containers"][0]["image"] == "registry.example/halimede/worker-reid:0.1.0"
    volume = {"name": "v", "image": {"reference": "halimede/data:1"}}  # the kubelet pulls it by this name
    mounted = built(service(edge=template(volumes=[volume])), settings=settings)
    assert reasons(mounted) == ([] if allowed == "halimede/" else ["ImageNotAllowed"])


def test_the_neptune_form_gets_its_frameworks_image_its_script_and_its_parameters() -> None:
    spec = pod(built(neptune()))
    worker = spec["containers"][0]
    assert worker["image"] == "registry.example/tf:1.18"
    assert (worker["command"], worker["workingDir"]) == (["python3", "run.py"], "/data/code")
    assert named_node(spec) == "edge0"
    assert environment(built(neptune()))["nms_threshold"] == "0.6"
    assert pod(built(neptune(), settings=replace(SETTINGS, images={})))["containers"][0]["image"] == "tensorflow:1.18"
    said = service(edge=template({"image": "tensorflow:1.18"}))
    assert pod(built(said))["containers"][0]["image"] == "tensorflow:1.18", "the table is for the neptune form"


def test_a_folder_of_frames_is_mounted_where_the_worker_looks_for_it() -> None:
    of = built(service(edgeWorker={"source": {"path": "/data/frames"}}))
    assert {"name": "halimede-source", "mountPath": "/home/data/data/frames", "readOnly": True} in (
        pod(of)["containers"][0]["volumeMounts"]
    )
    assert not [v for v in pod(of, "cloud")["volumes"] if v["name"] == "halimede-source"]
    away = built(service(edgeWorker={"source": {"path": "/srv/frames"}}))
    assert reasons(away) == ["HostPathNotAllowed"]
    assert "spec.edgeWorker.source.path: '/srv/frames'" in away.problems[0].message


def test_text_of_users_is_never_expanded_in_what_we_say() -> None:
    labels = model(labels=["$(HALIMEDE_BROKER)", "$$"])
    given = environment(built(service(), labels))["MODEL_SPEC"]
    assert '"$$(HALIMEDE_BROKER)","$$$$"' in given


def test_nulls_mean_nothing() -> None:
    of = built(service(edge=template({**container(), "lifecycle": None}, hostname=None, initContainers=None)))
    assert "hostname" not in pod(of)
    assert "lifecycle" not in pod(of)["containers"][0]


def test_edge_workers_may_know_the_broker_by_an_address_of_their_own() -> None:
    settings = replace(SETTINGS, edge_broker="mqtts://place:8883")
    edge, cloud = (environment(built(settings=settings), role) for role in ("edge", "cloud"))
    assert (edge["HALIMEDE_BROKER"], edge["LC_SERVER"]) == ("mqtts://place:8883", "mqtts://place:8883")
    assert cloud["HALIMEDE_BROKER"] == SETTINGS.broker
