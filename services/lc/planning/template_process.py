"""Converts a worker's pod template to a process on this node (``to_process``). Pure.

Without containers a template is a command, its environment and its limits. Any field that needs more than that is
refused by name (RefusalError), and never ignored: a user who sets another user id, a read-only mount or a secret must
not believe that it is in force. Fields for Kubernetes' own machinery (probes, ports, image pulls, scheduling) are
harmless.

A memory limit becomes RLIMIT_DATA (private writable memory). RLIMIT_AS would count address space, of which ONNX Runtime
and the allocator reserve many times what they use. A CPU limit becomes the number of threads of OpenMP and of BLAS.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halimede.api.base import convert
from halimede.api.placement import Program
from halimede.api.podtemplate import OWN_IMAGE, Container, EnvVar, PodTemplate, Volume
from halimede.api.quantity import quantity
from halimede.api.worker_environment import WorkerEnvironment
from halimede.errors import HalimedeError, InvalidFieldError
from services.lc.supervisor.process import WORKER, NeededPath, ProcessSpec

#: grace period of a pod without terminationGracePeriodSeconds, equal to a worker's default for GRACE_S
DEFAULT_GRACE_S = 10.0

#: fields of a pod's spec, and of a container, that are used or checked, or have no effect on a process
POD_ACCEPTED = frozenset({
    "automountServiceAccountToken", "containers", "dnsPolicy", "enableServiceLinks", "hostIPC", "hostNetwork",
    "hostPID", "imagePullSecrets", "nodeName", "nodeSelector", "preemptionPolicy", "priority", "priorityClassName",
    "restartPolicy", "schedulerName", "securityContext", "serviceAccount", "serviceAccountName",
    "terminationGracePeriodSeconds", "tolerations", "volumes",
})  # fmt: skip
CONTAINER_ACCEPTED = frozenset({
    "args", "command", "env", "image", "imagePullPolicy", "livenessProbe", "name", "ports", "readinessProbe",
    "resources", "securityContext", "startupProbe", "terminationMessagePath", "terminationMessagePolicy",
    "volumeMounts", "workingDir",
})  # fmt: skip
#: commands that become the LC's own Python
PYTHONS = frozenset({"python", "python3"})
#: upper limits: bytes of memory by the kernel, and threads by libraries
MAX_MEMORY, MAX_CPUS = 2**63 - 1, 4096
#: a reference to a variable, ``$(NAME)``, or ``$$`` for a dollar sign
_reference = re.compile(r"\$(?:\$|\(([^)]*)\))")


class RefusalError(HalimedeError):
    """A template cannot run on this node. ``reason``: one word for a condition. The text names the field to change."""

    def __init__(self, field_: str, problem: str, reason: str = "UnsupportedTemplate") -> None:
        self.reason = reason
        super().__init__(f"{field_}: {problem}")


@dataclass(frozen=True, slots=True)
class Host:
    """The LC's process, against which a template is checked (not the machine, as in ``hostPath``).

    Attributes:
        python: path of its Python.
        library: in a checkout the folder of its code, for PYTHONPATH; empty: halimede is installed.
        uid, gid: its user and group.

    """

    python: str
    library: str = ""
    uid: int = field(default_factory=os.getuid)
    gid: int = field(default_factory=os.getgid)

    def search_path(self, first: str = "") -> str:
        """Return PYTHONPATH for halimede's worker: ``first``, the LC's own in absolute paths, and the library."""
        own = [str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        return os.pathsep.join(filter(None, [first, *own, self.library]))


def grace_s_of(template: Mapping[str, Any]) -> float:
    """Return the grace period of a pod template in seconds: the time that its worker has to stop."""
    seconds = (template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return DEFAULT_GRACE_S if seconds is None else float(seconds)


def to_process(
    template: dict[str, Any], program: Program, base: WorkerEnvironment, folder: Path, host: Host, *, at: str = ""
) -> ProcessSpec:
    """Return the process of a worker's pod template. Raises RefusalError.

    ``program``: what halimede's worker runs as, unless the container has a command. ``base``: the variables that the LC
    gives. ``folder``: of the worker's files. ``at``: path of the worker in the resource, for messages; empty: by
    ``program``.
    """
    field_path = f"{at or f'spec.{program}Worker'}.template"
    try:
        pod = convert(template, PodTemplate, field_path).spec
        raw: dict[str, Any] = template["spec"]
        _check_pod(raw, f"{field_path}.spec", host)
        container, container_path = pod.containers[0], f"{field_path}.spec.containers[0]"
        _check_container(raw["containers"][0], container_path, host)
        env = _environment(container.env, base, f"{container_path}.env")
        memory, threads = _limits(container.resources, f"{container_path}.resources")
    except InvalidFieldError as error:
        raise RefusalError(error.field, f"{error.value} is not accepted: {error.fix}", "InvalidTemplate") from error
    if container.working_dir and not container.working_dir.startswith("/"):
        text = f"{container.working_dir!r} is a relative path: write an absolute one"
        raise RefusalError(f"{container_path}.workingDir", text)
    argv, is_own_worker = _command(container, program, env, container_path, host)
    if is_own_worker:
        env["PYTHONPATH"] = host.search_path(env.get("PYTHONPATH", ""))
    return ProcessSpec(
        argv=argv,
        env={**threads, **env},
        cwd=container.working_dir or str(folder),
        memory_bytes=memory,
        grace_s=grace_s_of(template),
        paths=tuple(_paths(pod.volumes, container, field_path)),
    )


def expand(text: str, env: Mapping[str, str]) -> str:
    """Return a text with ``$(NAME)`` replaced as Kubernetes does: unknown names stay as they are, ``$$`` is ``$``."""
    return _reference.sub(lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)


def _command(
    container: Container, program: Program, env: Mapping[str, str], at: str, host: Host
) -> tuple[tuple[str, ...], bool]:
    """Return the arguments of the process, and whether it is halimede's worker."""
    args = tuple(expand(arg, env) for arg in container.args)
    command = tuple(expand(argument, env) for argument in container.command)
    if not command:
        if container.image and not OWN_IMAGE.fullmatch(container.image):
            text = f"image {container.image!r} cannot run without Kubernetes: add command, or use halimede/worker"
            raise RefusalError(f"{at}.image", text)
        return (host.python, *WORKER, program, *args), True
    if command[0] in PYTHONS:
        command = (host.python, *command[1:])
    return command + args, False


def _environment(variables: list[EnvVar], base: WorkerEnvironment, at: str) -> dict[str, str]:
    """Return the environment: a user's value may refer to earlier variables, and cannot override facts of ``base``."""
    env = base.defaults | base.facts
    for i, variable in enumerate(variables):
        if variable.value_from:
            text = f"{variable.name} comes from valueFrom, which needs Kubernetes: set value"
            raise RefusalError(f"{at}[{i}].valueFrom", text)
        if variable.name not in base.facts:
            env[variable.name] = expand(variable.value, env)
    return env


def _limits(resources: Mapping[str, Any], at: str) -> tuple[int | None, dict[str, str]]:
    """Return the limit of memory in bytes (None: there is none), and the variables that limit threads."""
    _refuse_other_fields(resources, {"limits", "requests"}, at)
    limits = resources.get("limits") or {}
    _refuse_other_fields(limits, {"cpu", "memory"}, f"{at}.limits")
    threads = _limit(limits, "cpu", f"{at}.limits", MAX_CPUS)
    memory = _limit(limits, "memory", f"{at}.limits", MAX_MEMORY)
    return memory, dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)) if threads else {}


def _limit(limits: Mapping[str, Any], name: str, at: str, most: int) -> int | None:
    """Return a limit as a whole number, rounded up; None: there is none."""
    if name not in limits:
        return None
    amount = math.ceil(quantity(f"{at}.{name}", limits[name]))
    if amount > most:
        raise RefusalError(f"{at}.{name}", f"{limits[name]!r} exceeds the maximum: write at most {most}")
    return amount


def _paths(volumes: list[Volume], container: Container, field_path: str) -> Iterator[NeededPath]:
    """Yield the paths of the node that the container mounts: each must be mounted at its own path."""
    kinds = {"": "any", "Directory": "folder", "DirectoryOrCreate": "folder", "File": "file"}
    host_paths = {volume.name: volume.host_path for volume in volumes}
    for i, volume in enumerate(volumes):
        at = f"{field_path}.spec.volumes[{i}]"
        if volume.host_path is None:
            raise RefusalError(at, f"volume {volume.name!r} needs Kubernetes: only hostPath works without it")
        if volume.host_path.type not in kinds:
            text = f"{volume.host_path.type!r} is not supported here: use Directory, DirectoryOrCreate or File"
            raise RefusalError(f"{at}.hostPath.type", text)
    for i, mount in enumerate(container.volume_mounts):
        at = f"{field_path}.spec.containers[0].volumeMounts[{i}]"
        host_path = host_paths.get(mount.name)
        if host_path is None:
            raise RefusalError(f"{at}.name", f"there is no volume {mount.name!r}: add it to volumes")
        if Path(mount.mount_path) != Path(host_path.path):
            text = f"a process cannot mount {host_path.path} at {mount.mount_path}: set mountPath to the same path"
            raise RefusalError(f"{at}.mountPath", text)
        if not host_path.path.startswith("/") or ".." in host_path.path.split("/"):
            raise RefusalError(f"{field_path}.spec.volumes", f"{host_path.path!r}: write an absolute path without '..'")
        create = host_path.type == "DirectoryOrCreate"
        yield NeededPath(host_path.path, kinds[host_path.type], create)  # type: ignore[arg-type]


def _check_pod(raw: Mapping[str, Any], at: str, host: Host) -> None:
    """Refuse what a process cannot have: other fields, more than one container, another restart policy or user."""
    _refuse_other_fields(raw, POD_ACCEPTED, at)
    if len(raw["containers"]) > 1:
        raise RefusalError(f"{at}.containers[1]", "without Kubernetes a worker is one process: remove this")
    if raw.get("restartPolicy") not in {None, "", "Always"}:
        raise RefusalError(f"{at}.restartPolicy", "workers always restart: write Always or remove it")
    _check_security(raw.get("securityContext") or {}, f"{at}.securityContext", host)


def _check_container(raw: Mapping[str, Any], at: str, host: Host) -> None:
    """Refuse what a process cannot have: other fields of the container or its mounts, or another user."""
    _refuse_other_fields(raw, CONTAINER_ACCEPTED, at)
    _check_security(raw.get("securityContext") or {}, f"{at}.securityContext", host)
    for i, mount in enumerate(raw.get("volumeMounts") or []):
        _refuse_other_fields(mount, {"name", "mountPath"}, f"{at}.volumeMounts[{i}]")


def _check_security(raw: Mapping[str, Any], at: str, host: Host) -> None:
    """Refuse security settings that differ from what a child process of the LC has without them."""
    in_force = {
        "runAsUser": host.uid,
        "runAsGroup": host.gid,
        "runAsNonRoot": host.uid != 0,
        "privileged": False,
        "readOnlyRootFilesystem": False,
        "allowPrivilegeEscalation": True,
    }
    for name, value in raw.items():
        differs = value != in_force[name] if name in in_force else bool(value)
        allows_root = name == "runAsNonRoot" and value is False  # demands nothing
        if differs and not allows_root:
            raise RefusalError(f"{at}.{name}", f"{value!r} cannot be set for a process of user {host.uid}: remove it")


def _refuse_other_fields(raw: object, supported: frozenset[str] | set[str], at: str) -> None:
    """Refuse fields other than ``supported``, unless they are empty."""
    if not isinstance(raw, Mapping):
        raise RefusalError(at, "write a mapping", "InvalidTemplate")
    for name in sorted(map(str, raw)):
        if name not in supported and raw[name] not in (None, "", [], {}, False):
            raise RefusalError(f"{at}.{name}", "this needs Kubernetes: remove it")
