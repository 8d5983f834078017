"""A site's access rules as EMQX 5 reads them: its authorization file, which is Erlang terms.

EMQX checks subscriptions when they are made: a filter must be granted as it stands or be narrower, a wider one is
refused. A shared subscription is checked without its ``$share/<group>/``. Written from EMQX's documentation and
source; it has not been run against an EMQX.
"""

from __future__ import annotations

import json

from halimede.access.grants import Action, grants
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
#: EMQX's own name spaces; `{deny, all}` does not match what begins with a dollar sign
TAIL = """\
{deny, all, all, ["$SYS/#", "$queue/#", "$stream/#", "$exclusive/#", "$delayed/#"]}.
{deny, all}.
"""


def acl_conf(site: Site) -> str:
    """Return the file."""
    prefix = "".join(f"{level}/" for level in site.levels)
    rules = [HEAD]
    for principal in site.principals():
        rights = grants(principal)
        for action in Action:
            filters = [prefix + right.filter for right in rights if right.action is action]
            if filters:
                rules.append(_rule(principal.username, action, filters))
    return "\n".join([*rules, TAIL])


def _rule(username: str, action: Action, filters: list[str]) -> str:
    topics = ",\n  ".join(json.dumps(text) for text in filters)
    return f'{{allow, {{username, "{username}"}}, {action.value}, [\n  {topics}\n]}}.'
