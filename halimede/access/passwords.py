"""Passwords of a site's users: random ones, each in its user's folder, and Mosquitto's password file.

The file is written here and not by ``mosquitto_passwd``: so no password is on a command line or in a second file, and
Mosquitto need not be installed. The file has the form that Mosquitto documents: PBKDF2 with SHA-512,
``$7$<iterations>$<salt>$<hash>``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from pathlib import Path

from halimede.access import files
from halimede.access.grants import users_behind
from halimede.access.mosquitto import make_bridge_folder, write_rules
from halimede.access.site import Site, SiteReport, SiteUser, SiteUserState

#: bytes of a random password before base64, of its salt, and of its hash
PASSWORD_BYTES, SALT_BYTES, HASH_BYTES = 32, 12, 64
#: rounds of PBKDF2: Mosquitto's default. More would not protect passwords of 256 random bits better, and the broker's
#: only thread computes them for each client that tries to connect
ITERATIONS = 101


def make_passwords(site: Site, folder: Path, *, rotate: bool = False) -> SiteReport:
    """Give each user a password, in its folder below ``folder``; write the brokers' password files and access rules.

    Existing passwords are kept, unless ``rotate``. Credentials of users that are no longer in the site are removed, and
    certificates in the folders of users and of places' brokers: such a folder has one kind of credentials. Raises
    OSError, and HalimedeError while another command runs.
    """
    with files.lock(folder):
        broker = folder / "broker"
        files.make_folder(broker)
        hashes = _password_hashes(files.text(broker / "passwords") or "")
        lines: dict[str, str] = {}
        created: list[str] = []
        unchanged: list[str] = []
        removed = files.remove_others(site, folder)
        for principal in site.principals():
            user_folder = files.make_folders(folder, principal.folder)
            files.remove(user_folder, files.TLS_FILES)
            password = None if rotate else files.text(user_folder / "password")
            (unchanged if password else created).append(principal.username)
            password = password or secrets.token_urlsafe(PASSWORD_BYTES)
            files.write(user_folder / "username", principal.username + "\n", files.SECRET)
            files.write(user_folder / "password", password + "\n", files.SECRET)
            old_hash = hashes.get(principal.username, "")
            name = principal.username
            lines[name] = f"{name}:{old_hash if _matches(password, old_hash) else hash_password(password)}\n"
        files.write(broker / "passwords", "".join(lines.values()), files.SECRET)
        for bridge in site.bridges:
            bridge_lines = "".join(lines[user.username] for user in users_behind(site, bridge))
            files.write(make_bridge_folder(folder, bridge) / "passwords", bridge_lines, files.SECRET)
            files.remove(make_bridge_folder(folder, bridge), files.TLS_FILES)
        write_rules(site, folder)
        return SiteReport(tuple(created), tuple(unchanged), removed)


def states(site: Site, folder: Path) -> list[SiteUserState]:
    """Return the state of every user of the site. A password is usable if the site's broker has its hash."""
    hashes = _password_hashes(files.text(folder / "broker" / "passwords") or "")
    rows = []
    for principal in site.principals():
        path = folder / principal.folder / "password"
        password = files.text(path)
        is_current = password and _matches(password, hashes.get(principal.username, ""))
        problem = "" if is_current else "not the broker's" if password else "missing"
        rows.append(SiteUserState(SiteUser(principal.username, Path(principal.folder)), path, None, problem))
    return rows


def hash_password(password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS) -> str:
    """Return a password in the form of Mosquitto's password file; without ``salt``, with a random one."""
    salt = salt or secrets.token_bytes(SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations, HASH_BYTES)
    return f"$7${iterations}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def _password_hashes(content: str) -> dict[str, str]:
    """Return the hashes in a password file by user name."""
    pairs = (line.partition(":") for line in content.splitlines())
    return {name: value for name, _, value in pairs if value}


def _matches(password: str, stored_hash: str) -> bool:
    """Whether a hash of the file is that of this password; a new hash has another salt, so it would differ."""
    parts = stored_hash.split("$")
    if len(parts) != 5 or parts[1] != "7" or parts[2] != str(ITERATIONS):
        return False
    try:
        salt = base64.b64decode(parts[3], validate=True)
    except binascii.Error:
        return False
    return bool(salt) and hmac.compare_digest(hash_password(password, salt=salt), stored_hash)
