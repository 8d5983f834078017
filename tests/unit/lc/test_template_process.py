"""A pod template as a process: what is honoured, what is harmless, and what is refused by name."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.api.quantity import quantity
from halimede.api.worker_environment import WorkerEnvironment
from halimede.errors import InvalidFieldError
from services.lc.planning.template_process import Host, RefusalError, expand, to_process
from services.lc.supervisor.process import NeededPath, ProcessSpec
from tests.anything import attempt, json_values, texts

HOST = Host(python="/venv/bin/python", library="/app", uid=1000, gid=1000)
TOLD = WorkerEnvironment({"NAMESPACE": "default", "WORKER_NAME": "w"}, {"LC_PERIOD": "1", "DATA_PATH_PREFIX": ""})
STATE = Path("/state/w")


def process(container: dict[str, Any] | None = None, host: Host = HOST, role: Any = "edge", **pod: Any) -> ProcessSpec:
    template = {"spec": {"containers": [container or {}], **pod}}
    return to_process(template, role, TOLD, STATE, host)


def refusal(container: dict[str, Any] | None = None, **pod: Any) -> str:
    with pytest.raises(RefusalError) as caught:
        process(container, **pod)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_our_own_worker_finds_modules_on_the_path_of_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/rules")
    assert process({}).env["PYTHONPATH"] == "/rules:/app"
    own = [{"name": "PYTHONPATH", "value": "/mine"}]
    assert process({"env": own}).env["PYTHONPATH"] == "/mine:/rules:/app"


@pytest.mark.parametrize(
    "image",
    [
        "",
        "halimede/worker",
        "halimede/worker:0.1.0",
        "halimede/worker-gpu:1",
        "registry.local:5000/halimede/worker@sha256:abc",
        "halimede-worker:1",
        "ghcr.io/someone/halimede-worker:edge",
    ],
)
@pytest.mark.parametrize("role", ["edge", "cloud"])
def test_our_own_image_is_our_own_worker(image: str, role: str) -> None:
    spec = process({"image": image}, role=role)
    assert (spec.argv, spec.cwd) == (("/venv/bin/python", "-m", "halimede", "worker", role), str(STATE))
    assert (spec.env["PYTHONPATH"], spec.env["WORKER_NAME"]) == ("/app", "w")


@pytest.mark.parametrize(
    "image", ["nginx", "kubeedge/sedna-example:v0.3", "halimede/gm", "nothalimede/workers", "x/halimede-workers:1"]
)
def test_a_foreign_image_without_a_command_is_refused(image: str) -> None:
    text = refusal({"image": image})
    assert image in text
    assert "spec.edgeWorker.template.spec.containers[0].image" in text
    assert "add command" in text
    assert "add command" in refusal({"image": image, "args": ["serve"]})


@pytest.mark.parametrize("python", ["python", "python3"])
def test_python_is_the_python_of_the_controller_and_any_other_command_runs_as_it_stands(python: str) -> None:
    spec = process({"image": "tensorflow:1.15", "command": [python, "big.py"], "args": ["--x"], "workingDir": "/code"})
    assert (spec.argv, spec.cwd) == (("/venv/bin/python", "big.py", "--x"), "/code")
    assert "PYTHONPATH" not in spec.env
    assert process({"image": "any", "command": ["ffmpeg", "-v"]}).argv == ("ffmpeg", "-v")


def test_arguments_are_given_to_our_own_worker() -> None:
    assert process({"args": ["--verbose"]}).argv[-2:] == ("edge", "--verbose")


def test_references_are_expanded_in_order_and_once_as_kubernetes_does() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)-$(WORKER_NAME)-$(C)"},
        {"name": "C", "value": "$$(A)"},
    ]
    spec = process({"env": env, "command": ["run", "$(B)"], "args": ["$(C)", "$$", "$A", "$(", "$(NONE)"]})
    assert (spec.env["B"], spec.env["C"]) == ("1-w-$(C)", "$(A)")
    assert spec.argv == ("run", "1-w-$(C)", "$(A)", "$", "$A", "$(", "$(NONE)")
    assert expand("$(X)", {"X": "$(X)$(X)"}) == "$(X)$(X)"


def test_the_template_may_change_defaults_but_not_who_the_worker_is() -> None:
    env = [{"name": "LC_PERIOD", "value": "30"}, {"name": "NAMESPACE", "value": "kube-system"}]
    spec = process({"env": env})
    assert (spec.env["LC_PERIOD"], spec.env["NAMESPACE"]) == ("30", "default")


def test_limits_become_memory_and_threads_unless_the_template_sets_the_threads() -> None:
    spec = process({"resources": {"limits": {"memory": "512Mi", "cpu": "1500m"}, "requests": {"cpu": "4"}}})
    assert (spec.memory_bytes, spec.env["OMP_NUM_THREADS"]) == (512 * 1024**2, "2")
    env = [{"name": "OMP_NUM_THREADS", "value": "7"}]
    assert process({"resources": {"limits": {"cpu": 1}}, "env": env}).env["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [({}, 10.0), ({"terminationGracePeriodSeconds": 0}, 0.0), ({"terminationGracePeriodSeconds": 45}, 45.0)],
)
def test_the_grace_period(given: dict[str, Any], seconds: float) -> None:
    assert process(**given).grace_s == seconds


@pytest.mark.parametrize(
    ("type_", "needed"),
    [
        ("", NeededPath("/data")),
        ("Directory", NeededPath("/data", "folder")),
        ("DirectoryOrCreate", NeededPath("/data", "folder", create=True)),
        ("File", NeededPath("/data", "file")),
    ],
)
def test_a_host_path_at_its_own_path_must_be_there(type_: str, needed: NeededPath) -> None:
    volumes = [{"name": "d", "hostPath": {"path": "/data", "type": type_}}]
    assert process({"volumeMounts": [{"name": "d", "mountPath": "/data/"}]}, volumes=volumes).paths == (needed,)


HARMLESS_POD = {
    "nodeName": "edge0", "nodeSelector": {"a": "b"}, "restartPolicy": "Always", "dnsPolicy": "ClusterFirstWithHostNet",
    "hostNetwork": True, "tolerations": [{"operator": "Exists"}], "serviceAccountName": "default",
    "securityContext": {}, "schedulerName": "default-scheduler", "initContainers": [],
}  # fmt: skip
HARMLESS_CONTAINER = {
    "name": "worker", "imagePullPolicy": "IfNotPresent", "ports": [{"containerPort": 80}],
    "livenessProbe": {"httpGet": {"path": "/", "port": 80}}, "readinessProbe": {"exec": {"command": ["true"]}},
    "startupProbe": {"tcpSocket": {"port": 1}}, "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File", "resources": {}, "envFrom": [], "stdin": False,
    "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True, "privileged": False},
}  # fmt: skip


def test_what_only_matters_to_kubernetes_is_harmless() -> None:
    assert process(HARMLESS_CONTAINER, **HARMLESS_POD) == process()


@pytest.mark.parametrize(
    ("prefix", "field", "value"),
    [
        ("", "initContainers", [{"name": "download"}]),
        ("", "affinity", {"nodeAffinity": {}}),
        ("", "hostAliases", [{"ip": "10.0.0.1"}]),
        ("", "runtimeClassName", "gvisor"),
        ("", "activeDeadlineSeconds", 60),
        ("", "restartPolicy", "Never"),
        ("", "contaners", [{}]),
        ("containers[0].", "envFrom", [{"secretRef": {"name": "s"}}]),
        ("containers[0].", "lifecycle", {"preStop": {"exec": {"command": ["true"]}}}),
        ("containers[0].", "tty", True),
        ("containers[0].", "volumeDevices", [{"name": "d"}]),
        ("containers[0].", "comand", ["sh"]),
    ],
)
def test_fields_that_cannot_be_honoured_are_named(prefix: str, field: str, value: object) -> None:
    text = refusal({field: value}) if prefix else refusal(**{field: value})
    assert text.startswith(f"spec.edgeWorker.template.spec.{prefix}{field}: ")


@pytest.mark.parametrize(
    ("context", "field"),
    [
        ({"runAsUser": 0}, "runAsUser"),
        ({"runAsGroup": 5}, "runAsGroup"),
        ({"privileged": True}, "privileged"),
        ({"readOnlyRootFilesystem": True}, "readOnlyRootFilesystem"),
        ({"allowPrivilegeEscalation": False}, "allowPrivilegeEscalation"),
        ({"capabilities": {"drop": ["ALL"]}}, "capabilities"),
        ({"seccompProfile": {"type": "RuntimeDefault"}}, "seccompProfile"),
    ],
)
def test_a_protection_that_would_not_be_there_is_refused(context: dict[str, Any], field: str) -> None:
    assert f"securityContext.{field}" in refusal({"securityContext": context})
    assert f"securityContext.{field}" in refusal(securityContext=context)


def test_not_to_run_as_root_is_refused_only_to_root() -> None:
    root = Host(python="python", library="/app", uid=0, gid=0)
    process({"securityContext": {"runAsNonRoot": True}})
    process({"securityContext": {"runAsNonRoot": False, "runAsUser": 0}}, root)
    with pytest.raises(RefusalError, match="runAsNonRoot"):
        process({"securityContext": {"runAsNonRoot": True}}, root)


@pytest.mark.parametrize(
    ("mount", "volume", "says"),
    [
        ({"mountPath": "/in"}, {"hostPath": {"path": "/out"}}, "set mountPath to the same"),
        ({"mountPath": "/in"}, {"emptyDir": {}}, "only hostPath works"),
        ({"mountPath": "/in"}, {"configMap": {"name": "c"}}, "only hostPath works"),
        ({"mountPath": "/in", "readOnly": True}, {"hostPath": {"path": "/in"}}, "readOnly"),
        ({"mountPath": "/in", "subPath": "x"}, {"hostPath": {"path": "/in"}}, "subPath"),
        ({"mountPath": "/in"}, {"hostPath": {"path": "/in", "type": "Socket"}}, "'Socket' is not supported"),
        ({"mountPath": "in"}, {"hostPath": {"path": "in"}}, "absolute path"),
        ({"mountPath": "/a/../b"}, {"hostPath": {"path": "/a/../b"}}, "absolute path"),
    ],
)
def test_volumes_that_a_process_cannot_have(mount: dict[str, Any], volume: dict[str, Any], says: str) -> None:
    assert says in refusal({"volumeMounts": [{"name": "v", **mount}]}, volumes=[{"name": "v", **volume}])


def test_a_second_container_is_refused() -> None:
    assert "containers[1]" in refusal(containers=[{}, {}])


SECRET = {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ({"env": [{"name": "A", "value": 1}]}, "put it in quotes"),
        ({"resources": {"limits": {"memory": "much"}}}, "positive quantity"),
        ({"resources": {"limits": ["cpu"]}}, "write a mapping"),
        ({"command": "run"}, "command"),
        ({"env": [SECRET]}, "env[0].valueFrom"),
        ({"env": [SECRET]}, "PASSWORD"),
        ({"volumeMounts": [{"name": "v", "mountPath": "/x"}]}, "there is no volume 'v'"),
        *(
            ({"command": ["run"], "workingDir": path}, "containers[0].workingDir: ")
            for path in ("a", "./a", "../a", "~/a")
        ),
    ],
)
def test_mistakes_say_where_and_what(container: dict[str, Any], says: str) -> None:
    assert says in refusal(container)


def test_equal_specs_have_equal_digests_and_any_change_another() -> None:
    first = process({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]})
    same = process({"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]})
    assert first.digest == same.digest
    altered = [process(), process({"args": ["x"]}), process({"workingDir": "/"})]
    assert len({spec.digest for spec in (first, *altered)}) == 4


@pytest.mark.parametrize("context", ["root", ["root"], 7, True])
def test_a_security_context_that_is_no_mapping_is_a_mistake_in_that_field(context: object) -> None:
    assert "template.spec.securityContext" in refusal(securityContext=context)
    assert "template.spec.containers[0].securityContext" in refusal({"securityContext": context})


@pytest.mark.parametrize("policy", [["Always"], {"a": 1}, 7, True])
def test_a_restart_policy_that_is_no_text_is_a_mistake_in_that_field(policy: object) -> None:
    assert "template.spec.restartPolicy" in refusal(restartPolicy=policy)


def test_what_is_null_asks_for_nothing() -> None:
    assert process({"securityContext": None}, securityContext=None, restartPolicy=None) == process()


@pytest.mark.parametrize(
    ("name", "value"),
    [("memory", "100E"), ("memory", "9e99"), ("memory", 2**63), ("cpu", "9e99"), ("cpu", "5k"),
     ("nvidia.com/gpu", 1), ("ephemeral-storage", "1Gi")],
)  # fmt: skip
def test_limits_that_a_process_has_no_notion_of_or_no_kernel_takes_are_refused(name: str, value: object) -> None:
    assert f"containers[0].resources.limits.{name}: " in refusal({"resources": {"limits": {name: value}}})


def test_the_largest_memory_limit_is_taken() -> None:
    assert process({"resources": {"limits": {"memory": str(2**63 - 1)[:18]}}}).memory_bytes
    assert process({"resources": {"limits": {"memory": "7Ei"}}}).memory_bytes == 7 * 2**60


@given(json_values | texts | st.from_regex(r"\A[0-9.]{1,6}[eE]?[+-]?[0-9]{0,3}[a-zA-Z]{0,2}\Z"))
def test_any_value_is_a_positive_quantity_or_refused(value: object) -> None:
    limit, refused = attempt(quantity, "limits.cpu", value, refusal=InvalidFieldError)
    if limit is None:
        assert refused.field == "limits.cpu"
    else:
        assert 0 < limit < Fraction(10) ** 120
