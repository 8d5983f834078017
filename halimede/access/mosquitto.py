"""A site's access rules as Mosquitto reads them: a user section each, default deny.

Mosquitto checks what it delivers, so a wider subscription is granted and brings only what the rules allow. A shared
subscription is checked without its ``$share/<group>/``.
"""

from __future__ import annotations

from collections.abc import Iterable

from halimede.access.grants import Action, Grant, grants
from halimede.access.site import Site

HEAD = """\
# Access rules of a halimede site for Mosquitto (acl_file). Made from the topic contract: do not edit, make it anew.
# What is not granted here is denied.
"""


def acl_file(site: Site, prefix: str = "") -> str:
    """Return the file. ``prefix``: levels before every topic, ending in a slash, where systems share a broker."""
    sections = [HEAD]
    for principal in site.principals():
        rights = "\n".join(_lines(grants(principal), prefix))
        sections.append(f"user {principal.username}\n{rights}\n")
    return "\n".join(sections)


def _lines(rights: Iterable[Grant], prefix: str) -> list[str]:
    actions: dict[str, set[Action]] = {}
    for right in rights:
        actions.setdefault(right.filter, set()).add(right.action)
    return [f"topic {_word(found)} {prefix}{filter_}" for filter_, found in actions.items()]


def _word(actions: set[Action]) -> str:
    if len(actions) == 2:
        return "readwrite"
    return "write" if Action.PUBLISH in actions else "read"
