"""Brings models into pods (``PodModel``): an init container downloads or verifies the model before the worker starts.

A model on the web or in S3 is downloaded to ``/downloads/<host><path>``, through the node's cache if it has one. A file
of the node is not copied, except for an archive that is unpacked into the pod: its folder is mounted read-only below
``/home/data``. The endpoint of a large language model is not a file: if the template sets ``MODEL_LOAD_MODE`` to http
or https, the worker receives its URL unchanged.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from halimede.api import Resource
from halimede.api.model import ModelSpec
from services.gm.workloads.object_names import Body
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.pod_status import (
    FETCH,
    FETCH_ARCHIVE,
    FETCH_CALIBRATION,
    FETCH_COMMITTEE,
    FETCH_DETECTOR,
    FETCH_INITIAL,
)

#: folders in a pod: with the node's files at their paths, with downloads, and with the node's cache of models
DATA = "/home/data"
DOWNLOADS = "/downloads"
CACHE = "/var/lib/halimede/models"
#: the variable with the name of a pod's node
NODE_NAME: Body = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
#: security context of containers that run only halimede's own code
CONFINED: Body = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
#: user id of halimede's images and of the LC, which owns the cache: set even if a template sets another for the pod
FETCHER_USER = 10001
#: a download uses memory in blocks, whatever its size. Namespaces with a quota refuse pods without these fields
FETCHER_RESOURCES: Body = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
#: suffixes of archives
ARCHIVES = (".tar", ".gz", ".tgz", ".zip")
#: annotations of a Secret with the address of S3, and whether S3 has HTTPS
ENDPOINT, USE_HTTPS = "s3-endpoint", "s3-usehttps"


@dataclass(frozen=True, slots=True)
class ModelVolume:
    """Names for one of a pod's models, so that several models do not conflict.

    Attributes:
        init: name of the init container that brings it.
        volume: name of the volume with the folder of the node, for a model that is a file of the node.
        downloads: folder in the pod for a model that is downloaded.

    """

    init: str = FETCH
    volume: str = "halimede-model"
    downloads: str = DOWNLOADS


#: the names for the worker's own model
MODEL = ModelVolume()
#: the names for each purpose that a worker may need a model for
SLOTS = {
    "model": MODEL,
    "detector": ModelVolume(FETCH_DETECTOR, "halimede-detector", f"{DOWNLOADS}/detector"),
    **{
        f"committee{number}": ModelVolume(init, f"halimede-committee{number}", f"{DOWNLOADS}/committee{number}")
        for number, init in enumerate(FETCH_COMMITTEE, 1)
    },
    "calibration": ModelVolume(FETCH_CALIBRATION, "halimede-calibration", f"{DOWNLOADS}/calibration"),
    "archive": ModelVolume(FETCH_ARCHIVE, "halimede-archive", f"{DOWNLOADS}/archive"),
    "initial": ModelVolume(FETCH_INITIAL, "halimede-initial", f"{DOWNLOADS}/initial"),
}


@dataclass(frozen=True, slots=True)
class PodModel:
    """Where a worker finds its model, and what the pod needs for that, as Kubernetes has it.

    Attributes:
        url: a path in the pod; of an endpoint the URL.
        init: init containers.
        volumes: volumes of the pod.
        mounts: mounts of the worker's container.

    """

    url: str
    init: tuple[Body, ...] = ()
    volumes: tuple[Body, ...] = ()
    mounts: tuple[Body, ...] = ()


#: the models of a pod by purpose, each with what the pod needs for it
Models = Mapping[str, tuple[Resource[ModelSpec], PodModel]]


def host_file(url: str) -> str | None:
    """Return the path of a file of the node, of a ``file://`` URL or a plain path; None: it is another URL."""
    path = unquote(url.removeprefix("file://").removeprefix("localhost")) if url.startswith("file://") else url
    return path if path.startswith("/") else None


def needs_secret(spec: ModelSpec) -> str:
    """Return the name of the Secret that the download of a model needs; empty: it needs none."""
    return spec.credential_name if spec.url.startswith("s3://") else ""


def pod_model_of(
    spec: ModelSpec,
    worker: Mapping[str, Any],
    secret: Mapping[str, Any] | None,
    settings: PodSettings,
    *,
    unpack: bool = False,
    own_code: bool = False,
    names: ModelVolume = MODEL,
) -> PodModel:
    """Return how a model gets to the container ``worker``.

    ``secret``: metadata of the Secret of ``needs_secret``; None: it needs none, or the Secret does not exist.
    ``unpack``: whether an archive becomes the folder that is in it; an archive of the node is then copied into the pod.
    ``own_code``: whether the worker has code of its own, which may read a model without its data files. ``names``: for
    this model in the pod.
    """
    if spec.url.startswith(("http://", "https://")) and _load_mode(worker) in {"http", "https"}:
        return PodModel(spec.url)
    if path := host_file(spec.url):
        path = posixpath.normpath("/" + path.lstrip("/"))
        if unpack and path.endswith(ARCHIVES):
            return _unpack_archive(spec, path, settings, names)
        return _mount_file(spec, path, settings, names)
    return _download(spec, secret or {}, settings, names, unpack=unpack, own_code=own_code)


def mount_folder(path: str, volume: str, kind: str = "Directory") -> tuple[Body, Body]:
    """Return the volume and the read-only mount of a node's folder, below ``/home/data`` as Sedna's workers expect.

    ``volume``: its name. ``kind``: type of Kubernetes' hostPath; empty: a folder or a file.
    """
    return (
        {"name": volume, "hostPath": {"path": path, "type": kind}},
        {"name": volume, "mountPath": DATA + path.rstrip("/"), "readOnly": True},
    )


def literal(text: str) -> str:
    """Return a text escaped for a field in which Kubernetes replaces ``$(NAME)`` by variables."""
    return text.replace("$", "$$")


def _mount_file(spec: ModelSpec, path: str, settings: PodSettings, names: ModelVolume) -> PodModel:
    """Mount the folder of a file of the node, ``path``; the init container verifies the file."""
    volume, mount = mount_folder(posixpath.dirname(path), names.volume)
    here = DATA + path
    init = _fetcher(names.init, ["--url", here, *_sha256(spec), "--check"], [], [mount], settings)
    return PodModel(here, (init,), (volume,), (mount,))


def _unpack_archive(spec: ModelSpec, path: str, settings: PodSettings, names: ModelVolume) -> PodModel:
    """Unpack an archive of the node, ``path``, into the pod."""
    volume, mount = mount_folder(posixpath.dirname(path), names.volume)
    pod_model = _download(msgspec.structs.replace(spec, url=DATA + path), {}, settings, names, unpack=True)
    init = {**pod_model.init[0], "volumeMounts": [*pod_model.init[0]["volumeMounts"], mount]}
    return PodModel(pod_model.url, (init,), (*pod_model.volumes, volume), pod_model.mounts)


def _download(
    spec: ModelSpec,
    secret: Mapping[str, Any],
    settings: PodSettings,
    names: ModelVolume,
    *,
    unpack: bool,
    own_code: bool = False,
) -> PodModel:
    """Download a model into the pod, through the node's cache if there is one."""
    path = _download_path(spec.url, names.downloads)
    cache: Body = {"name": "halimede-cache"}
    cache_mount: Body = {"name": "halimede-cache", "mountPath": CACHE}
    if settings.node_cache:
        cache["hostPath"] = {"path": settings.node_cache, "type": "DirectoryOrCreate"}
        cache_mount["subPathExpr"] = "$(NODE_NAME)/models"
    else:
        cache["emptyDir"] = {}
    args = ["--url", spec.url, *_sha256(spec), "--cache", CACHE, "--out", path]
    args += ["--unpack"] if unpack else []
    args += ["--own-code"] if unpack and own_code else []  # without --unpack no data files are fetched
    args += ["--allow", ",".join(settings.fetch_allow)] if settings.fetch_allow else []
    files_mount: Body = {"name": "halimede-models", "mountPath": DOWNLOADS}
    env = _storage(spec, secret) if spec.url.startswith("s3://") else []
    init = _fetcher(names.init, args, env, [files_mount, cache_mount], settings)
    volumes = ({"name": "halimede-models", "emptyDir": {}}, cache)
    return PodModel(path, (init,), volumes, ({**files_mount, "readOnly": True},))


def _fetcher(name: str, args: list[str], env: list[Body], mounts: list[Body], settings: PodSettings) -> Body:
    """Return an init container that runs ``python -m halimede.models`` with arguments."""
    return {
        "name": name,
        "image": settings.fetcher_image,
        **({"imagePullPolicy": settings.pull_policy} if settings.pull_policy else {}),
        "command": ["python", "-m", "halimede.models"],
        "args": [literal(arg) for arg in args],
        "env": [NODE_NAME, *env],
        "volumeMounts": mounts,
        "resources": FETCHER_RESOURCES,
        "securityContext": {**CONFINED, "runAsUser": FETCHER_USER, "runAsGroup": FETCHER_USER},
        # the last output has the reason of a failure
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _storage(spec: ModelSpec, secret: Mapping[str, Any]) -> list[Body]:
    """Return the environment for access to S3. The kubelet adds the keys, so they never pass through GM."""
    if not spec.credential_name:
        return []
    annotations = secret.get("annotations") or (secret.get("metadata") or {}).get("annotations") or {}
    env: list[Body] = []
    if endpoint := annotations.get(ENDPOINT):
        scheme = "http" if annotations.get(USE_HTTPS, "1").lower() in {"0", "false", "no"} else "https"
        address = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        env.append({"name": "S3_ENDPOINT_URL", "value": literal(address)})
    for key in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        reference = {"name": spec.credential_name, "key": key}
        env.append({"name": key, "valueFrom": {"secretKeyRef": reference}})
    return env


def _sha256(spec: ModelSpec) -> list[str]:
    """Return the fetcher's option with the digest; none without a digest."""
    return ["--sha256", spec.sha256] if spec.sha256 else []


def _download_path(url: str, folder: str) -> str:
    """Return ``<folder>/<host><path>`` without user, password and query; never a path outside of that folder."""
    try:
        parts = urlsplit(url)
    except ValueError:  # the fetcher reports it
        return f"{folder}/model"
    host = posixpath.basename(parts.netloc.rpartition("@")[2].partition(":")[0]).strip(".") or "model"
    path = posixpath.normpath("/" + unquote(parts.path).replace("\0", "").lstrip("/"))
    return f"{folder}/{host}{'/model' if path == '/' else path}"


def _load_mode(worker: Mapping[str, Any]) -> str:
    """Return the value of MODEL_LOAD_MODE in a container in lower case; empty: it has none."""
    values = (v.get("value") for v in worker.get("env") or [] if v.get("name") == "MODEL_LOAD_MODE")
    return next((str(value).lower() for value in values), "")
