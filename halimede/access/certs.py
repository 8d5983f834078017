"""Certificates of a site's users and its broker, in their folders: created, kept while valid, renewed, replaced.

Each command may be repeated: valid files are kept, so that a second run changes nothing, and the next run completes an
interrupted one. A new authority replaces another one in three steps, and all clients can connect after each: trust both
(``rotate_authority``), sign all certificates again (``make_certificates`` with ``rotate``), trust only the new one
(``finish_authority``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

from halimede.access import certificate_authority as ca
from halimede.access import files
from halimede.access.mosquitto import write_rules
from halimede.access.site import Site, SiteReport, SiteUser, SiteUserState
from halimede.errors import HalimedeError, InvalidFieldError

#: days for which users' and brokers' certificates are valid: default, and most
DAYS, MAX_DAYS = 365, 3650
#: names of the authority and of the site's broker in reports, besides those of users
CA, BROKER = "ca", "broker"


def make_certificates(
    site: Site, folder: Path, *, days: int = DAYS, rotate: bool = False, only: Collection[str] = ()
) -> SiteReport:
    """Make missing files below ``folder``: authority, broker's and users' certificates, access rules.

    Valid certificates are kept; new ones are valid for ``days``. With ``rotate`` all are made anew, or those of the
    names in ``only`` (users or brokers, as in ``states``). The files of users that are no longer in the site are
    removed, and passwords in the folders of users: such a folder has one kind of credentials. Raises InvalidFieldError
    for an error in the site, HalimedeError for an error in existing files or while another command runs, OSError.
    """
    _check_site(site, days)
    entries = list(_entries(site))
    names = {entry.username for entry in entries}
    for name in only:
        if name not in names:
            raise InvalidFieldError("name", name, "it is not in this site: `halimede certs show` lists the members")
    to_renew = (set(only) or names) if rotate else set()
    with files.lock(folder):
        bundle, created = _read_authorities(folder), []
        if not bundle:
            pair = ca.new_authority()
            _write_authority(folder, [], pair)
            bundle = [pair.certificate]
            created.append(CA)
        removed = files.remove_others(site, folder)
        unchanged = [] if created else [CA]
        for entry in entries:
            is_current = entry.username not in to_renew and _is_current(folder / entry.folder, entry, bundle)
            if not is_current:
                _sign(_signing_authority(folder, bundle), entry, folder, days)
            files.remove(folder / entry.folder, files.LOGIN_FILES)
            (unchanged if is_current else created).append(entry.username)
        _distribute(site, folder, bundle)
        expiries = [row.expires for row in states(site, folder) if row.expires]
        return SiteReport(tuple(created), tuple(unchanged), removed, min(expiries))


def rotate_authority(site: Site, folder: Path) -> SiteReport:
    """Make a new authority, which all users trust besides the old one. Certificates of the old one stay.

    The report has only the new authority, with its expiry. Raises HalimedeError for a folder without an authority or
    while another command runs, OSError.
    """
    with files.lock(folder):
        bundle = _read_authorities(folder)
        if not bundle:
            raise HalimedeError(f"{folder} has no ca.crt: create the site first with `halimede certs init`")
        pair = ca.new_authority()
        _write_authority(folder, bundle, pair)
        _distribute(site, folder, [pair.certificate, *bundle])
        return SiteReport((CA,), expires=pair.certificate.not_valid_after_utc)


def finish_authority(site: Site, folder: Path) -> SiteReport:
    """Let all users trust only the newest authority.

    The report has ``ca`` as created if an older one was removed, and the expiry of the newest. Raises HalimedeError
    while a certificate is of an older one or another command runs, OSError.
    """
    with files.lock(folder):
        bundle = _read_authorities(folder)
        pair = _signing_authority(folder, bundle)
        for entry in _entries(site):
            chain = ca.read_bundle(_read_bytes(folder / entry.folder / "tls.crt"))
            if not chain or ca.signer(chain[0], [pair.certificate]) is None:
                raise HalimedeError(
                    f"{entry.username} has no certificate of the new authority: `halimede certs rotate {folder}` "
                    "first, and copy the new folders to the machines that use them"
                )
        files.write(folder / "ca.crt", ca.write_bundle([pair.certificate]), lasting=True)
        _distribute(site, folder, [pair.certificate])
        return SiteReport((CA,) if len(bundle) > 1 else (), expires=pair.certificate.not_valid_after_utc)


def states(site: Site, folder: Path) -> list[SiteUserState]:
    """Return the state of every certificate of the site, authorities first.

    Raises HalimedeError, OSError.
    """
    now = datetime.now(UTC)
    bundle = _read_authorities(folder)
    rows = [
        SiteUserState(SiteUser(CA, Path()), folder / "ca.crt", expires, "expired" if expires <= now else "")
        for expires in (authority.not_valid_after_utc for authority in bundle)
    ]
    for entry in _entries(site):
        path = folder / entry.folder / "tls.crt"
        pair = _read_pair(folder / entry.folder)
        if pair is None:
            rows.append(SiteUserState(entry, path, None, "missing" if not path.exists() else "no matching key"))
            continue
        expires = pair.certificate.not_valid_after_utc
        problem = "expired" if expires <= now else ""
        if ca.signer(pair.certificate, bundle) is None:
            problem = "of another authority"
        rows.append(SiteUserState(entry, path, expires, problem))
    return rows


def _distribute(site: Site, folder: Path, bundle: list[ca.Certificate]) -> None:
    """Write the trusted authorities into every folder, and the access rules."""
    trusted = ca.write_bundle(bundle)
    for entry in _entries(site):
        files.write(files.make_folders(folder, entry.folder) / "ca.crt", trusted)
    write_rules(site, folder)


def _entries(site: Site) -> Iterator[SiteUser]:
    """Yield all that has a certificate: the brokers, then the users."""
    yield SiteUser(BROKER, Path(BROKER), tuple(site.broker))
    for bridge in site.bridges:
        yield SiteUser(f"{BROKER}.{bridge.name}", Path("bridges", bridge.name, BROKER), tuple(bridge.broker))
    for principal in site.principals():
        yield SiteUser(principal.username, Path(principal.folder))


def _sign(authority: ca.Pair, entry: SiteUser, folder: Path, days: int) -> None:
    """Make a key and its certificate, and write both into the entry's folder below ``folder``."""
    path = files.make_folders(folder, entry.folder)
    leaf = (
        ca.new_server(authority, entry.hosts, days) if entry.hosts else ca.new_client(authority, entry.username, days)
    )
    # a reader in between finds a key without its certificate: it reports that and tries again
    files.write(path / "tls.key", ca.write_key(leaf.key), files.SECRET)
    files.write(path / "tls.crt", ca.write_bundle([leaf.certificate]))


def _is_current(path: Path, entry: SiteUser, bundle: list[ca.Certificate]) -> bool:
    """Whether the folder ``path`` has a certificate that need not be made anew."""
    pair = _read_pair(path)
    if pair is None or ca.signer(pair.certificate, bundle) is None:
        return False
    return ca.is_current(pair.certificate, name="" if entry.hosts else entry.username, hosts=entry.hosts)


def _read_pair(path: Path) -> ca.Pair | None:
    """Return the certificate in the folder ``path`` with its key; None if one is missing or they do not match."""
    chain, key = ca.read_bundle(_read_bytes(path / "tls.crt")), ca.read_key(_read_bytes(path / "tls.key"))
    return ca.Pair(chain[0], key) if chain and key and ca.is_key_of(key, chain[0]) else None


def _read_authorities(folder: Path) -> list[ca.Certificate]:
    """Return the trusted authorities, the newest first; empty before the first. Raises HalimedeError."""
    pem = _read_bytes(folder / "ca.crt")
    bundle = ca.read_bundle(pem)
    if pem and not bundle:
        raise HalimedeError(f"{folder / 'ca.crt'} is not a certificate: restore it from a copy, or use a new folder")
    return bundle


def _signing_authority(folder: Path, bundle: list[ca.Certificate]) -> ca.Pair:
    """Return the authority whose key is in the folder. Raises HalimedeError without one, or for an expired one."""
    path = folder / "ca.key"
    key = ca.read_key(_read_bytes(path))
    for certificate in bundle:
        if key and ca.is_key_of(key, certificate):
            if certificate.not_valid_after_utc <= datetime.now(UTC):
                raise HalimedeError(f"the authority in {folder} has expired: `halimede certs rotate --ca {folder}`")
            return ca.Pair(certificate, key)
    trouble = "does not match a certificate in ca.crt" if path.exists() else "is not there"
    raise HalimedeError(
        f"{path} {trouble}, so no certificate can be signed: restore it, or `halimede certs rotate --ca {folder}`"
    )


def _write_authority(folder: Path, older: list[ca.Certificate], pair: ca.Pair) -> None:
    """Write a new authority, trusted besides the ``older`` ones, and its key in place of theirs.

    The certificate is first: a key without it is useless, but without the key the certificate is trusted.
    """
    files.write(folder / "ca.crt", ca.write_bundle([pair.certificate, *older]), lasting=True)
    files.write(folder / "ca.key", ca.write_key(pair.key), files.SECRET, lasting=True)


def _read_bytes(path: Path) -> bytes:
    """Return a file's content, empty if it does not exist."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _check_site(site: Site, days: int) -> None:
    """Raise InvalidFieldError for a wrong number of days, or a name that is too long for a certificate."""
    if not 1 <= days <= MAX_DAYS:
        raise InvalidFieldError("days", days, f"use 1 to {MAX_DAYS}")
    for principal in site.principals():
        max_characters = ca.MAX_NAME_CHARACTERS - len(principal.username) + len(principal.name)
        if len(principal.name) > max_characters:
            fix = f"a {principal.role.value}'s name in a certificate has at most {max_characters} letters"
            raise InvalidFieldError("site", principal.name, fix)
