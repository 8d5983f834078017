"""What the API server refuses in pods and pod templates."""

from __future__ import annotations

import re
from typing import Any

from tests.kubernetes.double import names
from tests.kubernetes.double.errors import Cause, duplicate, forbidden, invalid, required, unsupported
from tests.kubernetes.double.quantities import value_of

Body = dict[str, Any]
_ENV = re.compile(r"^[ -<>-~]+$")
_PORT = re.compile(r"^(?=.*[a-z])[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
_MUTABLE = ("image",)


def pod_causes(spec: Body, at: str) -> list[Cause]:
    causes: list[Cause] = []
    volumes: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or []):
        name, where = volume.get("name", ""), f"{at}.volumes[{index}]"
        causes += _name(name, f"{where}.name", volumes)
        sources = volume.keys() - {"name"}
        if len(sources) > 1:
            causes.append(forbidden(f"{where}.{max(sources)}", "may not specify more than 1 volume type"))
        path = (volume.get("hostPath") or {}).get("path", "")
        if ".." in path.split("/"):
            causes.append(invalid(f"{where}.hostPath.path", path, "must not contain '..'"))
    containers = spec.get("containers") or []
    if not containers:
        causes.append(required(f"{at}.containers"))
    seen: set[str] = set()
    for part in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(part) or []):
            causes += _container(container, f"{at}.{part}[{index}]", volumes, seen)
    causes += names.label_causes(spec.get("nodeSelector"), f"{at}.nodeSelector")
    for field in ("nodeName", "serviceAccountName"):
        if (name := spec.get(field)) and (problem := names.subdomain_problem(name)):
            causes.append(invalid(f"{at}.{field}", name, problem))
    return causes + _choices(spec, at)


def _choices(spec: Body, at: str) -> list[Cause]:
    choices = {
        "restartPolicy": ["Always", "Never", "OnFailure"],
        "dnsPolicy": ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    }
    return [unsupported(f"{at}.{name}", spec.get(name), ok) for name, ok in choices.items() if spec.get(name) not in ok]


def _name(name: str, at: str, seen: set[str]) -> list[Cause]:
    causes = []
    if not name:
        causes.append(required(at))
    elif problem := names.label_problem(name):
        causes.append(invalid(at, name, problem))
    if name in seen:
        causes.append(duplicate(at, name))
    seen.add(name)
    return causes


def _container(container: Body, at: str, volumes: set[str], seen: set[str]) -> list[Cause]:
    causes = _name(container.get("name", ""), f"{at}.name", seen)
    image = container.get("image", "")
    if not image:
        causes.append(required(f"{at}.image"))
    elif image != image.strip():
        causes.append(invalid(f"{at}.image", image, "must not have leading or trailing whitespace"))
    policies = ["Always", "IfNotPresent", "Never"]
    if container.get("imagePullPolicy") not in policies:
        causes.append(unsupported(f"{at}.imagePullPolicy", container.get("imagePullPolicy"), policies))
    for index, env in enumerate(container.get("env") or []):
        where, name = f"{at}.env[{index}]", env.get("name", "")
        if not name:
            causes.append(required(f"{where}.name"))
        elif not _ENV.match(name):
            said = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            causes.append(invalid(f"{where}.name", name, said))
        if env.get("value") and env.get("valueFrom"):
            causes.append(invalid(f"{where}.valueFrom", "", "may not be specified when `value` is not empty"))
    ports: set[str] = set()
    for index, port in enumerate(container.get("ports") or []):
        causes += _container_port(port, f"{at}.ports[{index}]", ports)
    mounts: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or []):
        causes += _mount(mount, f"{at}.volumeMounts[{index}]", volumes, mounts)
    return causes + _resources(container.get("resources") or {}, f"{at}.resources") + _probes(container, at)


def _container_port(port: Body, at: str, seen: set[str]) -> list[Cause]:
    causes = []
    if not 1 <= port.get("containerPort", 0) <= 65535:
        said = "must be between 1 and 65535, inclusive"
        causes.append(invalid(f"{at}.containerPort", port.get("containerPort"), said))
    name = port.get("name", "")
    if name and (len(name) > 15 or not _PORT.match(name) or "--" in name):
        said = "must be no more than 15 characters, with at least one letter or number (a-z, 0-9)"
        causes.append(invalid(f"{at}.name", name, said))
    if name and name in seen:
        causes.append(duplicate(f"{at}.name", name))
    seen.add(name)
    return causes


def _mount(mount: Body, at: str, volumes: set[str], seen: set[str]) -> list[Cause]:
    causes = []
    if mount.get("name") not in volumes:
        causes.append(Cause("FieldValueNotFound", f"{at}.name", f'Not found: "{mount.get("name", "")}"'))
    path = mount.get("mountPath", "")
    if not path:
        causes.append(required(f"{at}.mountPath"))
    if path in seen:
        causes.append(invalid(f"{at}.mountPath", path, "must be unique"))
    seen.add(path)
    for field in ("subPath", "subPathExpr"):
        text = mount.get(field, "")
        if text.startswith("/"):
            causes.append(invalid(f"{at}.{field}", text, "must be a relative path"))
        if ".." in text.split("/"):
            causes.append(invalid(f"{at}.{field}", text, "must not contain '..'"))
    if mount.get("subPath") and mount.get("subPathExpr"):
        said = "subPathExpr and subPath are mutually exclusive"
        causes.append(invalid(f"{at}.subPathExpr", mount["subPathExpr"], said))
    return causes


def _resources(resources: Body, at: str) -> list[Cause]:
    causes = []
    limits = resources.get("limits") or {}
    for part in ("limits", "requests"):
        for name, text in (resources.get(part) or {}).items():
            value = value_of(text)
            if value is None or value < 0:
                causes.append(invalid(f"{at}.{part}[{name}]", text, "must be greater than or equal to 0"))
            elif part == "requests" and name in limits and value > (value_of(limits[name]) or 0):
                said = f"must be less than or equal to {name} limit of {limits[name]}"
                causes.append(invalid(f"{at}.requests", text, said))
    return causes


def _probes(container: Body, at: str) -> list[Cause]:
    causes = []
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if not probe:
            continue
        handlers = [each for each in ("exec", "httpGet", "tcpSocket", "grpc") if each in probe]
        if not handlers:
            causes.append(required(f"{at}.{name}", "must specify a handler type"))
        if len(handlers) > 1:
            causes.append(forbidden(f"{at}.{name}.{handlers[1]}", "may not specify more than 1 handler type"))
        if name != "readinessProbe" and probe.get("successThreshold", 1) != 1:
            causes.append(invalid(f"{at}.{name}.successThreshold", probe["successThreshold"], "must be 1"))
    return causes


def pod_changes(old: Body, new: Body) -> list[Cause]:
    """Almost nothing of a pod can be changed."""

    def fixed(spec: Body) -> Body:
        kept = {name: value for name, value in spec.items() if name not in {"activeDeadlineSeconds", "tolerations"}}
        for part in ("containers", "initContainers"):
            if part in kept:
                kept[part] = [{k: v for k, v in each.items() if k not in _MUTABLE} for each in kept[part]]
        return kept

    before, after = fixed(old), fixed(new)
    if before == after:
        return []
    said = (
        "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
        "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
        "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
    )
    return [forbidden("spec", said)]
