"""What `halimede certs` does: ``site.yaml`` read and written, certificates and rules made, the next step said."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from halimede.access import bridge, certs, files, manifests, passwords
from halimede.access.emqx import acl_conf
from halimede.access.mosquitto import acl_file, configuration
from halimede.access.report import SiteReport
from halimede.access.site import Site, read_site
from halimede.cli.output import Format, clean, console, table, to_yaml
from halimede.errors import HalimedeError, InvalidFieldError

Names = dict[str, list[str]]
HEAD = """\
# Who there is on this site's broker. Edit it, then run `halimede certs init` with this folder again.
"""
#: a site file of ten thousand long names
MOST_BYTES = 4 * 1024 * 1024
SOON = 30
#: names that a summary shows before it only counts
SHOWN = 12


def init(folder: Path, given: Names, others: dict[str, str | bool], *, days: int) -> None:
    """Make a site, or bring its files in line with its ``site.yaml``."""
    options = {**given, **{key: value for key, value in others.items() if value}}
    with _usable(folder):
        there = _read(folder, missing=not (folder / "nodes").is_dir())
        site = there if there and not options else read_site(options)
        if there and site != there:
            raise InvalidFieldError(
                "FOLDER", str(folder), "there is another site: change it with `halimede certs add` and `remove`, or "
                "edit its site.yaml and run `halimede certs init` without options"
            )  # fmt: skip
        if not site.nodes and not there:
            raise InvalidFieldError("--node", "", "name at least one node")
        _make(site, folder, days=days)


def add(folder: Path, given: Names, *, days: int) -> None:
    """Put names into a site."""
    with _usable(folder):
        changed = _plain(_site(folder))
        for field, names in _some(given).items():
            for name in names:
                if name in changed[field]:
                    raise InvalidFieldError(field, name, "it is in this site already")
                changed[field].append(name)
        _make(read_site(changed), folder, days=days)


def remove(folder: Path, given: Names) -> None:
    """Take names out of a site."""
    with _usable(folder):
        changed = _plain(_site(folder))
        for field, names in _some(given).items():
            for name in names:
                if name not in changed[field]:
                    raise InvalidFieldError(field, name, "it is not in this site: `halimede certs show` lists who is")
                changed[field].remove(name)
        _make(read_site(changed), folder)


def rotate(folder: Path, only: list[str], *, days: int) -> None:
    """Make new certificates."""
    with _usable(folder):
        site = _site(folder)
        if only and site.passwords:
            raise InvalidFieldError("--only", only[0], "passwords are made anew for all: leave it out")
        _make(site, folder, days=days, rotate=True, only=only)


def rotate_authority(folder: Path, *, finish: bool) -> None:
    """Begin to trust a new authority, or stop trusting the old one."""
    with _usable(folder):
        site = _site(folder)
        if site.passwords:
            raise InvalidFieldError("--finish" if finish else "--ca", str(folder), "a site with passwords has none")
        if not finish and (folder / "ca.key").exists() and (folder / "ca.crt").read_text().count("BEGIN CERT") > 1:
            raise InvalidFieldError(
                "--ca", str(folder), "a new authority is on its way already: go on with `halimede certs rotate`, then "
                "`--finish`"
            )  # fmt: skip
        report = certs.finish_authority(site, folder) if finish else certs.rotate_authority(site, folder)
        where = f"copy every ca.crt below {folder} to where it is used, and restart the broker"
        if finish:
            state = "the new authority alone counts" if report.made else "there is one authority: nothing to finish"
            steps = [where] if report.made else []
        else:
            state = "there is a new authority; the old one counts too, and everyone still has its certificates"
            steps = [where, f"halimede certs rotate {folder}   # then copy all folders again",
                     f"halimede certs rotate --finish {folder}"]  # fmt: skip
        _show([state], steps)


def show(folder: Path, form: Format) -> int:
    """Show who there is; return 1 where a certificate is missing, does not serve or has expired."""
    now = datetime.now(UTC)
    with _usable(folder):
        site = _site(folder)
        found = passwords.look(site, folder) if site.passwords else certs.look(site, folder)
    roles = {principal.username: principal.role.value for principal in site.principals()}
    rows = []
    for each in found:
        name = each.entry.username
        days = math.floor((each.expires - now).total_seconds() / 86_400) if each.expires else None
        rows.append({"user": name, "role": roles.get(name, {"ca": "authority"}.get(name, name)), "days": days,
                     "expires": each.expires.isoformat() if each.expires else None, "problem": each.problem,
                     "file": str(each.path)})  # fmt: skip
    if form is Format.JSON:
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
    else:
        cells = [(str(r["user"]), str(r["role"]), _time(r["days"], str(r["problem"])), str(r["file"])) for r in rows]
        console().print(table(("USER", "ROLE", "EXPIRES IN", "FILE"), cells))
    return int(any(row["problem"] for row in rows))


def acl(folder: Path, target: str, prefix: str) -> None:
    """Print access rules."""
    with _usable(folder):
        site = _site(folder)
    if prefix:
        site = read_site({**_plain(site), "prefix": prefix})
    sys.stdout.write(acl_conf(site) if target == "emqx" else acl_file(site))


def secrets(folder: Path, namespace: str, workers_in: list[str], target: str) -> None:
    """Print Secrets, one YAML document each."""
    with _usable(folder):
        site = _site(folder)
        found = manifests.secrets_of(site, folder, namespace=namespace, workers_in=workers_in, emqx=target == "emqx")
        made = [to_yaml(secret) for secret in found]
    sys.stdout.write("---\n".join(made))


def _make(
    site: Site, folder: Path, *, days: int = certs.DAYS, rotate: bool = False, only: list[str] | None = None
) -> None:
    """Make what is missing; the list of who there is comes last, so that a command that fails changed nothing in it."""
    folder = folder.absolute()
    if site.passwords:
        report = passwords.make_passwords(site, folder, rotate=rotate)
    else:
        report = certs.make_certificates(site, folder, days=days, rotate=rotate, only=only or ())
    _write_bridges(site, folder)
    files.write(folder / "broker" / "mosquitto.conf", configuration(site, folder))
    files.write(files.make_folders(folder, Path("emqx")) / "acl.conf", acl_conf(site))
    changed = files.write(folder / "site.yaml", HEAD + to_yaml(_plain(site)), lasting=True)
    lines = [f"{word:<8} {_list(names)}" for word, names in
             (("made", report.made), ("kept", report.kept), ("removed", report.removed)) if names]  # fmt: skip
    if report.expires:
        lines.append(f"expires  {report.expires:%Y-%m-%d} the first of them: `halimede certs rotate` before that")
    _show(lines, _steps(site, folder, report, changed=changed))


def _write_bridges(site: Site, folder: Path) -> None:
    for found in site.bridges:
        place = folder / "bridges" / found.name
        own = place / "link"
        login = (str(files.text(own / "username")), str(files.text(own / "password"))) if site.passwords else None
        where = Path(found.install) if found.install else place
        text = bridge.configuration(site, found, where, login=login)
        files.write(place / "broker" / "mosquitto.conf", text, files.SECRET)


def _steps(site: Site, folder: Path, report: SiteReport, *, changed: bool) -> list[str]:
    if not report.changed and not changed:
        return []
    broker = f"mqtt{'' if site.passwords else 's'}://{bridge.address(site)}"
    steps = []
    if certs.CA in report.made:
        paths = (
            "" if site.install else "; it names the files where they are now: `--install DIR` writes the paths there"
        )
        steps.append(f"copy {folder}/broker to {site.install or 'the broker'}, then: mosquitto -c mosquitto.conf (its "
                     f"first lines say more{paths}; for EMQX: emqx/acl.conf)")  # fmt: skip
    elif certs.BROKER in report.made or changed or site.passwords:
        steps.append(f"copy {folder}/broker to the broker and send it SIGHUP (systemctl reload mosquitto)")
    fresh = set(report.made)
    shown = [p for p in site.principals() if p.username in fresh]
    nodes = list(dict.fromkeys(p.name for p in shown if p.folder.parts[0] == "nodes"))
    steps += [
        f"copy {folder}/nodes/{name} to node {name}: services.lc --node {name} --broker {broker} --credentials DIR"
        for name in nodes[:SHOWN]
    ]
    if len(nodes) > SHOWN:
        steps.append(f"... and likewise {len(nodes) - SHOWN} more nodes")
    if "gm" in fresh:
        steps.append(f"copy {folder}/gm to GM: services.gm --broker {broker} --credentials DIR")
    others = [str(p.folder) for p in shown if p.folder.parts[0] not in {"nodes", "gm"}]
    if others:
        steps.append(
            f"give the others their folders ({_list(others)}): HALIMEDE_BROKER={broker} HALIMEDE_CREDENTIALS=DIR"
        )
    if certs.CA in report.made:
        steps.append(f"keep {folder}/ca.key to yourself, with a copy in a safe place: whoever has it can be anyone")
    return steps


def _show(lines: list[str], steps: list[str]) -> None:
    out = console()
    for line in lines:
        out.print(Text(clean(line)))
    if steps:
        out.print(Text("next:", style="bold"))
    for number, step in enumerate(steps, 1):
        out.print(Text(f"  {number}. {clean(step)}"))


def _list(names: tuple[str, ...] | list[str]) -> str:
    rest = f", ... ({len(names)})" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest


def _time(days: Any, problem: str) -> str:
    if days is None or problem:
        return problem
    return f"{days} days{': soon' if days < SOON else ''}"


def _some(given: Names) -> Names:
    if not given:
        raise InvalidFieldError("--node", "", "name somebody: --node, --camera, --operator, --consumer or --broker")
    return given


def _plain(site: Site) -> dict[str, Any]:
    """Return a site with every field, as a user finds it most easily."""
    found = {name: getattr(site, name) for name in site.__struct_fields__}
    optional = {"prefix", "install", "pools", "passwords", "bridges"}
    return {key: value for key, value in msgspec.to_builtins(found).items() if value or key not in optional}


def _site(folder: Path) -> Site:
    found = _read(folder)
    assert found is not None, "it would have raised"  # noqa: S101 - for the type checker
    return found


def _read(folder: Path, *, missing: bool = False) -> Site | None:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    path = folder / "site.yaml"
    if not path.exists():
        if missing:
            return None
        kept = (folder / "operators").is_dir() or (folder / "nodes").is_dir()
        text = (
            "it is kept by `python -m services` itself, which renews it at each start: nothing to do here"
            if kept
            else "there is no site.yaml: make a site with `halimede certs init`"
        )
        raise InvalidFieldError("FOLDER", str(folder), text)
    if path.stat().st_size > MOST_BYTES:
        raise InvalidFieldError("FOLDER", str(path), f"a site file has at most {MOST_BYTES} bytes")
    try:
        return read_site(YAML(typ="safe", pure=True).load(path.read_text()))
    except (YAMLError, UnicodeDecodeError) as error:
        raise HalimedeError(f"{path} is no YAML: {' '.join(str(error).split())[:300]}") from None


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HalimedeError(
            f"{error.filename or folder} cannot be used ({error.strerror}): choose another folder, or make room"
        ) from error
