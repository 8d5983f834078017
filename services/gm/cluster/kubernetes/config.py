"""How GM reaches the API server: as a pod by its service account, elsewhere by a kubeconfig."""

from __future__ import annotations

import os
from pathlib import Path

from kubernetes.aio import config as loaders
from kubernetes.aio.client import Configuration

from halimede.errors import InvalidFieldError

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
VARIABLE = "KUBECONFIG"
#: where a pod finds its own namespace
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
OPTION = "--kubeconfig"


async def load_configuration(kubeconfig: str = "") -> Configuration:
    """Return how to reach the API server: by ``kubeconfig`` if given, else as a pod, else by $KUBECONFIG or the usual
    file. Raises InvalidFieldError.
    """
    configuration = Configuration()
    if not kubeconfig and os.environ.get(IN_CLUSTER):
        try:
            loaders.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (loaders.ConfigException, OSError) as error:
            fix = f"this is a pod without a usable service account ({error}): give it one, or say {OPTION}"
            raise InvalidFieldError(IN_CLUSTER, os.environ[IN_CLUSTER], fix) from error
        return configuration
    field = OPTION if kubeconfig else VARIABLE
    path = _files(field, kubeconfig or os.environ.get(VARIABLE) or "~/.kube/config")
    try:
        await loaders.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, client_configuration=configuration, persist_config=False
        )
    except Exception as error:  # it reads YAML, certificates and the output of programs: any of that may fail
        detail = " ".join(str(error).split())
        raise InvalidFieldError(field, path, f"write a kubeconfig that names cluster and user: {detail}") from error
    return configuration


def _files(field: str, path: str) -> str:
    """Return the files that there are of a list of them."""
    files = [Path(part).expanduser() for part in path.split(os.pathsep) if part]
    if not any(file.is_file() for file in files):
        fix = f"there is no such file: name a kubeconfig with {OPTION} or ${VARIABLE}, or run GM as a pod"
        raise InvalidFieldError(field, path, fix)
    return os.pathsep.join(str(file) for file in files if file.is_file())


def own_namespace(given: str = "") -> str:
    """Return the namespace that GM's Lease is in: what was given, else the pod's own, else ``default``."""
    if given:
        return given
    try:
        return NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"
