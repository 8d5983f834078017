"""``halimede get`` and ``halimede nodes``: show resources of a kind, nodes or cameras; with -w also their changes.

Without a kind, ``get`` lists the kinds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from halimede import topics
from halimede.api import Kind, kinds, plurals
from halimede.cli import cameras, completion, tables
from halimede.cli import options as o
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import ApiRefusedError, Client
from halimede.cli.commands import events
from halimede.cli.options import CAMERA_KINDS, NODE_KINDS, Format
from halimede.cli.output import as_list, clean_cell, console, dump, plain, table, to_yaml, warn
from halimede.cli.runner import run
from halimede.health_checks.resource_fields import dig
from halimede.messages import ResourceBody, StatusDocument

#: resources by namespace and name
Rows = dict[tuple[str, str], ResourceBody]
#: seconds to wait for the retained statuses of cameras
CAMERAS_S = 0.5
#: characters of a column in a pipe
COLUMN_WIDTH = 16
#: the short names of what ``get`` lists in addition to resources, in the order of ``completion.LISTS``
SHORT = ("no", "cam", "ev")


def get(
    kind: Annotated[
        str,
        typer.Argument(metavar="[KIND]", help=o.KINDS, show_default=False, autocompletion=completion.kinds),
    ] = "",
    name: o.NameArgument = "",
    namespace: o.Namespace = "default",
    everywhere: o.AllNamespaces = False,
    output: o.OutputOption = Format.TABLE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show changes until Ctrl-C.")] = False,
    broker: o.Broker = "",
    credentials: o.Credentials = "",
) -> None:
    """Show resources.

    Without KIND it lists the kinds.

    \b
    Examples:
      halimede get
      halimede get ji
      halimede get models -A -o wide
      halimede get ji digits -o yaml
      halimede get ji -w
      halimede get cameras
    """
    if not kind:
        if watch or everywhere:
            raise typer.BadParameter("give a KIND with -w and -A: `halimede get` lists the kinds")
        return run(lambda: show_kinds(output))
    if not name and kind in NODE_KINDS:
        return nodes(output, broker, credentials)
    if not name and kind in {"events", "event", "ev"}:
        form = Format.JSON if output is Format.JSON else Format.TABLE
        return events.events(namespace=namespace, output=form, follow=watch, broker=broker, credentials=credentials)

    kind_name, _, behind = kind.partition("/")
    if kind_name in CAMERA_KINDS and watch:
        raise typer.BadParameter("-w does not work with cameras: leave out -w")

    async def command() -> None:
        if kind_name in CAMERA_KINDS:
            where = o.namespace_of(namespace, everywhere=everywhere)
            return await show_cameras(o.address(broker, credentials), name or behind, where, output)
        resource_kind, resource_name = o.target(kind, name)
        if resource_name and everywhere:
            raise typer.BadParameter("-A does not work with a name: leave out -A")
        where = o.namespace_of(namespace, everywhere=everywhere)
        show = watch_resources if watch else show_resources
        return await show(o.address(broker, credentials), resource_kind, resource_name, where, output)

    return run(command)


async def show_kinds(form: Format) -> None:
    """Print what ``get`` takes as KIND. It needs no broker."""
    rows = [(kind.plural, kind.short_names[0], kind.kind, _groups(kind)) for kind in plurals()]
    rows += [(name, short, "", []) for name, short in zip(completion.LISTS, SHORT, strict=True)]
    data = [dict(zip(("name", "shortName", "kind", "apiVersions"), row, strict=True)) for row in rows]
    columns = ["KIND", "SHORT", "IN MANIFESTS", "API VERSIONS"]
    cells = [(*names, ", ".join(groups)) for *names, groups in rows]
    _print(form, data, [name for name, *_ in rows], lambda: table(columns, cells))


def _groups(kind: Kind) -> list[str]:
    """Return the API versions that have a kind."""
    return [other.api_version for other in kinds() if other.kind == kind.kind]


async def show_cameras(broker: BrokerAddress, name: str, namespace: str, form: Format) -> None:
    """Print cameras that have a status or that services name; an empty name or namespace means all of them."""
    async with Client.to(broker) as client:
        reports = await cameras.statuses(client.bus, CAMERAS_S)
        rows = [
            row
            for row in cameras.rows(reports, await client.services(namespace))
            if name in {"", row["camera"]} and namespace in {"", row["namespace"]}
        ]
    grid = partial(cameras.camera_table, rows, wide=form is Format.WIDE, all_namespaces=not namespace)
    nothing = f"no cameras{_in_namespace(namespace)}: no service names one, and none reports"
    _print(form, rows, [f"camera/{row['camera']}" for row in rows], grid, nothing)


async def show_resources(broker: BrokerAddress, kind: Kind, name: str, namespace: str, form: Format) -> None:
    """Print one resource, or all of a kind; an empty name or namespace means all of them."""
    async with Client.to(broker) as client:
        bodies, cut = await fetch(client, kind, name, namespace)
    names = [f"{str(body.get('kind') or kind.kind).lower()}/{key(body)[1]}" for body in bodies]
    grid = partial(tables.resources, kind.plural, bodies, wide=form is Format.WIDE, all_namespaces=not namespace)
    nothing = f"no {kind.plural}{_in_namespace(namespace)}"
    _print(form, bodies[0] if name else as_list(bodies), names, grid, nothing)
    if cut:
        warn("the list is truncated at the size limit of a reply: use -n for one namespace")


async def fetch(client: Client, kind: Kind, name: str, namespace: str) -> tuple[list[ResourceBody], bool]:
    """Return the named resource, or without a name all of a kind, and whether ``Client.list`` has cut the list.

    All are sorted by namespace and name. Raises ApiRefusedError (``NotFound``) for a name that does not exist.
    """
    if name:
        return [await client.get(kind.plural, name, namespace)], False
    bodies, cut = await client.list(kind.plural, namespace)
    return sorted(bodies, key=key), cut


def key(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name of a resource: a sort key."""
    return str(dig(body, "metadata", "namespace")), str(dig(body, "metadata", "name"))


def _in_namespace(namespace: str) -> str:
    """Return the namespace as a part of a warning; empty for an empty namespace, which means all of them."""
    return f" in namespace {namespace}" if namespace else ""


def _print(form: Format, data: Any, names: Sequence[str], grid: Callable[[], Table], nothing: str = "") -> None:
    """Print plain data, names or a table, as the form requires; without names, ``nothing`` replaces the table."""
    if form in {Format.JSON, Format.YAML}:
        dump(data, form)
    elif form is Format.NAME:
        for name in names:
            print(name)
    elif names:
        console().print(grid())
    else:
        warn(nothing)


async def watch_resources(broker: BrokerAddress, kind: Kind, name: str, namespace: str, form: Format) -> None:
    """Show resources until Ctrl-C: as a live table on a terminal, else as a line for each change.

    An empty name or namespace means all of them.
    """
    from halimede.cli.follow import follow  # here, because only watching needs its MQTT client

    async with Client.to(broker) as client:
        bodies, _ = await fetch(client, kind, name, namespace)
        rows: Rows = {key(body): body for body in bodies}
        screen = _screen(kind, form, wide=form is Format.WIDE, all_namespaces=not namespace)
        with screen:
            screen.start(rows)
            chosen = {"ns": namespace, "name": name}
            filter_ = topics.STATUS.filter(plural=kind.plural, **{k: v for k, v in chosen.items() if v})
            async for names, document in follow(broker, filter_):
                where = (names["ns"], names["name"])
                before = rows.get(where)
                if document is None:
                    rows.pop(where, None)
                else:
                    rows[where] = await _merge(client, kind, before, document)
                if rows.get(where) != before:
                    screen.changed(where, rows)


async def _merge(client: Client, kind: Kind, body: ResourceBody | None, document: StatusDocument) -> ResourceBody:
    """Return the resource with a new status; its spec is requested only if its generation has changed."""
    identity = dig(body, "metadata", "uid"), dig(body, "metadata", "generation")
    if body is None or identity != (document.uid, document.generation):
        try:
            body = await client.get(kind.plural, document.name, document.namespace)
        except ApiRefusedError:  # deleted in between: the next message clears its topic
            body = {"metadata": {"name": document.name, "namespace": document.namespace, "uid": document.uid}}
    return {**body, "status": plain(document.status)}


class _Lines:
    """For pipes: prints one line or document for each change. It has the interface of ``_Screen``."""

    def __init__(self, kind: Kind, form: Format, *, wide: bool, all_namespaces: bool) -> None:
        self._form = form
        self._columns = tables.columns_of(kind.plural, wide=wide, all_namespaces=all_namespaces)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def start(self, rows: Rows) -> None:
        if self._form in {Format.TABLE, Format.WIDE}:
            self._line([column.title for column in self._columns])
        for where in sorted(rows):
            self.changed(where, rows)

    def changed(self, where: tuple[str, str], rows: Rows) -> None:
        deleted = {"metadata": {"namespace": where[0], "name": where[1]}, "status": {"phase": "Deleted"}}
        body: Mapping[str, Any] = rows.get(where, deleted)
        if self._form is Format.JSON:
            print(json.dumps(body, ensure_ascii=False), flush=True)
        elif self._form is Format.YAML:
            print(f"---\n{to_yaml(body)}", end="", flush=True)
        elif self._form is Format.NAME:
            print(where[1], flush=True)
        else:
            self._line([clean_cell(column.cell(body)) for column in self._columns])

    def _line(self, cells: list[str]) -> None:
        print("   ".join(cell.ljust(COLUMN_WIDTH) for cell in cells).rstrip(), flush=True)


class _Screen:
    """For terminals: draws the whole table again on each change. Use it with ``with``.

    Call ``start`` with all rows, and ``changed`` with the key of a row that has changed or was deleted, and all rows.
    """

    def __init__(self, kind: Kind, *, wide: bool, all_namespaces: bool) -> None:
        self._kind, self._wide, self._all = kind, wide, all_namespaces
        self._live = Live(console=Console(highlight=False), auto_refresh=False)

    def __enter__(self) -> None:
        self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def start(self, rows: Rows) -> None:
        self._live.update(self._table(rows), refresh=True)

    def changed(self, where: tuple[str, str], rows: Rows) -> None:  # noqa: ARG002  # the whole table is drawn
        self.start(rows)

    def _table(self, rows: Rows) -> Table:
        bodies = [rows[where] for where in sorted(rows)]
        return tables.resources(self._kind.plural, bodies, wide=self._wide, all_namespaces=self._all)


def _screen(kind: Kind, form: Format, *, wide: bool, all_namespaces: bool) -> _Lines | _Screen:
    """Return what shows changes on this standard output."""
    if sys.stdout.isatty() and form in {Format.TABLE, Format.WIDE}:
        return _Screen(kind, wide=wide, all_namespaces=all_namespaces)
    return _Lines(kind, form, wide=wide, all_namespaces=all_namespaces)


def nodes(output: o.OutputOption = Format.TABLE, broker: o.Broker = "", credentials: o.Credentials = "") -> None:
    """Show the nodes.

    \b
    Examples:
      halimede nodes
      halimede nodes -o json
    """
    run(lambda: show_nodes(o.address(broker, credentials), output))


async def show_nodes(broker: BrokerAddress, form: Format) -> None:
    """Print the nodes, by name."""
    async with Client.to(broker) as client:
        infos = sorted(await client.nodes(), key=lambda node: node.name)
    nothing = "no nodes: no local controller has connected to this broker yet"
    _print(form, plain(infos), [f"node/{node.name}" for node in infos], lambda: tables.nodes(infos), nothing)
