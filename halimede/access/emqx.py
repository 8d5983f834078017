"""A site's access rules in the form of EMQX 5: its authorization file, which consists of Erlang terms.

EMQX checks subscriptions when they are made: it allows a filter that equals a granted one or is narrower, and refuses a
wider one. A shared subscription is checked without its ``$share/<group>/``. Written from EMQX's documentation and
source; it has not been run against an EMQX.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from halimede.access.files import text
from halimede.access.grants import Action, rights
from halimede.access.site import Site

HEAD = """\
%% Access rules of a halimede site for EMQX 5 (authorization source `file`). Made from the topic contract: do not edit,
%% make it anew. Written from EMQX's documentation; not tried against an EMQX by its makers.
%%
%% How to use it, in emqx.conf (the files are those of the folder `broker` beside this one):
%%   authorization {
%%     no_match = deny
%%     deny_action = ignore
%%     sources = [{type = file, enable = true, path = "etc/acl.conf"}]
%%   }
%%   mqtt.peer_cert_as_username = cn
%%   mqtt.max_packet_size = "17MB"
%%   listeners.ssl.default {
%%     bind = "0.0.0.0:8883"
%%     ssl_options {
%%       cacertfile = "etc/certs/ca.crt", certfile = "etc/certs/tls.crt", keyfile = "etc/certs/tls.key"
%%       verify = verify_peer, fail_if_no_peer_cert = true, versions = [tlsv1.3, tlsv1.2]
%%     }
%%   }
%% Switch the other listeners off (listeners.tcp.default.enable = false; ws and wss as well): they know no certificates.
%% `no_match = deny` is needed: the last rule does not reach topics that begin with a dollar sign.
"""
#: EMQX's own topics; `{deny, all}` does not match topics that begin with a dollar sign
TAIL = """\
{deny, all, all, ["$SYS/#", "$queue/#", "$stream/#", "$exclusive/#", "$delayed/#"]}.
{deny, all}.
"""


def acl_conf(site: Site) -> str:
    """Return the content of the file."""
    prefix = "".join(f"{level}/" for level in site.levels)
    rules = [HEAD]
    for principal in site.principals():
        granted = rights(site, principal)
        for action in Action:
            filters = [prefix + right.filter for right in granted if right.action is action]
            if filters:
                rules.append(_rule(principal.username, action, filters))
    return "\n".join([*rules, TAIL])


def users_file(site: Site, folder: Path) -> str:
    """Return the users with hashes of their passwords, in the form of EMQX's ``bootstrap_file`` of type ``hash``.

    For ``password_hash_algorithm {name = sha256, salt_position = suffix}``. The passwords are 256 random bits and
    cannot be guessed, so one round is enough.
    """
    lines = ["user_id,password_hash,salt,is_superuser"]
    for principal in site.principals():
        password = text(folder / principal.folder / "password") or ""
        # derived, not random, so that a Secret that is made again is the same
        salt = hashlib.sha256(f"{principal.username} {password}".encode()).hexdigest()[:32]
        found = hashlib.sha256(f"{password}{salt}".encode()).hexdigest()
        lines.append(f"{principal.username},{found},{salt},false")
    return "\n".join(lines) + "\n"


def _rule(username: str, action: Action, filters: list[str]) -> str:
    topics = ",\n  ".join(json.dumps(each) for each in filters)
    return f'{{allow, {{username, "{username}"}}, {action.value}, [\n  {topics}\n]}}.'
