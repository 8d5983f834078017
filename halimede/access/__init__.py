"""Who may do what on the broker: the people and parts of a site, and access rules made from the contract.

A broker that runs with these files denies by default: what ``halimede/topics`` does not grant to a role is not there
for it. What a node's name stands in is granted to that node alone, a camera's topic to that camera alone.
"""

from halimede.access.grants import Action, Grant, grants
from halimede.access.mosquitto import acl_file
from halimede.access.site import Principal, Site, read_site

__all__ = ["Action", "Grant", "Principal", "Site", "acl_file", "grants", "read_site"]
