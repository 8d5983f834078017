"""A site's settings, access rules and users in the form of EMQX 5: ``write_files`` makes the folder ``emqx``.

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
from halimede.access.grants import Action, rights
from halimede.access.mosquitto import MAX_INFLIGHT, MAX_PACKET, MAX_QUEUED, port
from halimede.access.site import Site

#: EMQX measures a packet that it receives without the fixed header, and one that it delivers with the header. With a
#: limit of 1 KiB less than that of clients (``MAX_PACKET``) it can deliver all that it has acknowledged
MAX_PACKET_KIB = MAX_PACKET // 1024 - 1
#: EMQX's defaults lose messages: they allow 1000 retained messages a second, of 1 MB each, and end a session with 1000
#: messages in its mailbox or 32 MB on its heap
LIMITS = f"""\
mqtt {{
  max_packet_size = "{MAX_PACKET_KIB}KB"
  max_inflight = {MAX_INFLIGHT}
  max_mqueue_len = {MAX_QUEUED}
}}
retainer {{max_publish_rate = infinity, delivery_rate = infinity, max_payload_size = "17MB"}}
force_shutdown {{max_mailbox_size = 100000, max_heap_size = "512MB"}}
"""
#: comments before the rules; ``users``: one of ``USERS_NOTES``, by whether the site has passwords
ACL_HEAD = """\
%% Access rules of a halimede site for EMQX 5 (authorization source `file`). Made from the topic contract: do not edit,
%% make it anew. The settings that it needs are in emqx.conf in this folder.
%% {users}
%% `no_match = deny` is needed: the last rule does not reach topics that begin with a dollar sign.
"""
#: a comment for the file of rules, by whether the site has passwords
USERS_NOTES = {
    True: "The users have passwords: users.csv in this folder has their hashes.",
    False: "The users have certificates: the common name is the user name (`mqtt.peer_cert_as_username = cn`).",
}
#: comments at the beginning of the settings
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
#: settings of the access rules; ``acl``: the path of their file
AUTHORIZATION = """\
authorization {{
  no_match = deny
  deny_action = ignore
  sources = [{{type = file, enable = true, path = "{acl}"}}]
}}
"""
#: settings for a site with passwords; ``users``: the path of their file
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
#: settings for a site with certificates; ``folder``: that of the broker's certificates
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
#: EMQX's own listeners for WebSockets, which would also accept clients
WEBSOCKETS = """\
listeners.ws.default.enable = false
listeners.wss.default.enable = false
"""
#: EMQX's own topics; `{deny, all}` does not match topics that begin with a dollar sign
ACL_TAIL = """\
{deny, all, all, ["$SYS/#", "$queue/#", "$stream/#", "$exclusive/#", "$delayed/#"]}.
{deny, all}.
"""


def write_files(site: Site, folder: Path) -> None:
    """Write settings, access rules, cookie, and users with passwords into ``emqx``, below the site's folder ``folder``.

    ``passwords.py`` must have made the passwords before. Raises OSError.
    """
    emqx_folder = files.make_folders(folder, Path("emqx"))
    files.write(emqx_folder / "acl.conf", acl_conf(site))
    files.write(emqx_folder / "emqx.conf", configuration(site, folder), files.SECRET)
    if site.passwords:
        files.write(emqx_folder / "users.csv", users_csv(site, folder), files.SECRET)
    else:
        files.remove(emqx_folder, ("users.csv",))


def configuration(site: Site, folder: Path) -> str:
    """Return the settings of an EMQX that serves other machines, to append to its ``emqx.conf``.

    The first call writes ``emqx/cookie``.

    They name files in the folders ``broker`` and ``emqx`` of the site's folder ``folder``. If the site has ``install``,
    they name all of these files in that one folder.
    """
    install = Path(site.install) if site.install else None
    emqx_folder = install or folder / "emqx"
    login = PASSWORDS.format(users=emqx_folder / "users.csv", port=port(site)) if site.passwords else TLS.format(
        folder=install or folder / "broker", port=port(site)
    )  # fmt: skip
    node_settings = NODE.format(cookie=node_cookie(folder))
    return CONF_HEAD + node_settings + login + WEBSOCKETS + AUTHORIZATION.format(acl=emqx_folder / "acl.conf") + LIMITS


def node_cookie(folder: Path) -> str:
    """Return the shared secret of EMQX's nodes; the first call writes it to ``emqx/cookie`` below ``folder``."""
    path = files.make_folders(folder, Path("emqx")) / "cookie"
    if not path.exists():
        files.write(path, secrets.token_urlsafe(32), files.SECRET)
    return path.read_text()


def acl_conf(site: Site) -> str:
    """Return the content of the authorization file: what each user may publish and subscribe to, as Erlang terms."""
    rules = [ACL_HEAD.format(users=USERS_NOTES[site.passwords])]
    for principal in site.principals():
        granted = rights(site, principal)
        for action in Action:
            filters = [site.topic_prefix + right.filter for right in granted if right.action is action]
            if filters:
                rules.append(_rule(principal.username, action, filters))
    return "\n".join([*rules, ACL_TAIL])


def users_csv(site: Site, folder: Path) -> str:
    """Return the content of EMQX's ``bootstrap_file`` of type ``hash``: the users with hashes of their passwords.

    The passwords are in the site's folder ``folder``. The algorithm is that of ``PASSWORDS``: one round of SHA-256
    is enough, because a password has 256 random bits and cannot be guessed.
    """
    lines = ["user_id,password_hash,salt,is_superuser"]
    for principal in site.principals():
        password = files.text(folder / principal.folder / "password") or ""
        # derived, not random, so that a Secret that is made again is the same
        salt = hashlib.sha256(f"{principal.username} {password}".encode()).hexdigest()[:32]
        password_hash = hashlib.sha256(f"{password}{salt}".encode()).hexdigest()
        lines.append(f"{principal.username},{password_hash},{salt},false")
    return "\n".join(lines) + "\n"


def _rule(username: str, action: Action, filters: list[str]) -> str:
    """Return the Erlang term that allows a user an action on some topics."""
    topics = ",\n  ".join(json.dumps(filter_) for filter_ in filters)
    return f'{{allow, {{username, "{username}"}}, {action.value}, [\n  {topics}\n]}}.'
