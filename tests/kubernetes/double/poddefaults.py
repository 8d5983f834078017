"""Defaults of pods and pod templates."""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def pod_alone(spec: Body) -> None:
    """Fill in what only a pod gets, not a template (in place): by defaults, and by admission."""
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("priority", 0)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        matching = [each for each in tolerations if each.get("key") in {None, key}]
        if not any(each.get("effect") in {None, "NoExecute"} for each in matching):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        resources = container.get("resources") or {}
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **resources.get("requests", {})}


def pod_spec(spec: Body) -> None:
    """Fill in the spec of a pod or of a template (in place)."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    if "serviceAccountName" in spec:
        spec["serviceAccount"] = spec["serviceAccountName"]
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        _container(container)
    for volume in spec.get("volumes", []):
        _volume(volume)


def _container(container: Body) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    image = container.get("image", "")
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    latest = "@" not in image and tag in {"", "latest"}
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    for port in container.get("ports", []):
        port.setdefault("protocol", "TCP")
    for env in container.get("env", []):
        if field := (env.get("valueFrom") or {}).get("fieldRef"):
            field.setdefault("apiVersion", "v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe := container.get(name):
            for key, value in _PROBE.items():
                probe.setdefault(key, value)
            if get := probe.get("httpGet"):
                get.setdefault("path", "/")
                get.setdefault("scheme", "HTTP")


def _volume(volume: Body) -> None:
    for source in ("secret", "configMap"):
        if source in volume:
            volume[source].setdefault("defaultMode", 0o644)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    if len(volume) == 1:
        volume["emptyDir"] = {}
