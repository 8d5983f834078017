"""Restricts what a pod template may request of a node (``check_template``): users who apply services gain no rights.

It follows Kubernetes' Pod Security Standards: no namespace, privilege, port or folder of the host, and no service
account or token of one. The operator's lists (``PodSettings``) allow folders and images. Nothing is ignored or removed
silently: a template that requests more gets a problem that names the field, and no new pod. ``pod_template.py`` adds
that folders of the node are mounted read-only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from halimede.errors import InvalidFieldError
from services.gm.service_status import Problem
from services.gm.workloads.node_placement import check_placement
from services.gm.workloads.pod_settings import PodSettings, plain_path
from services.gm.workloads.pod_status import FETCHES

#: the most elements of a list in a pod or container: real ones have dozens
MOST_ELEMENTS = 1000
#: prefix of GM's volumes: a template that could name them could mount the model cache of a whole node
RESERVED = "halimede-"
#: what a user can do about a field that is not allowed
ASK = "remove it, or ask the operator to allow it"
#: fields of a volume that are allowed; folders of the host are checked
VOLUMES = frozenset({
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "hostPath", "image", "name", "persistentVolumeClaim",
    "projected", "secret",
})  # fmt: skip
#: Linux capabilities that a container may add
HARMLESS_CAPABILITIES = frozenset({"NET_BIND_SERVICE"})
#: fields of a container with probes
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
#: prefix of annotations that set AppArmor's profile of a container
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def check_template(
    template: Mapping[str, Any], at: str, settings: PodSettings, table: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield a problem for each field of a pod template that is not allowed.

    ``template``: was parsed, but fields that ``PodTemplate`` does not type may hold any value. ``at``: its path in the
    resource. ``table``: images by those that they will replace.
    """
    metadata, pod = _mapping(template.get("metadata")), template["spec"]
    for name in ("initContainers", "imagePullSecrets"):
        elements = [] if pod.get(name) is None else pod[name]
        if not isinstance(elements, list) or not all(isinstance(item, Mapping) for item in elements):
            yield _problem("InvalidTemplate", f"{at}.spec.{name}", elements, "write a list of mappings")
    yield from _check_metadata(metadata, f"{at}.metadata")
    yield from _check_length(pod, "volumes", f"{at}.spec")
    yield from _check_volumes(pod, f"{at}.spec", settings)
    yield from (Problem("InvalidTemplate", str(error)) for error in check_placement(pod, f"{at}.spec"))
    for name in ("initContainers", "containers"):
        for i, container in enumerate(_list(pod.get(name))):
            here = f"{at}.spec.{name}[{i}]"
            for part in ("env", "volumeMounts", "volumeDevices"):
                yield from _check_length(container, part, here)
            yield from _check_names(container, here)
            yield from check_image(f"{here}.image", _map_image(container.get("image"), table), settings, located=True)
            if not settings.privileged:
                yield from _check_container(container, here)
    if pod.get("restartPolicy") not in (None, "", "Always"):
        fix = "workers always restart: write Always or remove it"
        yield _problem("InvalidTemplate", f"{at}.spec.restartPolicy", pod["restartPolicy"], fix)
    if not settings.privileged:
        yield from _check_pod(pod, f"{at}.spec")


def check_host_path(field: str, path: str, settings: PodSettings) -> Iterator[Problem]:
    """Yield a problem if a folder or file of the node is not allowed. ``field``: path of the field that names it."""
    if "://" in path or path.partition(":")[0].strip("/") in {"http", "https"}:
        fix = "it is an address, and this is a folder of the node: name a Model with this url, or use source.url"
        yield _problem("InvalidTemplate", field, path, fix)
        return
    if path.startswith("/") and ".." not in PurePosixPath(path).parts:
        plain = plain_path(path)
        if above := [p for p in settings.writable_host_paths if plain_path(p) in plain.parents]:
            fix = f"use {above[0]} itself: workers write there, and a link in it could lead anywhere on the node"
            yield _problem("HostPathNotAllowed", field, path, f"{fix} (writableHostPaths in GM's settings for pods)")
            return
        if may_write(path, settings) or any(plain.is_relative_to(plain_path(p)) for p in settings.host_paths):
            return
    allowed = [f"a path below {', '.join(settings.host_paths)}"] if settings.host_paths else []
    allowed += settings.writable_host_paths
    fix = f"use {' or '.join(allowed)}" if allowed else "remove it: the operator allows no folders of nodes"
    yield _problem("HostPathNotAllowed", field, path, f"{fix} (hostPaths in GM's settings for pods)")


def may_write(path: str, settings: PodSettings) -> bool:
    """Whether templates may mount a folder of the node writable."""
    return plain_path(path) in map(plain_path, settings.writable_host_paths)


def check_image(field: str, image: object, settings: PodSettings, *, located: bool = False) -> Iterator[Problem]:
    """Yield a problem if an image is none of the settings' images, and has no allowed prefix; nothing without prefixes.

    ``located``: whether the settings' registry is written before it if it is halimede's; then the prefix may be that of
    either name.
    """
    if not image or not settings.allowed_images:
        return
    names = {str(image), settings.with_registry(str(image))} if located else {str(image)}
    if names & {settings.worker_image, *settings.images.values()}:
        return
    if not any(_is_below(name, prefix) for name in names for prefix in settings.allowed_images):
        fix = f"use an image below {', '.join(settings.allowed_images)} (allowedImages in GM's settings for pods)"
        yield _problem("ImageNotAllowed", field, image, fix)


def _map_image(image: object, table: Mapping[str, str]) -> object:
    """Return the image that replaces another one; the same image if none does."""
    return table.get(image, image) if isinstance(image, str) else image


def _is_below(image: str, prefix: str) -> bool:
    """Whether an image is below a prefix: ``example.org`` is no prefix of ``example.org.evil.com/x``."""
    suffix = image.removeprefix(prefix)
    return image.startswith(prefix) and (not suffix or prefix[-1] in "/:@" or suffix[0] in "/:@")


def _check_metadata(metadata: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """Check labels and annotations."""
    for name in ("labels", "annotations"):
        entries = {} if metadata.get(name) is None else metadata[name]
        if not isinstance(entries, Mapping) or not all(isinstance(value, str) for value in entries.values()):
            yield _problem("InvalidTemplate", f"{at}.{name}", entries, "write a mapping of strings")
            continue
        if name == "annotations":
            for key, value in entries.items():
                if key.startswith(APPARMOR) and value == "unconfined":
                    yield _not_allowed(f"{at}.annotations.{key}", value)


def _check_length(within: Mapping[str, Any], name: str, at: str) -> Iterator[Problem]:
    """Refuse a list with too many elements."""
    elements = within.get(name)
    if isinstance(elements, list) and len(elements) > MOST_ELEMENTS:
        yield _problem("InvalidTemplate", f"{at}.{name}", f"{len(elements)} elements", f"write at most {MOST_ELEMENTS}")


def _check_pod(pod: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """Check the fields of a pod's spec that give rights, apart from volumes and containers."""
    for name in ("hostNetwork", "hostPID", "hostIPC", "ephemeralContainers", "automountServiceAccountToken"):
        if pod.get(name):
            yield _not_allowed(f"{at}.{name}", pod[name])
    for name in ("serviceAccountName", "serviceAccount"):
        if pod.get(name) not in (None, "", "default"):
            yield _not_allowed(f"{at}.{name}", pod[name])
    if str(pod.get("priorityClassName") or "").startswith("system-"):
        yield _not_allowed(f"{at}.priorityClassName", pod["priorityClassName"])
    security = _mapping(pod.get("securityContext"))
    yield from _check_security(security, f"{at}.securityContext")
    if security.get("sysctls"):
        yield _not_allowed(f"{at}.securityContext.sysctls", security["sysctls"])


def _check_container(container: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """Check the fields of a container that give rights."""
    security = _mapping(container.get("securityContext"))
    yield from _check_security(security, f"{at}.securityContext")
    if security.get("privileged"):
        yield _not_allowed(f"{at}.securityContext.privileged", security["privileged"])
    if security.get("procMount") not in (None, "", "Default"):
        yield _not_allowed(f"{at}.securityContext.procMount", security["procMount"])
    added = _mapping(security.get("capabilities")).get("add") or []
    if not isinstance(added, list) or not all(isinstance(a, str) and a in HARMLESS_CAPABILITIES for a in added):
        yield _not_allowed(f"{at}.securityContext.capabilities.add", added)
    for i, mount in enumerate(_list(container.get("volumeMounts"))):
        if mount.get("mountPropagation") not in (None, "", "None"):
            yield _not_allowed(f"{at}.volumeMounts[{i}].mountPropagation", mount["mountPropagation"])
    for i, port in enumerate(_list(container.get("ports"))):
        if port.get("hostPort"):
            yield _not_allowed(f"{at}.ports[{i}].hostPort", port["hostPort"])
    handlers = [(name, container.get(name)) for name in PROBES]
    handlers += [(f"lifecycle.{name}", hook) for name, hook in _mapping(container.get("lifecycle")).items()]
    for name, handler in handlers:
        for kind in ("httpGet", "tcpSocket"):
            if host := _mapping(_mapping(handler).get(kind)).get("host"):
                yield _not_allowed(f"{at}.{name}.{kind}.host", host)


def _check_security(security: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """Check the fields of a security context that pods and containers share."""
    for name in ("seccompProfile", "appArmorProfile"):
        if _mapping(security.get(name)).get("type") == "Unconfined":
            yield _not_allowed(f"{at}.{name}.type", "Unconfined")
    if _mapping(security.get("windowsOptions")).get("hostProcess"):
        yield _not_allowed(f"{at}.windowsOptions.hostProcess", value=True)
    if {name for name, value in _mapping(security.get("seLinuxOptions")).items() if value} - {"level"}:
        yield _not_allowed(f"{at}.seLinuxOptions", security["seLinuxOptions"])


def _check_volumes(pod: Mapping[str, Any], at: str, settings: PodSettings) -> Iterator[Problem]:
    """Check the names and kinds of a pod's volumes."""
    for i, volume in enumerate(_list(pod.get("volumes"))):
        here = f"{at}.volumes[{i}]"
        if volume["name"].startswith(RESERVED):
            fix = f"names with {RESERVED} are reserved: rename it"
            yield _problem("PodNotAllowed", f"{here}.name", volume["name"], fix)
        if (folder := volume.get("hostPath")) is not None:
            yield from check_host_path(f"{here}.hostPath.path", folder["path"], settings)
        yield from check_image(f"{here}.image", _mapping(volume.get("image")).get("reference"), settings)
        if settings.privileged:
            continue
        for kind in sorted(volume.keys() - VOLUMES):
            yield _not_allowed(f"{here}.{kind}", volume[kind])
        for j, source in enumerate(_list(_mapping(volume.get("projected")).get("sources"))):
            if token := source.get("serviceAccountToken"):
                yield _not_allowed(f"{here}.projected.sources[{j}].serviceAccountToken", token)


def _check_names(container: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """Refuse names of a container and of its mounts that conflict with GM's own."""
    if (name := str(container.get("name"))) in FETCHES:
        yield _problem("PodNotAllowed", f"{at}.name", name, "the name is reserved for model downloads: rename it")
    for kind in ("volumeMounts", "volumeDevices"):
        for i, mount in enumerate(_list(container.get(kind))):
            if str(mount.get("name", "")).startswith(RESERVED):
                fix = f"names with {RESERVED} are reserved: mount a volume of the template"
                yield _problem("PodNotAllowed", f"{at}.{kind}[{i}].name", mount["name"], fix)


def _not_allowed(field: str, value: object) -> Problem:
    """Return the problem that only an operator can allow a field."""
    return _problem("PodNotAllowed", field, value, f"{ASK} (privileged in GM's settings for pods)")


def _problem(reason: str, field: str, value: object, fix: str) -> Problem:
    """Return the problem with a field's value; ``fix``: what the user can do."""
    return Problem(reason, str(InvalidFieldError(field, value, fix)))


def _mapping(value: object) -> Mapping[str, Any]:
    """Return a value that is a mapping; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Mapping[str, Any]]:
    """Return a list with empty mappings in place of other elements, which the API server refuses; else no elements."""
    return [_mapping(item) for item in value] if isinstance(value, list) else []
