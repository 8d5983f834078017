"""A site's settings, access rules and users in the form of EMQX 5.

The settings are HOCON, the rules Erlang terms (authorization source ``file``). EMQX checks subscriptions when they are
made: it allows a filter that equals a granted one or is narrower, and refuses a wider one. A ``+`` of a rule also
matches a ``#`` of the filter. A shared subscription is checked without its ``$share/<group>/``.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path

from halimede.access import files
from halimede.access.files import text
from halimede.access.grants import Action, rights
from halimede.access.mosquitto import MAX_INFLIGHT, MAX_PACKET, MAX_QUEUED, port
from halimede.access.site import Site

#: EMQX accepts a packet of this size without its fixed header, and drops a packet for a client that has the client's
#: limit (``MAX_PACKET``) with it: 1 KiB less, and whatever is acknowledged can be delivered
MAX_PACKET_KIB = MAX_PACKET // 1024 - 1
#: the defaults lose messages: 1000 retained messages a second and 1 MB each, and the session of a client with 1000
#: messages in its mailbox or 32 MB on its heap ends
LIMITS = f"""\
mqtt {{
  max_packet_size = "{MAX_PACKET_KIB}KB"
  max_inflight = {MAX_INFLIGHT}
  max_mqueue_len = {MAX_QUEUED}
}}
retainer {{max_publish_rate = infinity, delivery_rate = infinity, max_payload_size = "17MB"}}
force_shutdown {{max_mailbox_size = 100000, max_heap_size = "512MB"}}
"""
ACL_HEAD = """\
%% Access rules of a halimede site for EMQX 5 (authorization source `file`). Made from the topic contract: do not edit,
%% make it anew. The settings that it needs are in emqx.conf in this folder.
%% {users}
%% `no_match = deny` is needed: the last rule does not reach topics that begin with a dollar sign.
"""
USERS = {
    True: "The users have passwords: users.csv in this folder has their hashes.",
    False: "The users have certificates: the common name is the user name (`mqtt.peer_cert_as_username = cn`).",
}
CONF_HEAD = """\
# Settings of a halimede site for EMQX 5: nobody without credentials, access rules, limits. Made by `halimede certs`: do
# not edit. Append this file to EMQX's own emqx.conf: later settings take precedence. docs/emqx.md has the steps.
"""
#: one node of EMQX, which no other machine may join
NODE = """\
node.cookie = "{cookie}"
rpc.listen_address = "127.0.0.1"
# no dashboard: its first password is known to everyone
dashboard.listeners.http.bind = 0
"""
AUTHORIZATION = """\
authorization {{
  no_match = deny
  deny_action = ignore
  sources = [{{type = file, enable = true, path = "{acl}"}}]
}}
"""
PASSWORDS = """\
authentication = [
  {{
    mechanism = password_based
    backend = built_in_database
    user_id_type = username
    password_hash_algorithm {{name = sha256, salt_position = suffix}}
    bootstrap_file = "{users}"
    bootstrap_type = hash
  }}
]
listeners.tcp.default {{enable = true, bind = "0.0.0.0:{port}", tcp_options {{nodelay = true}}}}
listeners.ssl.default.enable = false
"""
TLS = """\
authentication = []
mqtt.peer_cert_as_username = cn
listeners.ssl.default {{
  enable = true
  bind = "0.0.0.0:{port}"
  tcp_options {{nodelay = true}}
  ssl_options {{
    cacertfile = "{folder}/ca.crt"
    certfile = "{folder}/tls.crt"
    keyfile = "{folder}/tls.key"
    verify = verify_peer
    fail_if_no_peer_cert = true
    versions = [tlsv1.3, tlsv1.2]
  }}
}}
listeners.tcp.default.enable = false
"""
#: they would accept clients as well
WEBSOCKETS = """\
listeners.ws.default.enable = false
listeners.wss.default.enable = false
"""
#: EMQX's own topics; `{deny, all}` does not match topics that begin with a dollar sign
TAIL = """\
{deny, all, all, ["$SYS/#", "$queue/#", "$stream/#", "$exclusive/#", "$delayed/#"]}.
{deny, all}.
"""


def write_files(site: Site, folder: Path) -> None:
    """Write the folder ``emqx`` of a site: settings, access rules, and the users if they have passwords."""
    emqx_folder = files.make_folders(folder, Path("emqx"))
    files.write(emqx_folder / "acl.conf", acl_conf(site))
    files.write(emqx_folder / "emqx.conf", configuration(site, folder), files.SECRET)
    if site.passwords:
        files.write(emqx_folder / "users.csv", users_file(site, folder), files.SECRET)
    else:
        files.remove(emqx_folder, ("users.csv",))


def configuration(site: Site, folder: Path) -> str:
    """Return the settings of an EMQX that serves other machines, to append to its ``emqx.conf``.

    With ``install``, all files of the site's folders ``broker`` and ``emqx`` are in that one folder.
    """
    install = Path(site.install) if site.install else None
    emqx_folder = install or folder / "emqx"
    login = PASSWORDS.format(users=emqx_folder / "users.csv", port=port(site)) if site.passwords else TLS.format(
        folder=install or folder / "broker", port=port(site)
    )  # fmt: skip
    node = NODE.format(cookie=cookie(folder))
    return CONF_HEAD + node + login + WEBSOCKETS + AUTHORIZATION.format(acl=emqx_folder / "acl.conf") + LIMITS


def cookie(folder: Path) -> str:
    """Return the shared secret of EMQX's nodes, which never changes."""
    path = files.make_folders(folder, Path("emqx")) / "cookie"
    if not path.exists():
        files.write(path, secrets.token_urlsafe(32), files.SECRET)
    return path.read_text()


def acl_conf(site: Site) -> str:
    """Return the content of the authorization file."""
    prefix = "".join(f"{level}/" for level in site.levels)
    rules = [ACL_HEAD.format(users=USERS[site.passwords])]
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
        password_hash = hashlib.sha256(f"{password}{salt}".encode()).hexdigest()
        lines.append(f"{principal.username},{password_hash},{salt},false")
    return "\n".join(lines) + "\n"


def _rule(username: str, action: Action, filters: list[str]) -> str:
    topics = ",\n  ".join(json.dumps(filter_) for filter_ in filters)
    return f'{{allow, {{username, "{username}"}}, {action.value}, [\n  {topics}\n]}}.'
