"""``halimede certs``: certificates, passwords and access rules of a site, made from its ``site.yaml``."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.text import Text

from halimede.access import bridge, emqx, files, manifests, passwords
from halimede.access import certs as certificates
from halimede.access.mosquitto import acl_file, configuration
from halimede.access.site import Site, SiteReport, read_site
from halimede.cli import options as o
from halimede.cli.options import Format
from halimede.cli.output import clean, console, table, to_yaml, warn
from halimede.cli.runner import run
from halimede.errors import HalimedeError, InvalidFieldError, cause_of, shorten_middle

#: names of users by their field in site.yaml
Names = dict[str, list[str]]
#: how site.yaml begins
HEAD = """\
# Who there is on this site's broker. Edit it, then run `halimede certs init` with this folder again.
"""
#: most bytes of a site file: enough for ten thousand long names
MAX_BYTES = 4 * 1024 * 1024
#: days of a certificate's validity below which the table shows "soon"
SOON = 30
#: what to do about a place whose broker would keep its messages in the folder of its Secret
DATA_FIX = (
    "on Kubernetes its broker cannot write below `install`, so messages that wait for the link are lost at a restart: "
    "write `data: /var/lib/halimede-place` there, and run `halimede certs init` and `halimede certs secrets` again"
)
#: most names in a summary; more are only counted
SHOWN = 12


#: brokers for which access rules can be written
AclTarget = Literal["mosquitto", "emqx"]

# arguments and options of several commands
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The site's folder.", show_default=False)]
Nodes = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NAME", help="A node: its LC and its workers; repeatable.", show_default=False),
]
Cameras = Annotated[
    list[str] | None, typer.Option("--camera", metavar="NAME", help="A camera; repeatable.", show_default=False)
]
Operators = Annotated[
    list[str] | None,
    typer.Option(
        "--operator", metavar="NAME", help="A person who uses the command `halimede`; repeatable.", show_default=False
    ),
]
Consumers = Annotated[
    list[str] | None,
    typer.Option("--consumer", metavar="NAME", help="A program that reads results; repeatable.", show_default=False),
]
Brokers = Annotated[
    list[str] | None,
    typer.Option(
        "--broker", metavar="HOST", help="Host name or address of the broker; repeatable.", show_default=False
    ),
]
Days = Annotated[int, typer.Option(min=1, max=3650, metavar="N", help="Days that new certificates are valid.")]
Prefix = Annotated[
    str,
    typer.Option(metavar="LEVELS", help="Prefix of every topic, if systems share a broker.", show_default=False),
]

#: the command with its subcommands
certs = o.group("Manage the certificates and access rules of a site with its own broker.")


@certs.command()
def init(
    folder: Folder,
    node: Nodes = None,
    camera: Cameras = None,
    operator: Operators = None,
    consumer: Consumers = None,
    broker: Brokers = None,
    prefix: Prefix = "",
    install: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="The path of FOLDER/broker on the broker's machine. Default: its path here.",
            show_default=False,
        ),
    ] = "",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            metavar="N",
            help="The broker's port for clients, such as a NodePort. Default: 8883, with --passwords 1883.",
            show_default=False,
        ),
    ] = 0,
    pools: Annotated[
        bool, typer.Option("--pools", help="Add users for worker pods, which run on any node (Kubernetes).")
    ] = False,
    passwords: Annotated[bool, typer.Option("--passwords", help="Use passwords in place of certificates.")] = False,
    days: Days = 365,
) -> None:
    """Create a site: authority, certificates for the broker and all its users, access rules.

    FOLDER/site.yaml lists the users. To change them, edit it and run `certs init FOLDER` again. Valid certificates are
    kept. A user that is removed from it loses all rights.

    \b
    Examples:
      halimede certs init --node edge0 --node cloud0 --camera cam0 --broker broker.example.com site/
      halimede certs init --node edge0 --broker 10.0.0.7 --install /etc/mosquitto/halimede site/
      halimede certs init --node edge0 --node cloud0 --pools --passwords site/
      halimede certs init site/
    """  # fmt: skip

    async def command() -> None:
        options: dict[str, str | int] = {
            "prefix": prefix, "install": install, "port": port, "pools": pools, "passwords": passwords,
        }  # fmt: skip
        _make_site(folder, _names_by_field(node, camera, operator, consumer, broker), options, days=days)

    run(command)


@certs.command()
def add(
    folder: Folder,
    node: Nodes = None,
    camera: Cameras = None,
    operator: Operators = None,
    consumer: Consumers = None,
    broker: Brokers = None,
    days: Days = 365,
) -> None:
    """Add users to a site. Other certificates do not change; --broker adds a name of the broker.

    \b
    Examples:
      halimede certs add --node edge7 site/
      halimede certs add --camera cam1 --camera cam2 --consumer dashboard site/
    """

    async def command() -> None:
        _change(folder, (node, camera, operator, consumer, broker), add=True, days=days)

    run(command)


@certs.command()
def remove(
    folder: Folder,
    node: Nodes = None,
    camera: Cameras = None,
    operator: Operators = None,
    consumer: Consumers = None,
    broker: Brokers = None,
) -> None:
    """Remove users from a site. Their rights end when the broker loads the new access rules.

    \b
    Examples:
      halimede certs remove --node edge7 site/
      halimede certs remove --operator alice site/
    """

    async def command() -> None:
        _change(folder, (node, camera, operator, consumer, broker), add=False)

    run(command)


@certs.command()
def rotate(
    folder: Folder,
    authority: Annotated[bool, typer.Option("--ca", help="Add a new authority; the old one stays valid.")] = False,
    finish: Annotated[bool, typer.Option("--finish", help="Remove the old authority.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="USER", help="Only this user, as `certs show` names it; repeatable.", show_default=False),
    ] = None,
    days: Days = 365,
) -> None:
    """Replace the certificates with new ones.

    A new authority takes three steps: `rotate --ca`, `rotate`, `rotate --finish`. After each step, copy the files
    to the machines that use them.

    \b
    Examples:
      halimede certs rotate site/
      halimede certs rotate --only lc.edge0 --only broker site/
      halimede certs rotate --ca site/
      halimede certs rotate --finish site/
    """
    if authority + finish + bool(only) > 1:
        raise typer.BadParameter("give only one of --ca, --finish and --only")

    async def command() -> None:
        if authority or finish:
            _rotate_authority(folder, finish=finish)
            return
        with _open_site(folder) as site:
            if only and site.passwords:
                raise InvalidFieldError("--only", only[0], "passwords are replaced for all users: leave it out")
            _make(site, folder, days=days, rotate=True, only=only)

    run(command)


@certs.command()
def show(folder: Folder, output: o.LinesOption = "table") -> None:
    """Show the users and when their certificates expire. Exit code 1: one is missing or not valid.

    \b
    Examples:
      halimede certs show site/
      halimede certs show site/ -o json | jq 'select(.days < 30)'
    """

    async def command() -> int:
        return _show_users(folder, Format(output))

    run(command)


@certs.command()
def acl(
    folder: Folder,
    target: Annotated[AclTarget, typer.Option("--for", help="The software of the broker.")] = "mosquitto",
    prefix: Prefix = "",
) -> None:
    """Print the access rules of a site as a broker reads them.

    \b
    Examples:
      halimede certs acl site/
      halimede certs acl --for emqx --prefix factory/east site/
    """

    async def command() -> None:
        with _open_site(folder) as site:
            shown = read_site({**_plain(site), "prefix": prefix}) if prefix else site
        sys.stdout.write(emqx.acl_conf(shown) if target == "emqx" else acl_file(shown))

    run(command)


@certs.command()
def secrets(
    folder: Folder,
    namespace: Annotated[str, typer.Option(metavar="NAME", help="Namespace of GM, LCs and the broker.")] = "halimede",
    workers_in: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A namespace with services; repeatable. Default: default.", show_default=False
        ),
    ] = None,
    target: Annotated[AclTarget, typer.Option("--for", help="The software of the broker.")] = "mosquitto",
) -> None:
    """Print the credentials of a site as Kubernetes Secrets. Keep them secret: they give all rights on the broker.

    \b
    Examples:
      halimede certs secrets site/ | kubectl apply --server-side -f -
      halimede certs secrets --workers-in default --workers-in vision site/ | kubectl apply --server-side -f -
      halimede certs secrets --for emqx site/ | kubectl apply --server-side -f -
    """

    async def command() -> None:
        with _open_site(folder) as site:
            documents = manifests.secrets_of(
                site, folder, namespace=namespace, workers_in=workers_in or ["default"], emqx=target == "emqx"
            )
            texts = [to_yaml(secret) for secret in documents]
            for i, site_bridge in enumerate(site.bridges):
                if site_bridge.install and not site_bridge.data:
                    warn(f"site.bridges[{i}].data of place {site_bridge.name} is empty: {DATA_FIX}")
        sys.stdout.write("---\n".join(texts))

    run(command)


def _make_site(folder: Path, names: Names, settings: dict[str, str | int], *, days: int) -> None:
    """Make a site, or update its files to its ``site.yaml``; options may only change ``install`` of an existing site.

    ``names`` and ``settings`` are the options of ``certs init``, ``days`` is for new certificates. Raises
    InvalidFieldError and HalimedeError.
    """
    options = {**names, **{key: value for key, value in settings.items() if value}}
    with _usable(folder):
        existing = _site_of(folder) if (folder / "nodes").is_dir() else _read(folder)
        if existing:
            options.setdefault("install", existing.install)
            existing = read_site({**_plain(existing), "install": options["install"]})
        site = existing if existing and options.keys() == {"install"} else read_site(options)
        if existing and site != existing:
            raise InvalidFieldError(
                "FOLDER", str(folder), "it has another site: change it with `halimede certs add` and `remove`, or "
                "edit its site.yaml and run `halimede certs init` without options"
            )  # fmt: skip
        if not site.nodes and not existing:
            raise InvalidFieldError("--node", "", "give at least one node")
        _make(site, folder, days=days)


def _change(folder: Path, options: tuple[list[str] | None, ...], *, add: bool, days: int = certificates.DAYS) -> None:
    """Add users to a site, or remove them, and update its files. ``options`` are the arguments of ``_names_by_field``.

    Raises InvalidFieldError without a user, for a user to add that is there already, and for one to remove that is not.
    """
    trouble = "it is in this site already" if add else "it is not in this site: `halimede certs show` lists the users"
    with _open_site(folder) as site:
        changed = _plain(site)
        names_by_field = _names_by_field(*options)
        if not names_by_field:
            raise InvalidFieldError("--node", "", "give --node, --camera, --operator, --consumer or --broker")
        for field, users in names_by_field.items():
            for user in users:
                if (user in changed[field]) is add:
                    raise InvalidFieldError(field, user, trouble)
                if add:
                    changed[field].append(user)
                else:
                    changed[field].remove(user)
        _make(read_site(changed), folder, days=days)


def _rotate_authority(folder: Path, *, finish: bool) -> None:
    """Add a new authority to a site, or (``finish``) remove the old one; print the next steps."""
    with _open_site(folder) as site:
        if site.passwords:
            raise InvalidFieldError("--finish" if finish else "--ca", "", "leave it out: the site has passwords")
        if not finish and (folder / "ca.key").exists() and (folder / "ca.crt").read_text().count("BEGIN CERT") > 1:
            raise InvalidFieldError(
                "--ca", str(folder), "it has a new authority already: continue with `halimede certs rotate`, then "
                "`--finish`"
            )  # fmt: skip
        report = certificates.finish_authority(site, folder) if finish else certificates.rotate_authority(site, folder)
        where = f"copy every ca.crt in {folder} to the machine that uses it, and restart the broker"
        if finish:
            state = "the old authority is removed" if report.created else "there is one authority: nothing to do"
            steps = [where] if report.created else []
        else:
            state = "there is a new authority; the old one and its certificates stay valid"
            steps = [where, f"halimede certs rotate {folder}   # then copy all folders again",
                     f"halimede certs rotate --finish {folder}"]  # fmt: skip
        _show([state], steps)


def _show_users(folder: Path, form: Format) -> int:
    """Print the users of a site; return the exit code: 1 if a certificate or password is missing or not valid."""
    now = datetime.now(UTC)
    with _open_site(folder) as site:
        states = passwords.states(site, folder) if site.passwords else certificates.states(site, folder)
    roles = {principal.username: principal.role.value for principal in site.principals()}
    rows = []
    for state in states:
        name = state.entry.username  # of the authority and of brokers as well: they are no users and have no role
        days = math.floor((state.expires - now).total_seconds() / 86_400) if state.expires else None
        rows.append({"user": name, "role": roles.get(name, {"ca": "authority"}.get(name, name)), "days": days,
                     "expires": state.expires.isoformat() if state.expires else None, "problem": state.problem,
                     "file": str(state.path)})  # fmt: skip
    if form is Format.JSON:
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
    else:
        cells = [(str(r["user"]), str(r["role"]), _time(r["days"], str(r["problem"])), str(r["file"])) for r in rows]
        console().print(table(("USER", "ROLE", "EXPIRES IN", "FILE"), cells))
    return int(any(row["problem"] for row in rows))


def _make(
    site: Site, folder: Path, *, days: int = certificates.DAYS, rotate: bool = False, only: list[str] | None = None
) -> None:
    """Make the missing files of a site, and print what was done and the next steps.

    ``rotate``: make new certificates or passwords, of the users ``only`` if it is given. ``site.yaml`` is written last,
    so that a command that fails does not change it.
    """
    folder = folder.absolute()
    if site.passwords:
        report = passwords.make_passwords(site, folder, rotate=rotate)
    else:
        report = certificates.make_certificates(site, folder, days=days, rotate=rotate, only=only or ())
    _write_bridges(site, folder)
    files.write(folder / "broker" / "mosquitto.conf", configuration(site, folder))
    emqx.write_files(site, folder)
    changed = files.write(folder / "site.yaml", HEAD + to_yaml(_plain(site)), lasting=True)
    lines = [f"{action:<8} {_list(names)}" for action, names in
             (("made", report.created), ("kept", report.unchanged), ("removed", report.removed)) if names]  # fmt: skip
    if report.expires:
        lines.append(f"expires  {report.expires:%Y-%m-%d} (the first): run `halimede certs rotate` before that")
    _show(lines, _steps(site, folder, report, changed=changed))


def _write_bridges(site: Site, folder: Path) -> None:
    """Write the configuration of each place's broker, which forwards messages to the site's broker."""
    for site_bridge in site.bridges:
        bridge_folder = folder / "bridges" / site_bridge.name
        link = bridge_folder / "link"
        login = (str(files.text(link / "username")), str(files.text(link / "password"))) if site.passwords else None
        where = Path(site_bridge.install) if site_bridge.install else bridge_folder
        text = bridge.configuration(site, site_bridge, where, login=login)
        files.write(bridge_folder / "broker" / "mosquitto.conf", text, files.SECRET)


def _steps(site: Site, folder: Path, report: SiteReport, *, changed: bool) -> list[str]:
    """Return what to do after files were made; ``changed``: site.yaml has changed. Empty: nothing is to do."""
    if not report.changed and not changed:
        return []
    broker = f"mqtt{'' if site.passwords else 's'}://{bridge.address(site)}"
    steps = []
    if site.pools:
        steps.append(
            f"on Kubernetes, in place of copies: halimede certs secrets {folder} | kubectl apply --server-side -f -"
            " (services in other namespaces than default: --workers-in NAMESPACE)"
        )
    if certificates.CA in report.created:
        paths = "" if site.install else "; its paths are those of this machine: `--install DIR` sets others"
        steps.append(f"copy {folder}/broker to {site.install or 'the broker'}, then: mosquitto -c mosquitto.conf (see "
                     f"its first lines{paths}; for EMQX: docs/emqx.md)")  # fmt: skip
    elif certificates.BROKER in report.created or changed or site.passwords:
        steps.append(f"copy {folder}/broker to the broker and send it SIGHUP (systemctl reload mosquitto)")
    fresh = set(report.created)
    shown = [p for p in site.principals() if p.username in fresh]
    nodes = list(dict.fromkeys(p.name for p in shown if p.folder.parts[0] == "nodes"))
    steps += [
        f"copy {folder}/nodes/{name} to node {name}: halimede lc --node {name} --broker {broker} --credentials DIR"
        for name in nodes[:SHOWN]
    ]
    if len(nodes) > SHOWN:
        steps.append(f"... and the same for {len(nodes) - SHOWN} more nodes")
    if "gm" in fresh:
        steps.append(f"copy {folder}/gm to GM: halimede gm --broker {broker} --credentials DIR")
    other_users = [str(p.folder) for p in shown if p.folder.parts[0] not in {"nodes", "gm"}]
    if other_users:
        steps.append(
            f"give each other user its folder ({_list(other_users)}): HALIMEDE_BROKER={broker} HALIMEDE_CREDENTIALS=DIR"
        )
    if certificates.CA in report.created:
        steps.append(f"keep {folder}/ca.key secret, and back it up: it can sign a certificate for any user")
    return steps


def _show(lines: list[str], steps: list[str]) -> None:
    """Print lines, and numbered next steps."""
    out = console()
    for line in lines:
        out.print(Text(clean(line)))
    if steps:
        out.print(Text("next:", style="bold"))
    for number, step in enumerate(steps, 1):
        out.print(Text(f"  {number}. {clean(step)}"))


def _list(names: tuple[str, ...] | list[str]) -> str:
    """Return the first ``SHOWN`` names as one text, and how many names there are if that is not all."""
    more = f", ... ({len(names)})" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _time(days: Any, problem: str) -> str:
    """Return the cell about a certificate's validity: its days, or the problem."""
    if days is None or problem:
        return problem
    return f"{days} days{': soon' if days < SOON else ''}"


def _names_by_field(*names: list[str] | None) -> Names:
    """Return the names of ``--node``, ``--camera``, ``--operator``, ``--consumer``, ``--broker``; no empty lists."""
    fields = ("nodes", "cameras", "operators", "consumers", "broker")
    return {field: users for field, users in zip(fields, names, strict=True) if users}


def _plain(site: Site) -> dict[str, Any]:
    """Return a site as plain data, with the fields that users edit; optional ones only if they are set."""
    fields = {name: getattr(site, name) for name in site.__struct_fields__}
    optional = {"prefix", "install", "pools", "passwords", "bridges"}
    return {key: value for key, value in msgspec.to_builtins(fields).items() if value or key not in optional}


def _site_of(folder: Path) -> Site:
    """Return the site of a folder. Raises InvalidFieldError if there is none."""
    if site := _read(folder):
        return site
    is_managed = (folder / "operators").is_dir() or (folder / "nodes").is_dir()
    text = (
        "`halimede up` manages this site and renews it at each start: nothing to do"
        if is_managed
        else "it has no site.yaml: create a site with `halimede certs init`"
    )
    raise InvalidFieldError("FOLDER", str(folder), text)


def _read(folder: Path) -> Site | None:
    """Return the site in a folder's site.yaml; None without that file. Raises InvalidFieldError and HalimedeError."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    from halimede.system.bounded_yaml import bounded_yaml, yaml_problem

    path = folder / "site.yaml"
    if not path.exists():
        return None
    if path.stat().st_size > MAX_BYTES:
        raise InvalidFieldError("FOLDER", str(path), f"it is larger than {MAX_BYTES} bytes: make it smaller")
    try:
        return read_site(bounded_yaml().load(path.read_text()))
    except MarkedYAMLError as error:
        line, problem = yaml_problem(error)
        where = f"{path}:{line}" if line else path
        raise HalimedeError(f"{where}: not valid YAML: {shorten_middle(problem, 300)}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise HalimedeError(f"{path}: not valid YAML: {shorten_middle(cause_of(error), 300)}") from None


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Raise HalimedeError in place of an OSError in the block, which uses ``folder``."""
    try:
        yield
    except OSError as error:
        raise HalimedeError(
            f"{error.filename or folder} cannot be used ({error.strerror}): choose another folder, or free some space"
        ) from error


@contextlib.contextmanager
def _open_site(folder: Path) -> Iterator[Site]:
    """Yield the site of a folder. Raises InvalidFieldError without one, HalimedeError in place of an OSError."""
    with _usable(folder):
        yield _site_of(folder)
