"""The files by which brokers know a site's rules: the site's own broker, and those of its places behind bridges."""

from __future__ import annotations

from pathlib import Path

from halimede.access import files
from halimede.access.bridge_routes import behind
from halimede.access.mosquitto import acl_file
from halimede.access.site import Bridge, Site


def write_rules(site: Site, folder: Path) -> None:
    """Write access rules for every broker of a site."""
    files.write(folder / "broker" / "acl", acl_file(site), files.SECRET)
    for bridge in site.bridges:
        files.write(make_place(folder, bridge) / "acl", acl_file(site, behind(site, bridge)), files.SECRET)


def make_place(folder: Path, bridge: Bridge) -> Path:
    """Make the folder for the broker of a place; return it."""
    return files.make_folders(folder, Path("bridges", bridge.name, "broker"))
