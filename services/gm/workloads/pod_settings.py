"""An operator's settings for worker pods (``PodSettings``): images, addresses, Secrets, what a template may request.

GM reads them once (``read``), from a JSON file that is usually a ConfigMap (``--pods-config FILE``); some environment
variables override the file. By default a template may mount no folder of a node and may request no privilege.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, structs

from halimede import __version__
from halimede.api.base import convert
from halimede.api.inferencemodel import OWN_FRAMEWORKS
from halimede.bus.settings import MqttSettings
from halimede.errors import InvalidFieldError
from halimede.models.address_policy import AddressPolicy
from halimede.names import check_name

#: types of fields: a text, a list of texts, and names of Kubernetes
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Many = Annotated[tuple[Text, ...], Meta(max_length=256)]
PullPolicy = Literal["", "Always", "IfNotPresent", "Never"]

ServiceType = Literal["ClusterIP", "NodePort", "LoadBalancer"]

#: the option of GM with the path of the file
OPTION = "--pods-config"
#: environment variables that override fields of the file
ENVIRONMENT = {
    "HALIMEDE_PODS_BROKER": "broker",
    "HALIMEDE_PODS_WORKER_IMAGE": "worker_image",
    "HALIMEDE_PODS_FETCHER_IMAGE": "fetcher_image",
    "HALIMEDE_PODS_REGISTRY": "registry",
}
#: environment variable that overrides ``fetch_allow``: a list, separated by commas
FETCH_ALLOW = "HALIMEDE_PODS_FETCH_ALLOW"
#: how the names of halimede's images begin, before any registry
PROJECT = "halimede/"
#: a registry: a host, perhaps with a port, and a path
REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*", re.ASCII)
#: a placeholder in a server's arguments, and the known ones
PLACEHOLDER = re.compile(r"\{[A-Za-z]+\}")
PLACEHOLDERS = frozenset({"{name}", "{version}", "{model}", "{port}", "{grpcPort}", "{file}"})


@dataclass(frozen=True, slots=True)
class Server:
    """The server for models of a framework (format), as a container of an InferenceModel's pods.

    In ``command``, ``args``, ``live`` and ``ready`` these are replaced: ``{name}`` the model's name, ``{version}`` its
    version, ``{model}`` the path of its file or folder, ``{port}`` and ``{grpcPort}`` the ports for HTTP and gRPC, and
    ``{file}`` the path of the file that tells halimede's own server which model to serve.

    Attributes:
        image: its image.
        command: its program; empty: the image's.
        args: its arguments.
        live: HTTP path of its liveness probe; empty: a probe of its port.
        ready: HTTP path of its readiness probe; empty: a probe of its port.

    """

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    live: str = "/v2/health/live"
    ready: str = "/v2/health/ready"


#: halimede's own server
OUR_SERVER = Server(
    image=f"halimede/serve:{__version__}",
    command=("python", "-m", "halimede", "serve"),
    # strict: an error ends the container, because Kubernetes shows why a container ended but not why it is not ready
    args=("--file", "{file}", "--http", "0.0.0.0:{port}", "--grpc", "0.0.0.0:{grpcPort}", "--strict"),
)


@dataclass(frozen=True, slots=True)
class PodSettings:
    """The settings of all worker pods.

    Attributes:
        broker: the broker's address, as workers reach it.
        edge_broker: the broker's address, as edge workers reach it; empty: that of ``broker``.
        registry: where nodes find halimede's images, such as ``registry.example.com``; empty: in the nodes' default.
        worker_image: for containers that name none.
        fetcher_image: an image with ``python -m halimede.models``: the LC's image.
        serving: the servers by the framework's name in lower case; onnx: halimede's own.
        service_types: allowed types of the Services of InferenceModels.
        ingress_hosts: allowed host names of their ingresses, ``*.example.org`` for all below it; empty: all.
        fetch_allow: allowed download sources in addition to public addresses, such as ``private`` or a network.
        images: image of a framework pair of the neptune form, such as ``tensorflow:1.18``.
        pull_policy: of halimede's images; empty: the default of Kubernetes.
        pull_secrets: added to each pod's.
        edge_secret: name of a Secret in the service's namespace with edge workers' credentials for the broker.
        cloud_secret: name of a Secret in the service's namespace with other workers' credentials for the broker.
        credentials: whether workers use credentials for the broker.
        host_paths: folders of nodes that templates, Models and sources may read, and all below them; empty: none.
        writable_host_paths: folders of nodes that templates may also write to. Nothing below them can be mounted: a
            container that writes to a folder can create a link there, and the node follows it to any target.
        allowed_images: prefixes of images that templates may use, in addition to ``worker_image`` and ``images``;
            empty: all.
        node_cache: folder of every node with the model caches of its local controllers; empty: pods use no cache.
        privileged: whether templates may request the host's namespaces, privileges or a service account.
        port: of health and metrics in a pod.
        env: more environment variables of workers, unless their template sets them.

    """

    broker: str
    edge_broker: str = ""
    registry: str = ""
    worker_image: str = f"halimede/worker:{__version__}"
    fetcher_image: str = f"halimede/lc:{__version__}"
    serving: Mapping[str, Server] = field(default_factory=dict)
    service_types: tuple[ServiceType, ...] = ("ClusterIP", "NodePort", "LoadBalancer")
    ingress_hosts: tuple[str, ...] = ()
    fetch_allow: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    pull_policy: PullPolicy = ""
    pull_secrets: tuple[str, ...] = ()
    edge_secret: str = "halimede-edge-worker"  # noqa: S105  # a name
    cloud_secret: str = "halimede-cloud-worker"  # noqa: S105  # a name
    credentials: bool = True
    host_paths: tuple[str, ...] = ()
    writable_host_paths: tuple[str, ...] = ()
    allowed_images: tuple[str, ...] = ()
    node_cache: str = "/var/lib/halimede/nodes"
    privileged: bool = False
    port: int = 9101
    env: Mapping[str, str] = field(default_factory=dict)

    def server(self, framework: str) -> Server | None:
        """Return the server for models of a framework; None: none is configured."""
        name = framework.lower()
        return self.serving.get(name) or (self.serving.get("onnx", OUR_SERVER) if name in OWN_FRAMEWORKS else None)

    def with_registry(self, image: str) -> str:
        """Return an image's name, with the registry before it if it is halimede's (``halimede/...``) and has none."""
        there = image.startswith(f"{self.registry}/{PROJECT}")
        return f"{self.registry}/{image}" if self.registry and image.startswith(PROJECT) and not there else image


class _Server(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """One entry of ``serving`` in the file; ``Server`` describes the fields."""

    image: Text
    command: Many = ()
    args: Many = ()
    live: Annotated[str, Meta(max_length=1024)] = OUR_SERVER.live
    ready: Annotated[str, Meta(max_length=1024)] = OUR_SERVER.ready


class _File(Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The file: the fields of ``PodSettings`` in camelCase, such as ``workerImage``; None: not in the file."""

    broker: Text | None = None
    edge_broker: Text | None = None
    registry: Text | None = None
    worker_image: Text | None = None
    fetcher_image: Text | None = None
    serving: dict[Text, _Server] | None = None
    service_types: Annotated[tuple[ServiceType, ...], Meta(max_length=3)] | None = None
    ingress_hosts: Many | None = None
    fetch_allow: Many | None = None
    images: dict[Text, Text] | None = None
    pull_policy: PullPolicy | None = None
    pull_secrets: Many | None = None
    edge_secret: Text | None = None
    cloud_secret: Text | None = None
    credentials: bool | None = None
    host_paths: Many | None = None
    writable_host_paths: Many | None = None
    allowed_images: Many | None = None
    node_cache: Annotated[str, Meta(max_length=1024)] | None = None
    privileged: bool | None = None
    port: Annotated[int, Meta(ge=1024, le=65_535)] | None = None
    env: dict[Annotated[str, Meta(min_length=1, pattern=r"^[^=\x00]+$")], str] | None = None


def read(file: Path | None, environ: Mapping[str, str]) -> PodSettings:
    """Read the settings from a file (None: only the environment) and the environment.

    Raises InvalidFieldError, which names the option or the field of the file.
    """
    text = "{}"
    if file is not None:
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise InvalidFieldError(OPTION, str(file), f"{why}: give a JSON file") from None
    try:
        content = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidFieldError(OPTION, str(file), f"write JSON: {error}") from None
    return parse(content, environ)


def parse(content: object, environ: Mapping[str, str]) -> PodSettings:
    """Return the settings of a file's content (plain data) and the environment. Raises InvalidFieldError."""
    file = convert(content, _File, "pods")
    values = {f.name: value for f in fields(PodSettings) if (value := getattr(file, f.name)) is not None}
    values |= {name: environ[variable] for variable, name in ENVIRONMENT.items() if environ.get(variable)}
    if allowed := environ.get(FETCH_ALLOW):
        values["fetch_allow"] = tuple(allowed.replace(",", " ").split())
    if not values.get("broker"):
        fix = "set the broker's address for workers, such as mqtts://broker:8883 (or HALIMEDE_PODS_BROKER)"
        raise InvalidFieldError("pods.broker", "", fix)
    if file.serving is not None:
        values["serving"] = {name.lower(): _server(name.lower(), server) for name, server in file.serving.items()}
    settings = PodSettings(**values)
    _check(settings)
    return replace(
        settings,
        worker_image=settings.with_registry(settings.worker_image),
        fetcher_image=settings.with_registry(settings.fetcher_image),
        images={pair: settings.with_registry(image) for pair, image in settings.images.items()},
    )


def _server(framework: str, entry: _Server) -> Server:
    """Return the server of an entry; one for a format of halimede's own server may have only the image."""
    server = Server(**structs.asdict(entry))
    if framework in OWN_FRAMEWORKS and not server.command and not server.args:
        return replace(OUR_SERVER, image=server.image)
    return server


def _check(settings: PodSettings) -> None:
    """Raise InvalidFieldError for the first unusable value."""
    MqttSettings.from_url(settings.broker, variable="pods.broker")
    if settings.edge_broker:
        MqttSettings.from_url(settings.edge_broker, variable="pods.edgeBroker")
    if settings.registry and not REGISTRY.fullmatch(settings.registry):
        fix = "write a host with a port and a path if it has them, such as registry.example.com:5000/team"
        raise InvalidFieldError("pods.registry", settings.registry, fix)
    for name in ("edge_secret", "cloud_secret"):
        first, second = name.split("_")
        check_name(f"pods.{first}{second.title()}", getattr(settings, name))
    for i, secret in enumerate(settings.pull_secrets):
        check_name(f"pods.pullSecrets[{i}]", secret)
    for framework, server in settings.serving.items():
        for part in (*server.command, *server.args, server.live, server.ready):
            if unknown := [name for name in PLACEHOLDER.findall(part) if name not in PLACEHOLDERS]:
                fix = f"{unknown[0]} is not known: use {', '.join(sorted(PLACEHOLDERS))}"
                raise InvalidFieldError(f"pods.serving.{framework}", part, fix)
    AddressPolicy.parse(",".join(settings.fetch_allow), "pods.fetchAllow")
    folders = {f"pods.hostPaths[{i}]": folder for i, folder in enumerate(settings.host_paths)}
    folders |= {f"pods.writableHostPaths[{i}]": folder for i, folder in enumerate(settings.writable_host_paths)}
    if settings.node_cache:
        folders["pods.nodeCache"] = settings.node_cache
    for at, folder in folders.items():
        _check_folder(at, folder)
    for at, folder in folders.items():
        for writable in settings.writable_host_paths:
            same = at == "pods.nodeCache" and plain_path(folder) == plain_path(writable)
            if same or plain_path(writable) in plain_path(folder).parents:
                fix = f"choose another: workers can write to {writable} (writableHostPaths) and create links there"
                raise InvalidFieldError(at, folder, fix)


def plain_path(path: str) -> PurePosixPath:
    """Return an absolute path as the kernel reads it: ``//x`` is ``/x``, but a different root for PurePosixPath."""
    return PurePosixPath("/", *PurePosixPath(path).parts[1:])


def _check_folder(at: str, folder: str) -> None:
    """Raise InvalidFieldError unless a path is absolute and has no ``..``."""
    if not folder.startswith("/") or ".." in PurePosixPath(folder).parts:
        raise InvalidFieldError(at, folder, "write an absolute path without '..'")
