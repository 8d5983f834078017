"""The page's token, required if other machines can reach the page; it is stored next to GM's store."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from halimede.errors import InvalidFieldError
from halimede.observe.http import is_loopback, parse_bind

FILE = "page-token"
BYTES = 24


def page_token(store: Path, bind: str) -> str:
    """Return the token that a page at this address asks for, made on first use; nothing on loopback."""
    address = parse_bind(bind, "--http")
    if address is None or is_loopback(address[0]):
        return ""
    path = store / FILE
    try:
        store.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read(path)
    except OSError as error:
        raise InvalidFieldError("--store", str(store), f"make it writable ({error.strerror})") from error
    with os.fdopen(handle, "w") as file:
        token = secrets.token_urlsafe(BYTES)
        file.write(token + "\n")
    return token


def _read(path: Path) -> str:
    token = path.read_text().strip()
    if not token:
        raise InvalidFieldError(FILE, str(path), "it is empty: remove it, and a new one is made")
    return token
