"""What an API server makes of an object: a model of its habits, for tests that no write is made twice.

Defaults are filled in, quantities written in their canonical form, what is zero or empty is left out, unknown fields
are dropped.
"""

from __future__ import annotations

import copy
import math
from typing import Any

from halimede.api.quantity import amount

PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
QUANTITY_MAPS = ("limits", "requests")
#: pointers to structs: kept, however empty they are
KEPT_EMPTY = {"emptyDir", "resources", "securityContext", "affinity", "lifecycle", "strategy"}


def normalise(body: dict[str, Any]) -> dict[str, Any]:
    """Return an object as the server gives it back."""
    body = copy.deepcopy(body)
    born = "2026-01-01T00:00:00Z"
    body["metadata"] |= {"uid": "u-1", "resourceVersion": "7", "generation": 1, "creationTimestamp": born}
    spec = body["spec"]
    if body["kind"] == "Deployment":
        _default(spec, replicas=1, progressDeadlineSeconds=600, revisionHistoryLimit=10)
        surge = {"maxSurge": "25%", "maxUnavailable": "25%"}
        spec.setdefault("strategy", {"type": "RollingUpdate", "rollingUpdate": surge})
        spec["template"].setdefault("metadata", {})["creationTimestamp"] = None
        _pod(spec["template"]["spec"])
    elif body["kind"] == "Service":
        _default(spec, clusterIP="10.0.0.7", clusterIPs=["10.0.0.7"], type="ClusterIP", sessionAffinity="None")
        _default(spec, ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack", internalTrafficPolicy="Cluster")
    else:
        _default(spec, minReplicas=1)
        if not spec.get("metrics"):
            target = {"type": "Utilization", "averageUtilization": 80}
            spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    written: dict[str, Any] = _written(body)
    return written


def _pod(pod: dict[str, Any]) -> None:
    _default(pod, dnsPolicy="ClusterFirst", schedulerName="default-scheduler", restartPolicy="Always")
    _default(pod, terminationGracePeriodSeconds=30, securityContext={})
    if name := pod.get("serviceAccountName") or pod.get("serviceAccount"):
        pod["serviceAccount"] = pod["serviceAccountName"] = name
    pod.pop("unknownField", None)
    for container in [*pod.get("containers", []), *pod.get("initContainers", [])]:
        _default(
            container, terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File", resources={}
        )
        _default(container, imagePullPolicy="IfNotPresent" if ":" in container.get("image", "") else "Always")
        container.pop("unknownField", None)
        for port in container.get("ports") or []:
            _default(port, protocol="TCP")
        for name in ("livenessProbe", "readinessProbe", "startupProbe"):
            if container.get(name):
                _default(container[name], **PROBE)
                if "httpGet" in container[name]:
                    _default(container[name]["httpGet"], path="/", scheme="HTTP")
        for variable in container.get("env") or []:
            if reference := (variable.get("valueFrom") or {}).get("fieldRef"):
                _default(reference, apiVersion="v1")
    for volume in pod.get("volumes") or []:
        if "secret" in volume:
            _default(volume["secret"], defaultMode=420)
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")
        if len(volume) == 1:
            volume["emptyDir"] = {}


def _default(part: dict[str, Any], **values: Any) -> None:
    for name, value in values.items():
        if not part.get(name) and part.get(name) is not False and not (name == "replicas" and name in part):
            part[name] = copy.deepcopy(value)


def _written(value: Any, parent: str = "", field: str = "") -> Any:
    if isinstance(value, dict):
        written = {key: _written(item, field, key) for key, item in value.items()}
        return {key: item for key, item in written.items() if _stays(key, item, value)}
    if isinstance(value, list):
        return [_written(item, field, field) for item in value]
    if field in {"sizeLimit", "averageValue"} or parent in QUANTITY_MAPS:
        return _canonical(value)
    return value


def _stays(key: str, value: Any, within: dict[str, Any]) -> bool:
    if key in KEPT_EMPTY and isinstance(value, dict):
        return True
    return bool(value) or (value is False and key not in {"hostNetwork", "readOnly"} and "mountPath" not in within)


def _canonical(value: Any) -> Any:
    """Write a quantity in thousandths or, where that is exact, in whole mebibytes, or as a plain number."""
    number = amount(value)
    if number is None:
        return value
    milli = math.ceil(number * 1000)
    if milli % 1000:
        return f"{milli}m"
    whole = milli // 1000
    return f"{whole >> 20}Mi" if whole and whole % (1 << 20) == 0 else str(whole)
