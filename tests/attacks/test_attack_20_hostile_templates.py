"""Attack 20: env, hostPath and image injection through a custom resource, in the hope of a node, a token or a secret.

Whoever may apply a service gets no pod that asks for more than the operator allows: the role has no object, the
condition names the field. (Its other half, a script in a label and a page of another site, is in test_page.py.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halimede.errors import InvalidFieldError
from services.gm.workloads.deployments import Built
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.template_policy import check_template
from tests.unit.gm.workloads.builds import built, environment, pod, reasons
from tests.unit.gm.workloads.world import SETTINGS, container, model, service, template

NARROW = replace(
    SETTINGS,
    host_paths=("/data", "/srv/models"),
    allowed_images=("registry.example/team/", "registry.example/mine", "docker.io/x"),
)


def edge(first: dict[str, Any] | None = None, settings: PodSettings = SETTINGS, **of_pod: Any) -> Built:
    return built(service(edge=template(first, **of_pod)), settings=settings)


def refused(of: Built, reason: str, field: str) -> None:
    assert reasons(of) == [reason]
    assert f"spec.edgeWorker.template.spec.{field}: " in of.problems[0].message
    assert of.unchanged == {"edge"}
    assert "helmet-deployment-edge" not in {body["metadata"]["name"] for body in of.objects}
    assert "helmet-deployment-cloud" in {body["metadata"]["name"] for body in of.objects}, "the other role goes on"


@pytest.mark.parametrize(
    "path",
    ["/", "/etc", "/etc/../data/x", "/data/../etc", "/data/..", "/datax", "data", "", "//etc", "/srv", "/./etc",
     "/var/run/docker.sock", "/var/lib/halimede/nodes", "/proc/self/root", "/data/x/../../etc"],
)  # fmt: skip
def test_attack_20_no_folder_of_the_node_beyond_the_list(path: str) -> None:
    of = edge(settings=NARROW, first=container(image="registry.example/team/x"), volumes=[_folder(path)])
    refused(of, "HostPathNotAllowed", "volumes[0].hostPath.path")
    assert "/data, /srv/models" in of.problems[0].message


@pytest.mark.parametrize("path", ["/data", "/data/", "/data/x", "//data/x", "/srv/models/a"])
def test_attack_20_what_the_operator_allows_is_allowed(path: str) -> None:
    assert edge(settings=replace(NARROW, allowed_images=()), volumes=[_folder(path)]).problems == ()


def test_attack_20_folders_of_the_node_are_mounted_read_only_everywhere() -> None:
    mount = {"name": "v", "mountPath": "/x", "readOnly": False, "recursiveReadOnly": "Disabled"}
    own = {"name": "own", "mountPath": "/own"}
    sidecar = {"name": "log", "image": "x", "volumeMounts": [mount]}
    mounts_of_init = [own, {**mount, "subPath": "a"}]
    restarted = {"name": "init", "image": "x", "restartPolicy": "Always", "volumeMounts": mounts_of_init}
    of_pod = {
        "containers": [container(volumeMounts=[mount, own]), sidecar],
        "initContainers": [restarted],
        "volumes": [_folder("/data/out"), {"name": "own", "emptyDir": {}}],
    }

    def mounts(settings: PodSettings) -> list[dict[str, Any]]:
        spec = pod(built(service(edge={"spec": of_pod}), settings=settings))
        each = [m for c in (*spec["containers"], *spec["initContainers"]) for m in c["volumeMounts"]]
        assert [m for m in each if m["name"] == "own"] == [own, own]
        return [m for m in each if m["name"] == "v"]

    closed = [(m["readOnly"], m["recursiveReadOnly"]) for m in mounts(SETTINGS)]
    assert closed == [(True, "IfPossible")] * 3
    for beside in ("/data/outside", "/data/ou", "/srv"):
        assert all(m["readOnly"] for m in mounts(replace(SETTINGS, writable_host_paths=(beside,))))
    opened = mounts(replace(SETTINGS, writable_host_paths=("//data/out/",)))
    assert [m["readOnly"] for m in opened] == [False] * 3


def test_attack_20_a_folder_that_workers_may_write_to_needs_no_second_leave() -> None:
    settings = replace(SETTINGS, host_paths=(), writable_host_paths=("/out",))
    of = built(service(edge=template(volumes=[_folder("/out")])), model("big"), settings=settings)
    assert of.problems == ()
    away = built(service(edge=template(volumes=[_folder("/data")])), model("big"), settings=settings)
    refused(away, "HostPathNotAllowed", "volumes[0].hostPath.path")
    assert "use /out" in away.problems[0].message


@pytest.mark.parametrize("path", ["/data/out/x", "/data/out//x/", "//data/out/x/y"])
def test_attack_20_nothing_below_a_folder_that_workers_write_to_is_mounted(path: str) -> None:
    # a worker puts a link to / at /data/out/x: as a path of a volume, the kubelet would follow it
    settings = replace(SETTINGS, writable_host_paths=("/data/out",))
    of = edge(settings=settings, volumes=[_folder(path)])
    refused(of, "HostPathNotAllowed", "volumes[0].hostPath.path")
    assert "/data/out itself" in of.problems[0].message
    assert reasons(built(service(edgeWorker={"source": {"path": path}}), settings=settings)) == ["HostPathNotAllowed"]
    assert edge(settings=settings, volumes=[_folder("/data/outside")]).problems == ()


@pytest.mark.parametrize("where", ["containers", "initContainers"])
@pytest.mark.parametrize("name", ["env", "volumeMounts", "volumeDevices"])
def test_attack_20_no_list_of_thousands(where: str, name: str) -> None:
    # types bound what they describe; nothing bounds an init container
    def template_of(count: int) -> dict[str, Any]:
        first = {"name": "x", "image": "x", name: [{"name": "a", "mountPath": f"/{i}"} for i in range(count)]}
        given = {"containers": [container()], "initContainers": []}
        return {**given, where: [first]}

    problems = list(check_template({"spec": template_of(1001)}, "t", SETTINGS, {}))
    assert [p.reason for p in problems] == ["InvalidTemplate"]
    assert f"t.spec.{where}[0].{name}: '1001 elements'" in problems[0].message
    assert list(check_template({"spec": template_of(1000)}, "t", SETTINGS, {})) == []


def test_attack_20_no_thousands_of_volumes() -> None:
    volumes = [{"name": f"v{i}", "emptyDir": {}} for i in range(1001)]
    [problem] = check_template({"spec": {"containers": [], "volumes": volumes}}, "t", SETTINGS, {})
    assert (problem.reason, "t.spec.volumes: '1001 elements'" in problem.message) == ("InvalidTemplate", True)


def test_attack_20_no_folder_at_all_unless_the_operator_says_so() -> None:
    of = edge(settings=replace(SETTINGS, host_paths=()), volumes=[_folder("/data")])
    assert reasons(of)[0] == "HostPathNotAllowed"
    assert "remove it: the operator allows no folders of nodes" in of.problems[0].message


@pytest.mark.parametrize(
    "image", ["evil/x", "registry.example.evil.com/team/x", "registry.example/teams/x", "docker.io/xy"]
)
@pytest.mark.parametrize("where", ["containers", "initContainers", "volumes"])
def test_attack_20_no_image_beyond_the_list(image: str, where: str) -> None:
    more: dict[str, Any] = {
        "containers": {"first": container(image=image)},
        "initContainers": {"first": {}, "initContainers": [container(image=image)]},
        "volumes": {"first": {}, "volumes": [{"name": "v", "image": {"reference": image}}]},
    }[where]
    of = edge(settings=NARROW, **more)
    assert (set(reasons(of)), of.unchanged) >= ({"ImageNotAllowed"}, {"edge"})
    assert f"template.spec.{where}[0].image: '{image}'" in of.problems[0].message


@pytest.mark.parametrize("image", ["registry.example/team/x:1", "docker.io/x", "docker.io/x/y", "docker.io/x:1", ""])
def test_attack_20_allowed_images_and_ours_run(image: str) -> None:
    assert edge({"image": image}, settings=NARROW).problems == ()


TOKENS = {"sources": [{"secret": {"name": "s"}}, {"serviceAccountToken": {"path": "t"}}]}
PRIVILEGES: list[tuple[dict[str, Any], str]] = [
    ({"hostNetwork": True}, "hostNetwork"),
    ({"hostPID": True}, "hostPID"),
    ({"hostIPC": True}, "hostIPC"),
    ({"serviceAccountName": "cluster-admin"}, "serviceAccountName"),
    ({"serviceAccount": "cluster-admin"}, "serviceAccount"),
    ({"automountServiceAccountToken": True}, "automountServiceAccountToken"),
    ({"volumes": [{"name": "v", "projected": TOKENS}]}, "volumes[0].projected.sources[1].serviceAccountToken"),
    ({"priorityClassName": "system-node-critical"}, "priorityClassName"),
    ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "securityContext.sysctls"),
    ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "securityContext.seccompProfile.type"),
    ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "securityContext.seLinuxOptions"),
    ({"securityContext": {"windowsOptions": {"hostProcess": True}}}, "securityContext.windowsOptions.hostProcess"),
    ({"volumes": [{"name": "v", "gitRepo": {"repository": "x"}}]}, "volumes[0].gitRepo"),
    ({"volumes": [{"name": "v", "nfs": {"server": "10.0.0.1", "path": "/"}}]}, "volumes[0].nfs"),
]
FROM_HOST = {"name": "v", "mountPath": "/v", "mountPropagation": "HostToContainer"}
RIGHTS: list[tuple[dict[str, Any], str]] = [
    ({"securityContext": {"privileged": True}}, "securityContext.privileged"),
    ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "securityContext.capabilities.add"),
    ({"securityContext": {"capabilities": {"add": "ALL"}}}, "securityContext.capabilities.add"),
    ({"securityContext": {"procMount": "Unmasked"}}, "securityContext.procMount"),
    ({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, "securityContext.appArmorProfile.type"),
    ({"ports": [{"containerPort": 1, "hostPort": 22}]}, "ports[0].hostPort"),
    ({"volumeMounts": [FROM_HOST]}, "volumeMounts[0].mountPropagation"),
    ({"livenessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}}}, "livenessProbe.httpGet.host"),
    ({"lifecycle": {"postStart": {"tcpSocket": {"host": "10.0.0.1"}}}}, "lifecycle.postStart.tcpSocket.host"),
]


@pytest.mark.parametrize(("of_pod", "field"), PRIVILEGES)
def test_attack_20_no_privilege_for_a_pod(of_pod: dict[str, Any], field: str) -> None:
    refused(edge(**of_pod), "PodNotAllowed", field)
    assert edge(settings=replace(SETTINGS, privileged=True), **of_pod).problems == ()


@pytest.mark.parametrize("where", ["containers[0]", "containers[1]", "initContainers[0]"])
@pytest.mark.parametrize(("of_container", "field"), RIGHTS)
def test_attack_20_no_privilege_for_a_container(of_container: dict[str, Any], field: str, where: str) -> None:
    hostile = container(**of_container) | {"name": "x"}
    spec = {
        "containers[0]": {"containers": [hostile]},
        "containers[1]": {"containers": [container(), hostile]},
        "initContainers[0]": {"containers": [container()], "initContainers": [hostile]},
    }[where]
    refused(built(service(edge={"spec": spec})), "PodNotAllowed", f"{where}.{field}")


def test_attack_20_nobody_takes_the_fetchers_place() -> None:
    refused(edge(initContainers=[{"name": "fetch", "image": "x"}]), "PodNotAllowed", "initContainers[0].name")


@pytest.mark.parametrize("name", ["halimede-cache", "halimede-broker", "halimede-anything"])
def test_attack_20_nobody_else_mounts_the_nodes_cache_or_our_credentials(name: str) -> None:
    mount = {"name": name, "mountPath": "/x"}
    refused(edge(container(volumeMounts=[mount])), "PodNotAllowed", "containers[0].volumeMounts[0].name")
    init = {"name": "x", "image": "x", "volumeMounts": [mount]}
    refused(edge(initContainers=[init]), "PodNotAllowed", "initContainers[0].volumeMounts[0].name")
    refused(edge(volumes=[{"name": name, "emptyDir": {}}]), "PodNotAllowed", "volumes[0].name")


@pytest.mark.parametrize(
    "path", ["/etc/halimede/broker", "/etc/halimede/broker/", "/downloads", "/var/lib/halimede/state"]
)
def test_attack_20_nobody_puts_files_in_place_of_ours(path: str) -> None:
    mine = {"name": "mine", "emptyDir": {}}
    of = edge(container(volumeMounts=[{"name": "mine", "mountPath": path}]), volumes=[mine])
    refused(of, "PodNotAllowed", "containers[0].volumeMounts[0].mountPath")


def test_attack_20_no_variable_of_a_template_goes_before_a_fact() -> None:
    facts = environment(built())
    for name in ("HALIMEDE_BROKER", "HALIMEDE_CREDENTIALS", "SERVICE_UID", "MODEL_URL", "WORKER_NAME", "NAMESPACE"):
        hostile = [{"name": name, "value": "evil"}, {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
        assert environment(edge(container(env=hostile)))[name] == facts[name]


def test_attack_20_no_label_takes_a_pod_into_another_service() -> None:
    hostile = {
        "app.sedna.io": "other-deployment-cloud", "jointinferenceservice.sedna.io/uid": "other",
        "app.kubernetes.io/managed-by": "evil", "halimede.io/template": "x",
    }  # fmt: skip
    of = built(service(edge={"metadata": {"labels": hostile}, **template()}))
    body = next(b for b in of.objects if b["metadata"]["name"] == "helmet-deployment-edge")
    labels = body["spec"]["template"]["metadata"]["labels"]
    assert body["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert not set(hostile.values()) & set(labels.values())


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.sampled_from(["", "/etc", "x", "halimede-cache"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["name", "image", "securityContext", "privileged", "capabilities", "add", "hostPath", "path", "labels", "env",
         "annotations", "volumeMounts", "httpGet", "host", "ports", "hostPort", "reference"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@example(of_pod={"initContainers": [{"name": []}]}, of_container={}, metadata={})
@given(
    of_pod=st.dictionaries(
        st.sampled_from(["initContainers", "imagePullSecrets", "securityContext", "hostNetwork", "serviceAccountName",
                         "priorityClassName", "restartPolicy", "ephemeralContainers", "tolerations"]), anything),
    of_container=st.dictionaries(
        st.sampled_from(["ports", "lifecycle", "livenessProbe", "startupProbe", "volumeDevices", "securityContext",
                         "envFrom"]), anything),
    metadata=st.dictionaries(st.sampled_from(["labels", "annotations", "name"]), anything),
)  # fmt: skip
def test_attack_20_whatever_stands_there_it_is_refused_or_harmless(
    of_pod: dict[str, Any], of_container: dict[str, Any], metadata: dict[str, Any]
) -> None:
    try:
        said = service(edge={"metadata": metadata, **template(container(**of_container), **of_pod)})
    except InvalidFieldError:
        return  # refused before it is stored
    of = built(said)
    if of.problems:
        assert of.unchanged == {"edge"}
        return
    spec = pod(of)
    assert not spec.get("hostNetwork")
    assert not any("hostPath" in v and not v["name"].startswith("halimede-") for v in spec["volumes"])
    for each in spec["containers"]:
        assert not (each.get("securityContext") or {}).get("privileged")
    msgspec.json.encode(list(of.objects))


def _folder(path: str) -> dict[str, Any]:
    return {"name": "v", "hostPath": {"path": path}}
