"""``halimede apply``: creates or changes the resources of manifests, in the order of their references."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from halimede.api import Resource, admit, kind_of, parse
from halimede.api.class_names import different_names, model_names
from halimede.api.jointinference import JointInferenceServiceSpec
from halimede.api.model import PLURAL as MODELS
from halimede.api.model import ModelSpec, in_force
from halimede.api.model_formats import FORMATS, format_of
from halimede.api.processing import has_unscaled_pixels
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.local_model import local_code, read_local
from halimede.cli.manifests import Manifest, load
from halimede.cli.output import console, fail, warn
from halimede.cli.runner import run
from halimede.cli.waiting import NotReadyError, wait_ready
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.names import Key

#: outcomes of a change, shown in green
CHANGED = frozenset({"created", "configured"})
#: characters of a digest in messages
SHORT = 12


class DryRun(StrEnum):
    """Who checks manifests without applying them: nobody (they are applied), this command, or GM."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


class ApplyCommand(TyperCommand):
    """The command ``apply``: its option ``--dry-run`` alone means ``--dry-run=server``, as with kubectl."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments as Click does, after completing the option."""
        return super().parse_args(ctx, ["--dry-run=server" if arg == "--dry-run" else arg for arg in args])


#: the command, with its own class
apply = typer.Typer(add_completion=False, rich_markup_mode="rich")


@apply.command(cls=ApplyCommand)
def main(
    files: o.Files = None,
    more: o.MoreFiles = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="For resources that have none.", show_default=False)
    ] = "",
    dry_run: Annotated[
        DryRun,
        typer.Option(
            "--dry-run",
            metavar="[=server|client]",
            help="Change nothing: ask GM what it would do, or only check the manifests on this machine (client).",
            show_default=False,
        ),
    ] = DryRun.NONE,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until all of them are ready; else exit 1 and print what holds them up.")
    ] = False,
    timeout: o.WaitTimeout = 120.0,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Create or update the resources in manifests.

    All manifests are checked before anything is sent, and all their errors are shown. Models and Datasets go first. A
    relative url in a Model or Dataset is relative to its manifest. In a folder, files without apiVersion and kind are
    skipped and named.

    \b
    Examples:
      halimede apply -f digits/
      halimede apply -f model.yaml -f service.yaml -n factory
      cat service.yaml | halimede apply -f -
      halimede apply -f digits/ --wait --timeout 60
      halimede apply -f digits/ --dry-run
    """
    if not files:
        raise typer.BadParameter("give -f FILE, -f FOLDER or -f - for standard input")
    if wait and dry_run is not DryRun.NONE:
        raise typer.BadParameter("give --wait or --dry-run, not both")
    paths = [*files, *(more or [])]

    async def command() -> int:
        checked = o.namespace_of(namespace) if namespace else ""
        wait_s = timeout if wait else 0.0
        return await apply_manifests(o.address(broker, credentials), paths, checked, dry_run, wait_s=wait_s)

    run(command)


def reference(key: Key) -> str:
    """Return the name of a resource for output, as ``-o name`` shows it: ``model/digits-small``."""
    return f"{kind_of(key.plural).kind.lower()}/{key.name}"


async def apply_manifests(
    broker: BrokerAddress, paths: Sequence[str], namespace: str, dry_run: DryRun = DryRun.NONE, *, wait_s: float = 0.0
) -> int:
    """Apply manifests and return the exit code: 1 if GM refused one, or one is not ready in time.

    A refused manifest does not stop the others. ``namespace`` is for resources without one. ``wait_s``: seconds for all
    of them to be ready; 0: do not wait. Raises HalimedeError for invalid manifests, and if GM does not answer.
    """
    manifests = load(paths, namespace, admit)
    if dry_run is DryRun.CLIENT:
        for manifest in manifests:
            console().print(f"{reference(manifest.resource.key)} valid (dry run)")
            _warn(manifest)
        for service in _services(manifests):
            _warn_of_classes(service, _models(manifests, service))
        return 0
    applied: list[tuple[Key, int]] = []
    async with Client.to(broker) as client:
        for manifest in manifests:
            generation = await _apply_one(client, manifest, dry=dry_run is DryRun.SERVER)
            if generation is not None:
                applied.append((manifest.resource.key, generation))
        for service in _services(manifests):
            models = _models(manifests, service)
            _warn_of_classes(service, {**await _stored_models(client, service, models), **models})
        not_ready = await _wait_all(client, applied, wait_s) if wait_s else 0
    return 1 if not_ready or len(applied) < len(manifests) else 0


async def _wait_all(client: Client, applied: Iterable[tuple[Key, int]], wait_s: float) -> int:
    """Wait until resources (key, generation) are ready, all together for ``wait_s`` seconds; return how many are not.

    Each has at least 0.1 s, so that one which is ready already counts. Prints the result of each.
    """
    failed, loop = 0, asyncio.get_running_loop()
    give_up = loop.time() + wait_s
    for key, generation in applied:
        try:
            await wait_ready(client, key, generation, max(0.1, give_up - loop.time()))
        except NotReadyError as error:
            fail(str(error))
            failed += 1
        else:
            console().print(f"{reference(key)} ready", style="green")
    return failed


async def _apply_one(client: Client, manifest: Manifest, *, dry: bool) -> int | None:
    """Apply one manifest; return the generation that GM has stored (0 of a dry run), None if it was refused.

    Prints the outcome or the refusal, changes of the files that the manifest names, and warnings.
    """
    resource, generation = manifest.resource, 0
    name = reference(resource.key)
    try:
        if dry:
            outcome = await client.try_apply(resource.body)
        else:
            outcome, stored = await client.apply(resource.body)
            generation = int(stored.get("metadata", {}).get("generation") or 0)
    except (ApiRefusedError, InvalidFieldError) as error:
        fail(f"{manifest.source}: {name}: {error}")
        return None
    console().print(f"{name} {outcome}{' (dry run)' if dry else ''}", style="green" if outcome in CHANGED else "")
    local = await asyncio.to_thread(read_local, resource)
    status = {} if dry else stored.get("status") or {}
    old = (status.get("model") or {}).get("digest", "")
    if local.digest and old and local.digest != old and not resource.spec.sha256:
        change = f"file changed: sha256 {old[:SHORT]}.. -> {local.digest[:SHORT]}.."
        console().print(f"{name}: {change}: nodes that read this file try it, and use it within a minute")
    await _print_code(resource, status)
    _warn(manifest, local.problem)
    return generation


async def _print_code(resource: Resource[Any], status: Mapping[str, Any]) -> None:
    """Print the Python files of a service that have changed since nodes read them.

    ``status`` is the service's; it has the beginning of each digest.
    """
    for file, digest in (await asyncio.to_thread(local_code, resource)).items():
        reported = {(node.get("code") or {}).get(file, "") for node in status.get("nodes") or ()}
        old = ", ".join(f"{before[:SHORT]}.." for before in sorted(reported - {""}) if not digest.startswith(before))
        if old:
            change = f"{file} changed: sha256 {old} -> {digest[:SHORT]}.."
            console().print(f"{reference(resource.key)}: {change}: nodes that read this file restart its workers")


def _warn(manifest: Manifest, problem: str = "") -> None:
    """Warn of likely mistakes in a manifest that are no errors. ``problem``: that of the file that it names."""
    resource = manifest.resource
    if manifest.missing:
        warn(f"{manifest.source}: {manifest.missing} is not on this machine: it must exist on the nodes that use it")
    for doubt in filter(None, (problem, _range_warning(resource), _format_warning(resource))):
        warn(f"{manifest.source}: {reference(resource.key)}: {doubt}")


def _services(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the services that have a model at the edge and one in the cloud."""
    return [manifest for manifest in manifests if isinstance(manifest.resource.spec, JointInferenceServiceSpec)]


def _models(manifests: Iterable[Manifest], service: Manifest) -> dict[str, ModelSpec]:
    """Return the Models of manifests that are in the namespace of a service, by name."""
    resources = [manifest.resource for manifest in manifests]
    namespace = service.resource.metadata.namespace
    return {
        resource.metadata.name: resource.spec
        for resource in resources
        if resource.kind.plural == MODELS and resource.metadata.namespace == namespace
    }


async def _stored_models(client: Client, service: Manifest, models: Collection[str]) -> dict[str, ModelSpec]:
    """Return the Models that a service names and GM has, by name, except for those in ``models``."""
    stored: dict[str, ModelSpec] = {}
    for name in model_names(service.resource.spec) - set(models):
        try:
            body = await client.get(MODELS, name, service.resource.metadata.namespace)
            stored[name] = parse(body).spec
        except (ApiRefusedError, InvalidFieldError):
            continue  # the service waits for a Model that is missing, and its status names it
    return stored


def _warn_of_classes(service: Manifest, models: Mapping[str, ModelSpec]) -> None:
    """Warn of a service whose Models name their classes differently."""
    if doubt := different_names(service.resource.spec, models):
        warn(f"{service.source}: {reference(service.resource.key)}: {doubt}")


def _range_warning(resource: Resource[Any]) -> str:
    """Return the warning that a Model probably gets pixels on another range than it was trained on; else empty.

    It is empty as well if the model's file or the packages that read it are not on this machine.
    """
    if resource.kind.plural != MODELS:
        return ""
    spec = in_force(resource.spec)
    if not has_unscaled_pixels(spec.preprocess):
        return ""
    try:
        from halimede.inference.graph_input import scale_warning
        from halimede.models import local_path

        path = local_path(spec.url)
    except (ModuleNotFoundError, HalimedeError):  # only the extras of workers read models; nodes report a wrong url
        return ""
    return scale_warning(path, spec) if path else ""


def _format_warning(resource: Resource[Any]) -> str:
    """Return the warning that a Model's format is probably misspelt; empty: it is known, or a user's own."""
    form = resource.spec.format if resource.kind.plural == MODELS else ""
    if not form or format_of(form) is not None:
        return ""
    near = get_close_matches(form.lower(), list(FORMATS), n=1, cutoff=0.6)
    return f"spec.format: {form!r} is not a format that halimede reads: did you mean {near[0]}?" if near else ""
